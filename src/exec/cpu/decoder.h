// The forward pass of a step on the CPU: materialise, attend, merge, layer by layer, for all rows together.
//
//   residual x --norm, quantise--> QKV --norm, RoPE--> K, V rounded and written to their frames
//            --leaves and tree over the frames--> O --> x --norm, quantise--> gate, up --act--> down --> x
//
// Rows may pass only some of the layers: see row_sets.h. x_rows.h writes copies in form X, and
// kv_projection.h computes K and V from such copies.
//
// One thread goes through the phases, and shares out the work of each as a job of the pool: rows, panels of
// columns, subtrees of attention. No thread adds to what another computes, so neither their number nor who
// does what changes a bit. Peers are asked for their part of the attention before the local leaves, and their
// answers are merged when they have come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "contract/geometry.h"
#include "contract/step.h"
#include "exec/cpu/attention_pass.h"
#include "exec/cpu/expert_pass.h"
#include "exec/cpu/kv_projection.h"
#include "exec/cpu/latent_pass.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/product_runner.h"
#include "exec/cpu/qkv_finish.h"
#include "exec/cpu/recurrent_pass.h"
#include "exec/cpu/remote_attention.h"
#include "exec/cpu/row_sets.h"
#include "exec/cpu/thread_pool.h"
#include "exec/cpu/x_rows.h"
#include "exec/logits_tap.h"
#include "exec/sampler.h"
#include "exec/step_transfers.h"
#include "exec/token_masks.h"
#include "model/architectures/cache_layers.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"

namespace kvasir {

class Decoder {
 public:
  struct Options {
    ops::ActivationMode activation = ops::ActivationMode::kAuto;
    ops::KvType kv_type = ops::KvType::kBf16;
    // Calls the tap for every row that passes the last layer, not only for those that sample, and computes
    // all logits.
    bool tap_all_rows = false;
    // Where leaves at peers are attended to; outlives the decoder. Null: steps must have none.
    PeerMemory* peers = nullptr;
  };

  // The model, the kernels, the memory of the device tier and the pool outlive the decoder.
  Decoder(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
          const Options& options, std::byte* device_memory, ThreadPool& pool);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  void set_tap(LogitsTap tap) { tap_ = std::move(tap); }

  // Makes room for `rows` rows. kExhausted: there is no memory for it; kInvalidArgument: no job has so many
  // items. What was there stays usable.
  Status reserve(int64_t rows);
  // Makes room for the step and lays out its rows. Before run(). Not ok: the step cannot run.
  Status prepare(const Step& step);
  // Runs the step, and takes `transfers`, which have begun, from point to point. Sampled tokens are in
  // sampled() afterwards, those of prompts in scored(), hidden rows in hidden(). It may throw std::bad_alloc,
  // and late helpers may then still read the step (ThreadPool::settle()).
  void run(const Step& step, StepTransfers& transfers);

  std::vector<SampledToken>& sampled() { return sampled_; }
  std::vector<ScoredToken>& scored() { return scored_; }
  std::vector<HiddenRow>& hidden() { return hidden_; }
  // Bytes of the scratch buffers now; they grow with the largest step and never shrink.
  uint64_t scratch_bytes() const;

 private:
  static constexpr int64_t kLogitRows = 32;  // rows whose logits are held at once

