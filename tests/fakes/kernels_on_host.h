// What the kernels of ops/gpu compute, by the host twin and the scalar reference, over the memory of a fake
// GPU: the same arguments, layouts and bits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "fakes/fake_memory_map.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/reference.h"
#include "ops/gpu/twin.h"

namespace kvasir::test {

// Each call throws BadAddress where a kernel would leave the memory that it may use. By one thread at a time.
// REQUIRES: the thread keeps subnormals
class KernelsOnHost {
 public:
  explicit KernelsOnHost(const FakeMemoryMap& memory) : memory_(memory) {}

  void run(const ops::gpu::EmbedArgs& args);
  void run(const ops::gpu::NormRowsArgs& args);
  void run(const ops::gpu::GemmArgs& args);
  void run(const ops::gpu::FinishQkvArgs& args);
  void run(const ops::gpu::CopyXArgs& args);
  void run(const ops::gpu::FinishKvArgs& args);
  void run(const ops::gpu::LeafArgs& args);
  void run(const ops::gpu::MergeArgs& args);
  void run(const ops::gpu::ActivateArgs& args);
  void run(const ops::gpu::AddBranchArgs& args);
  void run(const ops::gpu::DrawArgs& args);

 private:
  using WeightsKey = std::tuple<const uint16_t*, int32_t, int32_t>;

  // Weights do not change, so that a matrix is taken apart once.
  const ops::twin::Weights& weights_of(const ops::gpu::GemmArgs& args);
  // A row of an image, [k].
  std::vector<uint16_t> row_of(const uint16_t* image, int64_t row, int32_t k) const;
  // Writes it, and the padding behind it.
  void put_row(uint16_t* image, int64_t row, const std::vector<uint16_t>& values) const;
  ops::reference::Norm norm_of(const ops::gpu::NormArgs& norm, int32_t n) const;
  // The place of K, or V, of a KV head of a block.
  uint16_t* kv_of(const ops::gpu::KvLayer& kv, uint32_t slice, uint32_t block, int32_t head, bool is_k) const;
  void run_piece(const ops::gpu::LeafArgs& args, const ops::gpu::LeafWork& work, int32_t kv_head) const;

  const FakeMemoryMap& memory_;
  std::map<WeightsKey, std::unique_ptr<ops::twin::Weights>> weights_;
};

}  // namespace kvasir::test
