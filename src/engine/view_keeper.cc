#include "engine/view_keeper.h"

#include <algorithm>
#include <limits>

#include "engine/prefix_fetch.h"
#include "plan/kv_placement.h"

namespace kvasir {
namespace {

// The count, or the largest value of the type if that is less.
template <typename T>
T counted(uint32_t count) {
  return static_cast<T>(std::min<uint32_t>(count, std::numeric_limits<T>::max()));
}

}  // namespace

ViewKeeper::ViewKeeper(const EngineOptions& options, View& view, LiveRequests& requests, KvCache& cache,
                       BeliefKeeper& beliefs, const Link* link)
    : view_(view),
      requests_(requests),
      cache_(cache),
      beliefs_(beliefs),
      link_(link),
      adopts_at_peers_(options.peer_prompts != PeerPromptUse::kNever || options.cache.attended_cells > 0) {
  view_.geometry = options.cache.geometry;
  view_.limits = options.limits;
  view_.stage_blocks = options.cache.stage_blocks();
  view_.scratch_tokens = options.scratch_tokens;
  view_.peers.most_borrowed = options.cache.borrowable_cells();
}

void ViewKeeper::update(const Moment& moment) {
  for (SeqId id : cache_.settle_claims()) refresh_waiting(id);
  for (size_t i = 0; i < view_.running.size(); ++i) refresh(requests_.running(i), view_.running[i]);
  for (SeqId id : cache_.take_changed()) refresh_waiting(id);
  view_.now = moment.now;
  view_.next_step = moment.next_step;
  view_.steps_in_flight = moment.steps_in_flight;
  view_.limits.max_prefill_beside_decodes = moment.max_prefill_beside_decodes;
  view_.device = cache_.budget(Tier::kDevice);
  view_.host = cache_.budget(Tier::kHost);
  view_.disk = cache_.budget(Tier::kDisk);
  view_.reserved_cells = cache_.reserved_cells();
  view_.claims = cache_.claims();
  view_.transfers_in_flight = cache_.transfers_in_flight();
  if (!link_) {
    beliefs_.show_costs(nullptr);
    return;
  }
  const LinkStats stats = link_->stats();
  view_.link = {stats.bytes_per_s, stats.latency_s, stats.queued_bytes};
  beliefs_.show_costs(&stats);
}

void ViewKeeper::refresh(LiveRequest& live) {
  refresh(live, requests_.view_of(live));
}

void ViewKeeper::refresh_waiting(SeqId id) {
  LiveRequest* live = requests_.find(id);
  if (live && live->state == LiveRequest::State::kWaiting) refresh(*live);
}

void ViewKeeper::refresh(const LiveRequest& live, SeqView& view) const {
  static_cast<SequenceCells&>(view) = cache_.summary(live.id);
  view.priority = live.priority;
  view.weight = live.weight;
  view.slo = live.slo;
  view.predicted = live.predicted;
  view.first_token_time = live.first_token;
  view.last_token_time = live.last_token;
  view.prompt_tokens = live.prompt_tokens;
  view.known_tokens = live.known_tokens();
  view.max_total_tokens = live.max_total_tokens;
  view.deferrals = counted<uint8_t>(live.deferrals);
  view.stalled = live.deferrals > 0 && view.transfers > 0;
  view.preemptions = counted<uint16_t>(live.preemptions);
  view.late_gaps = counted<uint16_t>(live.late_gaps);
  view.in_flight = counted<uint8_t>(live.in_flight);
  if (view.cached_tokens == 0) return;
  if (adopts_at_peers_) cache_.count_cached_at_peers(live.id, view);
  const bool stay = view.cached_peer_blocks > 0 && (view.attended || kv_placement_of(view_, view).streams);
  const uint32_t at_peers = stay ? view.cached_peer_blocks * view_.geometry.groups() : 0;
  if (!worth_fetching(view_, cache_.cached(live.id), at_peers))
    cache_.offer(cache_.cached_on_device(live.id), view);
}

}  // namespace kvasir
