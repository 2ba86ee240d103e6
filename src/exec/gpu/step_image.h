// A step as the device reads it: one run of bytes, which is uploaded at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "contract/step.h"
#include "exec/gpu/forward_pass.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/layouts.h"
#include "ops/gpu/leaf_work.h"

namespace kvasir {

// What becomes of a row that gives logits. A row samples or scores, never both.
struct LogitUse {
  uint32_t slice = 0;
  SeqId seq{};
  uint32_t position = 0;
  bool samples = false;  // else it scores
};

// Rows lie in the order in which slices leave: those that pass all layers first. So the rows that are left in
// a layer are always the first ones, and none needs to move. A row that has left computes nothing; in the
// last layer all go on, also those of which nothing is wanted.
class StepImage {
 public:
  explicit StepImage(const GpuModel& model);
  // Attention to more leaves of rows than this is planned in passes, as pass_ends() has it.
  void set_most_records(int64_t most) { most_records_ = most; }
  // K and V of more tokens than this, and than the step has rows, are computed from X in passes.
  void set_most_projected(int64_t most) { most_projected_ = most; }

  // Lays the step out; the places of its slices' tables follow by set_table(). Throws std::bad_alloc.
  // earlier: of the step before, to whose tokens rows may refer; null: none do.
  // REQUIRES: the step has no remote leaves.
  void lay_out(const Step& step, const CacheGeometry& geometry, const StepImage* earlier);
  void set_table(size_t slice, const ops::gpu::KvPlace* at) { slices_[slice].table = at; }

  uint64_t bytes() const { return bytes_; }
  // to: bytes() of them.
  void pack(std::byte* to) const;
  // The part of it that changes when slices leave the step; it comes first.
  std::span<const std::byte> slices() const { return std::as_bytes(std::span(slices_)); }

  // With the addresses of an image at `device`. Without KvLayer::memory.
  GpuStep step_at(const std::byte* device) const;
  // Some of the rows that give logits; their tokens go to tokens[first ...].
  GpuLogits logits_at(const std::byte* device, size_t first, size_t count, int32_t* tokens) const;
  const int32_t* hidden_at(const std::byte* device) const;

  bool refers_to_earlier() const { return refers_to_earlier_; }
  // Of the logit rows, the one that samples for the sequence. REQUIRES: there is one.
  size_t sampling_row_of(SeqId seq) const;

  int64_t rows() const { return static_cast<int64_t>(rows_[0].size()); }
  // Whether all rows pass all layers.
  bool all_stay() const { return staying_.empty() || staying_.back() == rows(); }
  int64_t records() const { return records_; }  // of the pass that has most
  size_t attention_passes() const { return work_.size(); }
  // Of the passes, in the order of windows, the first in the lowest bit: whether it has many queries, as
  // LeafArgs has it. REQUIRES: there are at most 64
  uint64_t passes_with_many_queries() const;
  // Of the product that has most, the step's own and those of projections.
  int64_t product_rows() const { return std::max(rows(), projected_rows_); }
  // By logit row, in the order of the step's slices and positions.
  std::span<const LogitUse> logit_uses() const { return uses_; }
  // Rows whose hidden rows are wanted, in the same order.
  struct HiddenUse {
    uint32_t slice;
    uint32_t position;
  };
  std::span<const HiddenUse> hidden_uses() const { return hidden_uses_; }

 private:
  // A list of the image and where it begins.
  struct Part {
    const void* from;
    uint64_t bytes;
    uint64_t at;
  };
  struct Work {
    int32_t window;
    int32_t count, first, end;  // as GpuAttention has them
    size_t rows;                // index into rows_
    ops::gpu::LeafPlan plan;
    int32_t most_rows;  // of a piece of it
    uint64_t at;
  };
  void add_rows(const Step& step, const StepImage* earlier);
  void add_uses(const Step& step);
  void add_x_writes(const Step& step);
  void plan_projections(const Step& step);
  void plan_attention();
  void add_work(size_t w, int32_t count, int32_t first, int32_t end);
  template <typename T>
  uint64_t add_part(const std::vector<T>& list);

  const GpuModel& model_;
  std::vector<int32_t> windows_;  // that layers have, each once
  uint32_t layers_per_group_ = 1;

  // Of the step.
  ops::gpu::KvLayer kv_ = {};
  std::vector<ops::gpu::SlicePlace> slices_;
  std::vector<KvPlanes> staged_;
  std::vector<uint32_t> order_;                        // slices, in the order of their rows
  std::vector<uint32_t> first_row_;                    // by slice
  std::vector<int32_t> staying_;                       // by layer
  std::vector<std::vector<ops::gpu::RowPlace>> rows_;  // by window
  std::vector<Work> work_;
  // Runs of a list that belong together.
  struct Runs {
    uint32_t layer;  // or group
    size_t first, count;
    int64_t rows;
  };
  std::vector<ops::gpu::XRun> x_runs_;
  std::vector<Runs> x_writes_;     // by group; empty: none
  std::vector<Runs> projections_;  // by layer
  std::vector<LogitUse> uses_;
  std::vector<std::pair<SeqId, size_t>> sampling_rows_;  // by sequence
  std::vector<int32_t> logit_rows_;
  std::vector<ops::gpu::DrawPlace> draws_;
  std::vector<HiddenUse> hidden_uses_;
  std::vector<int32_t> hidden_rows_;
  int64_t records_ = 0;
  int64_t most_records_ = INT64_MAX;
  int64_t projected_rows_ = 0;
  int64_t most_projected_ = ops::kTileRows;
  bool refers_to_earlier_ = false;

  std::vector<Part> parts_;
  std::vector<uint64_t> rows_at_;
  uint64_t staged_at_ = 0, x_runs_at_ = 0, logit_rows_at_ = 0, draws_at_ = 0, hidden_at_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
