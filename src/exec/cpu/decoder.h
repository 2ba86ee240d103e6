// The forward pass of a step on the CPU: materialise, attend, merge, layer by layer, for all rows together.
//
//   residual x --norm, quantise--> QKV --RoPE--> K, V rounded and written to their frames
//            --leaves and tree over the frames--> O --> x --norm, quantise--> gate, up --SiLU--> down --> x
//
// Rows may pass some of the layers only: see row_sets.h. What else than K and V they leave is in form_rows.h,
// and K and V that no row writes, but X gives, in kv_projection.h.
//
// Threads split independent outputs only (rows, panels of columns, subtrees of attention), and meet at a
// barrier between the phases. No thread ever adds to what another computes, so their number changes no bit.
// Where K and V are staged for the step, the team also meets before each layer that waits for its transfers.
// What lies at peers is asked for before the team begins with the local leaves, and merged when it has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "contract/geometry.h"
#include "contract/step.h"
#include "exec/cpu/attention_pass.h"
#include "exec/cpu/form_rows.h"
#include "exec/cpu/kv_projection.h"
#include "exec/cpu/operand.h"
#include "exec/cpu/remote_attention.h"
#include "exec/cpu/row_sets.h"
#include "exec/cpu/thread_pool.h"
#include "exec/step_transfers.h"
#include "model/packed_model.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"

namespace kvasir {

// Sees the logits of every sampling row: tests and evaluation only. `position` is that of the row's token.
using LogitsTap = std::function<void(SeqId seq, uint32_t position, std::span<const float> logits)>;

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

  // The model, the kernels and the memory of the device tier outlive the decoder. `threads` is the team's
  // size.
  Decoder(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
          const Options& options, std::byte* device_memory, int threads);

  void set_tap(LogitsTap tap) { tap_ = std::move(tap); }

  // Makes room for `rows` rows. kExhausted: there is no memory for it; what was there stays usable.
  Status reserve(int64_t rows);
  // Makes room for the step and lays out its rows. Before run(), by one thread. Not ok: the step cannot run.
  Status prepare(const Step& step);
  // Runs the step; every thread of the team calls it. Sampled tokens are in sampled() afterwards. The first
  // thread takes `transfers`, which have begun, from moment to moment.
  void run(const Step& step, StepTransfers& transfers, const ThreadPool::Worker& worker);

  std::vector<SampledToken>& sampled() { return sampled_; }
  // Bytes of the scratch buffers now; they grow with the largest step and never shrink.
  uint64_t scratch_bytes() const;

 private:
  // Up to so many rows every thread prepares all of a projection's input by itself: the same work twice
  // costs less than one more meeting.
  static constexpr int64_t kSoloRows = 4;
  static constexpr int64_t kLogitRows = 32;  // rows whose logits are held at once

  // Where the team is on its way through the row sets; every thread has its own.
  struct Place {
    size_t set = 0;
  };
  void lay_out(const Step& step);
  // The rows of the next set take their places in x and, if they have them already, in qkv; those that join
  // get their x from H. Meets at the end.
  void next_set(const Step& step, uint32_t layer, const StepTransfers& transfers,
                const ThreadPool::Worker& worker, Place& place);
  // Columns of all rows that were there, to their places in the set.
  void move_rows(const RowSets::Set& set, float* rows, int64_t width, const Share& columns) const;
  // Waits for what the layer needs, and meets at the end, if there is anything to wait for. False: nobody is
  // left.
  bool await_transfers(const Step& step, uint32_t layer, StepTransfers& transfers,
                       const ThreadPool::Worker& worker);
  // From now on the deferred slices write nothing, read nothing and sample nothing. Their rows go on through
  // the products, where they disturb nobody.
  void leave_out_deferred(const Step& step, const StepTransfers& transfers);
  // The same for their attention alone, among the rows at hand.
  void leave_out_of_attention(const Step& step, const StepTransfers& transfers);
  int64_t row_count() const { return static_cast<int64_t>(rows_.size()); }
  bool takes_anywhere(ops::ActivationType type) const;
  int64_t widest_operand() const;
  // Where a thread makes inputs ready, and which rows: its share of the team's, or, of a few rows, all.
  struct Preparation {
    OperandBuffers& buffers;
    Share rows;
    bool alone;
  };
  Preparation preparation(const ThreadPool::Worker& worker);
  // The input of `next`: rows that are there, or made one by one by make_row(row, out [k]). It is good until
  // the next call of these: after that the buffers serve the next projection.
  Operand take_rows(const Projection& next, const float* x, const ThreadPool::Worker& worker);
  template <typename MakeRow>
  Operand make_rows(const Projection& next, const ThreadPool::Worker& worker, const MakeRow& make_row);
  Operand normed_input(const std::vector<float>& weight, const Projection& next,
                       const ThreadPool::Worker& worker);
  // out[row] (+)= input[row] x p, for `rows` rows. Meets at the end.
  void multiply(const Projection& p, const Operand& input, int64_t rows, float* out, int64_t ldo,
                bool accumulate, const ThreadPool::Worker& worker);
  // Meets at the end. False: nobody is left.
  bool attend(const Step& step, uint32_t layer, StepTransfers& transfers, const ThreadPool::Worker& worker);
  // Attention makes ready for a layer, by the rows at hand. By one thread, before the team meets.
  void prepare_attention(const Step& step, uint32_t layer);
  // All that the layer's rows leave behind, and K and V of what lies in form X. normed: the operand of its
  // QKV product. Meets at the end.
  void write(const Step& step, uint32_t layer, const Operand& normed, StepTransfers& transfers,
             const ThreadPool::Worker& worker, const Place& place);
  void rotate_and_write(const Step& step, uint32_t layer, int64_t row);
  void feed_forward(const PackedLayer& layer, const ThreadPool::Worker& worker);
  void sample_rows(const Step& step, const ThreadPool::Worker& worker);

  const PackedModel& model_;
  const ops::Kernels& kernels_;
  const CacheGeometry geometry_;
  const Options options_;
  const ops::KvShape frame_;
  std::byte* const device_memory_;
  const float query_scale_;  // 1 / sqrt(head_dim)
  AttentionPass attention_;
  RemoteAttention remote_;
  const FormRows forms_;
  KvProjector projector_;
  LogitsTap tap_;

  // Of the step at hand.
  RowSets sets_;
  std::span<const StepRow> rows_;    // of the set at hand
  std::vector<int64_t> logit_rows_;  // rows of the last set whose logits are wanted
  std::vector<SampledToken> sampled_;

  // Scratch, [rows][...]: shared by the team, each phase writes disjoint parts.
  int64_t capacity_rows_ = 0;
  std::vector<float> x_, qkv_, attended_, gate_up_, logits_;
  OperandBuffers shared_;
  std::vector<OperandBuffers> own_;  // by thread
};

}  // namespace kvasir
