// Where kernels are queued: a stream of a device, or in tests the simulated machine.
#pragma once

#include "ops/gpu/kernel_args.h"

namespace kvasir {

// Kernels run one after the other, in the order in which they are queued.
class KernelQueue {
 public:
  virtual ~KernelQueue() = default;
  virtual void launch(const ops::gpu::EmbedArgs& args) = 0;
  virtual void launch(const ops::gpu::NormRowsArgs& args) = 0;
  virtual void launch(const ops::gpu::GemmArgs& args) = 0;
  virtual void launch(const ops::gpu::FinishQkvArgs& args) = 0;
  virtual void launch(const ops::gpu::CopyXArgs& args) = 0;
  virtual void launch(const ops::gpu::FinishKvArgs& args) = 0;
  virtual void launch(const ops::gpu::LeafArgs& args) = 0;
  virtual void launch(const ops::gpu::MergeArgs& args) = 0;
  virtual void launch(const ops::gpu::ActivateArgs& args) = 0;
  virtual void launch(const ops::gpu::AddBranchArgs& args) = 0;
  virtual void launch(const ops::gpu::DrawArgs& args) = 0;
};

// One that does the same with every kernel: Derived has a function add(args).
template <typename Derived, typename Base = KernelQueue>
class EachKernel : public Base {
 public:
  void launch(const ops::gpu::EmbedArgs& args) override { self().add(args); }
  void launch(const ops::gpu::NormRowsArgs& args) override { self().add(args); }
  void launch(const ops::gpu::GemmArgs& args) override { self().add(args); }
  void launch(const ops::gpu::FinishQkvArgs& args) override { self().add(args); }
  void launch(const ops::gpu::CopyXArgs& args) override { self().add(args); }
  void launch(const ops::gpu::FinishKvArgs& args) override { self().add(args); }
  void launch(const ops::gpu::LeafArgs& args) override { self().add(args); }
  void launch(const ops::gpu::MergeArgs& args) override { self().add(args); }
  void launch(const ops::gpu::ActivateArgs& args) override { self().add(args); }
  void launch(const ops::gpu::AddBranchArgs& args) override { self().add(args); }
  void launch(const ops::gpu::DrawArgs& args) override { self().add(args); }

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
};

}  // namespace kvasir
