// Recurrent layers (RecurrentSpec): from the rows of their first product to what the last one takes.
//
//   [q | k | v] --causal convolution, SiLU--> q, k --norm of each head--> gated delta rule over v
//            --norm of each head--> times SiLU(z)
//
// A sequence's state goes on from token to token, in one order, whatever steps its rows come in. It is read
// where the token before has left it, which is the cell of that token's block, and written to the cell of
// each block that the rows reach: behind a block's last token it stays as it is, and in a block that is not
// full it is overwritten by the next rows. So rows must come once, and in order: a sequence whose rows may
// have been left halfway goes on from its last full block (KvCache::cut_back).
//
// The parts of a state (CacheLayers) run one after the other, each when its copies are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contract/geometry.h"
#include "contract/step.h"
#include "exec/cpu/operand.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/product_runner.h"
#include "exec/cpu/row_sets.h"
#include "exec/cpu/thread_pool.h"
#include "exec/step_transfers.h"
#include "model/architectures/cache_layers.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

class RecurrentPass {
 public:
  // The arguments outlive it. For a model without recurrent layers it takes no memory, and is not called.
  RecurrentPass(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
                ProductRunner& products, std::byte* device_memory, ThreadPool& pool);

  // Makes room for so many rows. Throws std::bad_alloc.
  void grow(int64_t rows);
  // Items of the largest job of so many rows.
  int64_t most_items(int64_t rows) const;

  // The layer's product of `normed`, into buffers of its own.
  void multiply(const PackedLayer& layer, const Operand& normed, int64_t rows);
  // Takes the rows of a set through one part of the states, which is `cache_layer` of the cache. Rows of
  // deferred slices are left out. The parts in their order.
  void run(const Step& step, const PackedLayer& layer, const RowSets::Set& set, const CacheLayers::Part& part,
           uint32_t cache_layer, const StepTransfers& transfers);
  // After the last part: [rows], `stride` floats apart. Rows of deferred slices are zeros.
  void finish(const PackedLayer& layer, const RowSets::Set& set, const StepTransfers& transfers, float* out,
              int64_t stride);

  uint64_t bytes() const { return (inputs_.size() + gates_.size() + values_.size()) * sizeof(float); }

 private:
  // Rows of a slice up to the end of a block, or to their own.
  struct Run {
    uint32_t slice;
    int64_t row;
    int64_t rows;
    uint32_t position;  // of the first
  };
  // Runs of one sequence, in the order of its slices: runs_[first ..).
  struct Chain {
    size_t first;
    size_t end;
  };
  void lay_out(const Step& step, const RowSets::Set& set, const StepTransfers& transfers);
  // Where a run's state comes from, and where it goes; null: from zero, or nowhere.
  const std::byte* source(const Step& step, const Run& run, uint32_t cache_layer) const;
  std::byte* target(const Step& step, const Run& run, uint32_t cache_layer) const;
  // Between the last channel and the first matrix.
  void make_gates(const PackedLayer& layer, int64_t rows);
  // Calls advance(state, run) for the runs of a chain, with a state of `floats` floats that lies `offset`
  // bytes within the part.
  template <typename Advance>
  void follow(const Step& step, const Chain& chain, uint32_t cache_layer, uint64_t offset, int64_t floats,
              float* state, const Advance& advance) const;

  const PackedModel& model_;
  const ops::Kernels& kernels_;
  const CacheGeometry geometry_;
  ProductRunner& products_;
  std::byte* const device_memory_;
  ThreadPool& pool_;
  std::vector<float> query_norm_, key_norm_;  // [key_dim]

  // Of the layer at hand.
  std::vector<Run> runs_;
  std::vector<Chain> chains_;
  int64_t width_ = 0;                       // floats of a row of inputs_
  std::vector<float> inputs_;               // [rows][inputs]
  std::vector<float> gates_;                // [rows][decay: value_heads | beta: value_heads]
  std::vector<float> values_;               // [rows][values]
  std::vector<std::vector<float>> states_;  // one for each thread
};

}  // namespace kvasir