  void lay_out(const Step& step);
  // Moves the rows of the next set to their places in x and in qkv.
  void next_set(const Step& step, uint32_t layer, const StepTransfers& transfers);
  // Moves `width` columns of the rows to their places in the set.
  void move_rows(const RowSets::Set& set, float* rows, int64_t width);
  // Waits for what the layer of the cache needs, if anything. False: all slices have left.
  bool await_transfers(const Step& step, uint32_t cache_layer, StepTransfers& transfers);
  // From now on the deferred slices write, read and sample nothing. Their rows stay in the products, where
  // they do not affect others.
  void leave_out_deferred(const Step& step, const StepTransfers& transfers);
  // They have no tiles of attention.
  void leave_out_tiles(const Step& step, const StepTransfers& transfers);
  // The same for attention alone, among the rows at hand, of whose output theirs becomes zeros.
  void leave_out_of_attention(const Step& step, const StepTransfers& transfers);
  int64_t row_count() const { return static_cast<int64_t>(rows_.size()); }
  bool takes_anywhere(ops::ActivationType type) const;
  int64_t widest_operand() const;
  // Of the jobs of so many rows.
  int64_t most_items(int64_t rows) const;
  // ModelSpec::ffn_dim, or 0 where all layers have experts.
  int64_t dense_ffn_dim() const;
  // The rows of the residual stream after a norm; as they are where there is none.
  Operand normed_input(const NormWeights& norm, const Projection& next);
  void normalise(const NormWeights& norm, const float* x, float* out) const;
  // x[row] += input[row] x p, after what the branch does to it.
  void add_to_residual(const Projection& p, const Operand& input, const Branch& branch);
  // x[row] += branch[row], after what is done to it. experts: branch[row] is what they give.
  void add_branch(const Branch& branch, const PackedExperts* experts = nullptr);
  // From the layer's normed rows to those of qkv_.
  void make_qkv(const PackedLayer& layer, const Operand& normed);
  // Attention's output, as the layer's product behind it takes it.
  Operand attended_input(const PackedLayer& layer);
  // The widest row of that output, of attention or of recurrent layers, with its stride.
  int64_t most_attended_stride() const;
  // A recurrent layer's part from its first product to its last one. False: all slices have left.
  bool recur(const Step& step, uint32_t layer, const Operand& normed, StepTransfers& transfers);
  // The layer of the cache that an attention layer is.
  uint32_t cache_layer(uint32_t layer) const { return cache_layers_.of(layer).begin; }
  // False: all slices have left.
  bool attend(const Step& step, uint32_t layer, StepTransfers& transfers);
  // Prepares the attention of a layer for the rows at hand.
  void prepare_attention(const Step& step, uint32_t layer);
  // Writes K, V and X of the layer's rows, and computes K and V from X. normed: the operand of its QKV
  // product.
  void write(const Step& step, uint32_t layer, const Operand& normed, StepTransfers& transfers);
  void rotate_and_write(const Step& step, uint32_t layer, int64_t row);
  // Gate and up, or up alone, of the rows of the residual stream.
  void make_ffn_in(const PackedLayer& layer);
  void finish_feed_forward(const PackedLayer& layer);
  // Both, or a mixture of experts.
  void feed_forward(const PackedLayer& layer);
  void mix_experts(const PackedLayer& layer);
  // What the feed-forward's second product takes, of a row that the first has made. out: [ffn_dim]
  void activate(const PackedLayer& layer, const float* row, float* out) const;
  // Computes the hidden rows that are wanted. Rows that are wanted for nothing else then leave logit_rows_.
  void keep_hidden(const Step& step);
  void sample_rows(const Step& step);
  // Constrained slices whose masks are late leave the step.
  void await_masks(const Step& step, StepTransfers& transfers);
  // What becomes of a row's logits. Each row that has an effect has a place of its own in sampled_ or
  // scored_.
  struct LogitRow {
    enum class Use : uint8_t { kNone, kSample, kScore } use = Use::kNone;
    size_t place = 0;
  };
  LogitRow use_of(const Step& step, const StepRow& row, size_t& samples, size_t& scores) const;
  void sample_row(const Step& step, const StepRow& row, LogitRow::Use use, size_t place,
                  std::span<const float> logits, Sampler& sampler);
  // A row's scale and cap.
  void finish_logits(float* logits) const;

  const PackedModel& model_;
  const ops::Kernels& kernels_;
  const CacheGeometry geometry_;
  const Options options_;
  const CacheLayers cache_layers_;
  const std::vector<ops::KvShape> frames_;  // by layer: that layer's part of a plane
  std::byte* const device_memory_;
  ThreadPool& pool_;
  const QkvFinisher finisher_;
  AttentionPass attention_;
  RemoteAttention remote_;
  const XRows x_rows_;
  KvProjector projector_;
  ProductRunner products_;
  ExpertPass experts_;
  LatentPass latent_;
  RecurrentPass recurrent_;
  LogitsTap tap_;

  // Of the step at hand.
  int64_t attended_stride_ = 0;  // of the layer at hand
  RowSets sets_;
  size_t set_ = 0;                   // the set at hand
  std::span<const StepRow> rows_;    // its rows
  std::vector<int64_t> logit_rows_;  // rows of the last set whose logits (or hidden rows) are wanted
  std::vector<SampledToken> sampled_;
  TokenMasks masks_;
  std::vector<ScoredToken> scored_;
  std::vector<HiddenRow> hidden_;

  // Scratch, [rows][...]: threads write disjoint parts.
  int64_t capacity_rows_ = 0;
  std::vector<float> x_, qkv_, attended_, ffn_in_, logits_;
  std::vector<float> branch_;                // empty where products add to x at once
  std::vector<Sampler> samplers_;            // one for each thread
  std::atomic<bool> sampler_failed_{false};  // had no memory
};

}  // namespace kvasir
