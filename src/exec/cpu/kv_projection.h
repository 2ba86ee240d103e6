// K and V of a block in one layer, computed from its X. They equal what the rows that left the X wrote, bit
// for bit: product, bias, rotation and rounding are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contract/geometry.h"
#include "contract/step.h"
#include "exec/cpu/operand.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/qkv_finish.h"
#include "exec/cpu/thread_pool.h"
#include "exec/step_transfers.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"
#include "ops/x_layout.h"

namespace kvasir {

class KvProjector {
 public:
  // The arguments outlive it. Without copies in form X it takes no memory and does nothing.
  KvProjector(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
              const std::vector<ops::KvShape>& frames, ops::ActivationMode mode, std::byte* device_memory,
              int threads);

  // The step's projections in this layer, except for deferred slices. The pool has no more than `threads`.
  void run(const Step& step, uint32_t layer, const StepTransfers& transfers, ThreadPool& pool);

  uint64_t scratch_bytes() const;

 private:
  // The panels of a QKV projection that hold K and V. The first of them may hold columns of Q, too.
  struct Product {
    Projection columns;
    int64_t first_k = 0;  // the column of K
  };
  // One thread's.
  struct Scratch {
    std::vector<float> out;              // [B][columns]
    std::vector<float> scales, moments;  // [B][k / 32], of X in int8
    std::vector<int16_t> sums;           // [B][k / 16]
    OperandBuffers made;                 // operands made from X in f32
  };
  static Product product_of(const PackedLayer& layer, int64_t q_dim);
  // Tokens [first, first + tokens) of the block, counted in the block.
  void project(const KvProjection& p, int64_t first, int64_t tokens, Scratch& scratch) const;
  Operand operand(const KvProjection& p, const Product& product, const Share& rows, Scratch& scratch) const;

  const PackedModel& model_;
  const ops::Kernels& kernels_;
  const QkvFinisher finisher_;
  const CacheGeometry& geometry_;
  const std::vector<ops::KvShape>& frames_;  // by layer
  const ops::ActivationMode mode_;
  const ops::ActivationType x_type_;
  std::byte* const device_memory_;
  std::vector<Product> products_;  // by layer
  std::vector<Scratch> scratch_;   // by thread
};

}  // namespace kvasir
