// Infinite-LLM's DistKV-LLM: vLLM's scheduling over the memory of all instances.
//
// Source: Lin et al., "Infinite-LLM: Efficient LLM Service for Long Context with DistAttention and
// Distributed KVCache", arXiv 2401.02669v1. docs/policies/distkv.md has the paper beside the code.
#include <algorithm>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/borrow_ahead.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/spill_to_peers.h"
#include "sched/mechanisms/stream_or_ask.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// As `vllm`, first come, first served. What lies at peers is attended there: PlanBuilder and committer see to
// that for every policy. This one decides what is to lie there, and how much is borrowed when.
//
// Settings:
//   ahead  tokens of every running sequence for which there is to be room before it is needed: 256
//   network  GB/s of the way to peers; long prompts then run in chunks by stream_or_ask.h. 0: in the largest
//          ones that pass the stage ring (0)
//   query-heads  query heads for each KV head, for the bytes of a query; twice as many where K and V have 8
//          bits in place of 16 (1)
//   spill  off: only what can never fit on the device goes to peers; on: also the oldest of long histories,
//          when the device fills up, before any sequence is preempted (on)
class DistkvPolicy final : public BatchPolicy {
 public:
  DistkvPolicy(BorrowAhead rule, bool spill, double network, uint32_t query_heads)
      : rule_(rule), spill_(spill), network_(network), query_heads_(query_heads) {}

 private:
  void begin_step(const View& view, PlanBuilder& builder) override { borrow_ahead(view, rule_, builder); }

  void plan_batch(const View& view, PlanBuilder& builder) override {
    const uint32_t soon = cells_needed_soon(view, rule_);
    if (!view.peers.in_recalled.empty()) bring_home(view, soon, builder);
    if (spill_) make_room(view, soon, builder);
    if (network_ > 0) continue_long_prompts(view, builder);
    if (any_prefilling(view) || !admit(view, builder)) {
      continue_running(by_arrival(view.running), builder, PreemptBy::kRecompute);
    }
  }

  // Rows of a prompt that a step may run. The last token samples, and K and V of no others go.
  uint32_t rows_of(const View& view, const SeqView& seq, const PlanBuilder& builder) const {
    const KvPlacement where = builder.kv_placement(seq);
    const uint32_t away = where.away_blocks * view.geometry.block_tokens;
    if (!where.streams || seq.ready_tokens >= away) return seq.tokens_to_compute();
    StreamOrAsk rule;
    rule.pair_s = view.costs.pair_s;
    rule.kv_bytes = static_cast<double>(view.geometry.kv_block_bytes()) / view.geometry.block_tokens;
    rule.query_bytes = query_heads_ * rule.kv_bytes;
    rule.bytes_per_s = 1e9 * network_;
    rule.most_rows = std::min(view.limits.max_num_batched_tokens,
                              (view.stage_blocks + 1) * view.geometry.block_tokens - 1);
    return rule.chunk(std::min(away, seq.known_tokens));
  }

  void continue_long_prompts(const View& view, PlanBuilder& builder) const {
    for (const SeqView& seq : view.running) {
      if (seq.decoding() || seq.stalled || !builder.kv_placement(seq).streams) continue;
      builder.prefill(seq, rows_of(view, seq, builder));
    }
  }

  // The first waiting one alone, if its prompt is to run in chunks.
  bool admit(const View& view, PlanBuilder& builder) const {
    if (network_ > 0 && !view.waiting.empty()) {
      const SeqView& seq = view.waiting.front();
      const uint32_t rows = rows_of(view, seq, builder);
      if (rows < seq.tokens_to_compute()) {
        const uint32_t watermark = builder.running_seqs() == 0 ? 0 : admission_watermark(view);
        return builder.admit(seq, {watermark + awaited_blocks(view)}) && builder.prefill(seq, rows) > 0;
      }
    }
    return admit_prompts(view, builder);
  }

  static void make_room(const View& view, uint32_t soon, PlanBuilder& builder) {
    const int64_t free = std::max<int64_t>(0, view.device.available_cells());
    int64_t coming = view.device.coming[index_of(Form::kKv)];
    for (const SeqView& seq : view.running) coming += seq.leaving_cells;
    if (free + coming >= soon || view.host.available_cells() <= 0) return;
    spill_to_peers(view, static_cast<uint32_t>(soon - free - coming), builder);
  }

  const BorrowAhead rule_;
  const bool spill_;
  const double network_;  // GB/s
  const uint32_t query_heads_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_distkv(PolicySettings& settings) {
  const auto ahead = settings.whole("ahead", 256, 0, 1 << 20);
  const bool spill = settings.flag("spill", true);
  const double network = settings.number("network", 0, 0, 1e6);
  const auto query_heads = settings.whole("query-heads", 1, 1, 1024);
  return std::make_unique<DistkvPolicy>(BorrowAhead{ahead}, spill, network, query_heads);
}

}  // namespace kvasir
