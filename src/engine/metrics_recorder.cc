#include "engine/metrics_recorder.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/units.h"
#include "engine/attainment.h"

namespace kvasir {

MetricsRecorder::MetricsRecorder(EngineMetrics& metrics, const KvCache& cache, const View& view,
                                 const LiveRequests& requests)
    : metrics_(metrics), cache_(cache), view_(view), requests_(requests) {
  const CacheOptions& options = cache.options();
  metrics_.kv_blocks_total = options.cells(Tier::kDevice) / options.geometry.groups();
  metrics_.kv_block_bytes = options.geometry.kv_block_bytes();
  for (Tier tier : kAllTiers) metrics_.tiers[index_of(tier)].bytes_total = cache.map().total_bytes(tier);
  metrics_.stage_ring_bytes = options.stage_bytes;
}

// ---------------------------------------------------------------- requests

void MetricsRecorder::arrived(const LiveRequest& live) {
  if (live.for_peer) return;
  metrics_.request_prompt_tokens.observe(live.prompt_tokens);
}

void MetricsRecorder::preempted(SeqId id, const StepPlan& plan) {
  ++metrics_.num_preemptions;
  for (const CopyChange& c : plan.copies) {
    if (c.seq != id || c.tier != Tier::kDevice || c.form != Form::kKv) continue;
    if (c.verb == Verb::kDropAll) ++metrics_.num_preemptions_recomputed;
    if (c.verb == Verb::kDrop) ++metrics_.num_preemptions_swapped;
  }
}

void MetricsRecorder::adopted(const LiveRequest& live, const Adoption& adoption) {
  if (live.for_peer) return;
  count_hits(adoption);
  if (live.queued) metrics_.prompt_tokens_cached += adoption.tokens;
}

void MetricsRecorder::count_hits(const Adoption& adoption) {
  metrics_.prefix_cache_hits += adoption.tokens;
  const uint32_t tokens = cache_.geometry().block_tokens;
  const std::span<const BlockId> blocks = cache_.blocks_of(adoption.seq);
  for (uint32_t i = 0; i < adoption.tokens / tokens && i < blocks.size(); ++i) {
    LayerSet missing = cache_.map().all_groups();
    size_t slowest = 0;
    for (Place place : kCheapestFirst) {
      const LayerSet there = missing & cache_.block(blocks[i]).at(place).usable();
      if (!there.empty()) slowest = std::max(slowest, index_of(place.tier));
      missing = missing - there;
    }
    metrics_.prefix_cache_hits_by_tier[slowest] += tokens;
  }
}

void MetricsRecorder::admitted(const LiveRequest& live) {
  if (cache_.options().prefix_caching && !live.for_peer) metrics_.prefix_cache_queries += live.known_tokens();
}

void MetricsRecorder::began(const LiveRequest& live) {
  if (live.for_peer) return;
  metrics_.request_queue_time.observe(to_seconds(live.first_run - live.arrival));
  metrics_.prompt_tokens += live.prompt_tokens;
}

void MetricsRecorder::sampled(const LiveRequest& live, Nanos now) {
  if (live.for_peer) return;
  ++metrics_.generation_tokens;
  if (live.generated > 1) {
    metrics_.inter_token_latency.observe(to_seconds(now - live.last_token));
    return;
  }
  metrics_.time_to_first_token.observe(to_seconds(now - live.arrival));
  metrics_.request_prefill_time.observe(to_seconds(now - live.first_run));
}

void MetricsRecorder::ended(const LiveRequest& live, FinishReason reason, Nanos now) {
  if (live.for_peer) return;
  ++metrics_.finished[static_cast<size_t>(reason)];
  metrics_.request_generation_tokens.observe(live.generated);
  if ((reason == FinishReason::kStop || reason == FinishReason::kLength) && live.generated > 0) {
    metrics_.e2e_request_latency.observe(to_seconds(now - live.arrival));
    metrics_.request_inference_time.observe(to_seconds(now - live.first_run));
    metrics_.request_decode_time.observe(to_seconds(now - live.first_token));
    if (live.generated > 1) {
      metrics_.time_per_output_token.observe(to_seconds(live.last_token - live.first_token) /
                                             (live.generated - 1));
    }
  }
  count_attainment(live, reason, now);
}

// A cancelled request counts only for the bounds that it has missed already.
void MetricsRecorder::count_attainment(const LiveRequest& live, FinishReason reason, Nanos now) {
  if (!live.slo.any()) return;
  const bool cancelled = reason == FinishReason::kAbort;
  const bool failed = reason == FinishReason::kError;
  const bool begun = live.generated > 0;
  const RequestLatency latency = {(begun ? live.first_token : now) - live.arrival, now - live.arrival,
                                  live.last_token - live.first_token, begun ? live.generated - 1 : 0,
                                  live.late_gaps};
  bool good = true;
  bool counts = !cancelled;
  for (SloKind kind : kSloKinds) {
    const std::optional<bool> met = attained(kind, live.slo, latency);
    if (!met || (cancelled && *met)) continue;
    counts = true;
    good = good && *met && !failed;
    EngineMetrics::Attainment& count = metrics_.slo[static_cast<size_t>(kind)];
    ++count.requests;
    if (*met && !failed) ++count.attained;
  }
  if (!counts) return;
  ++metrics_.goodput.requests;
  if (good) ++metrics_.goodput.attained;
}

// ---------------------------------------------------------------- steps

void MetricsRecorder::planned(const StepPlan& plan) {
  for (const Reason& reason : plan.reasons) ++metrics_.decisions[static_cast<size_t>(reason.cause)];
  count_partial_histories(plan);
}

// What decoding sequences do not keep of their histories on the device.
void MetricsRecorder::count_partial_histories(const StepPlan& plan) {
  const bool decodes = std::any_of(plan.rows.begin(), plan.rows.end(),
                                   [](const Rows& r) { return r.kind == RowKind::kDecode; });
  if (!decodes) return;
  const uint32_t block = view_.geometry.block_tokens;
  uint64_t all = 0, away = 0, again = 0;
  const uint32_t groups = view_.geometry.groups();
  for (const SeqView& s : view_.running) {
    if (!s.decoding()) continue;
    all += s.known_tokens;
    away += uint64_t{s.blocks - s.resident_blocks} * block;
    again += uint64_t{s.dropped.size()} * (s.dropped_end_group - s.dropped_first_group) / groups;
  }
  EngineMetrics::PartialHistories& m = metrics_.partial;
  if (away == 0) {
    ++m.steps_none;
    return;
  }
  ++m.steps_some;
  m.ratio_sum += static_cast<double>(away) / static_cast<double>(all);
  m.tokens_again += again;
  m.tokens_staged += away - std::min(away, again);
}

void MetricsRecorder::submitted(const Step& step, uint32_t rows_again) {
  metrics_.iteration_tokens.observe(step.row_count());
  if (!step.staged.empty()) ++metrics_.steps_staged;
  metrics_.tokens_computed_again += rows_again;
  for (const KvProjection& p : step.projections) metrics_.tokens_projected += p.tokens;
}

void MetricsRecorder::update_gauges() {
  metrics_.num_requests_waiting = view_.waiting.size() + requests_.held();
  metrics_.num_requests_running = requests_.size() - metrics_.num_requests_waiting;
  metrics_.kv_blocks_used = ceil_div(cache_.map().used_cells(Tier::kDevice), cache_.geometry().groups());
  metrics_.kv_blocks_cached = cache_.map().idle_blocks();
  for (Tier tier : kAllTiers) {
    EngineMetrics::TierBytes& shown = metrics_.tiers[index_of(tier)];
    shown.bytes_used = cache_.map().used_bytes(tier);
    shown.blocks_cached = cache_.map().idle_blocks(tier);
  }
  metrics_.transfers_in_flight = cache_.transfers_in_flight();
}

}  // namespace kvasir
