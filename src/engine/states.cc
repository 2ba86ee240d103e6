// What plans and steps mean for the requests: their states, their lines in the view, and the gauges.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine.h"

namespace kvasir {
namespace {

// As many as the type holds, at the most.
template <typename T>
T counted(uint32_t count) {
  return static_cast<T>(std::min<uint32_t>(count, std::numeric_limits<T>::max()));
}

}  // namespace

// The policy has found nothing to do though there is work: rather than stand still, the request that is first
// ends.
void Engine::fail_head(StepPlan& plan) {
  const SeqView& head = view_.running.empty() ? view_.waiting.front() : view_.running.front();
  log_error("the scheduling policy found no way to go on with {} running and {} waiting requests",
            view_.running.size(), view_.waiting.size());
  ++metrics_.standstills;
  plan = StepPlan{};
  plan.failures.push_back({head.id, "there is no memory for this request: try again later, or send less"});
}

// A policy that preempts one request again and again, and in between no request comes further than it ever
// was, would do so for ever: that request ends.
void Engine::break_cycle(StepPlan& plan) {
  for (const Preemption& p : plan.preemptions) {
    const LiveRequest* live = requests_.find(p.seq);
    if (!live) continue;  // the checker of plans says so
    if (live->preempted_at_progress != progress_ || live->preempted_in_vain < kPreemptionsInVain) continue;
    log_error("the scheduling policy has preempted request {} {} times and no request has made progress",
              raw(p.seq), live->preempted_in_vain);
    ++metrics_.standstills;
    plan = StepPlan{};
    plan.failures.push_back({live->id, "there is no memory for this request: try again later, or send less"});
    return;
  }
}

void Engine::count_in_vain(LiveRequest& live) {
  live.preempted_in_vain = live.preempted_at_progress == progress_ ? live.preempted_in_vain + 1 : 1;
  live.preempted_at_progress = progress_;
}

// Computing again what was lost is no progress; a sampled token is, for its row was computed.
void Engine::note_progress(LiveRequest& live) {
  const uint32_t ready = cache_.ready_tokens(live.id);
  if (ready <= live.furthest) return;
  live.furthest = ready;
  ++progress_;
}

void Engine::apply_failures(const StepPlan& plan) {
  for (const Failure& f : plan.failures) {
    finish(*requests_.find(f.seq), FinishReason::kError, {}, f.reason, /*try_again=*/true);
  }
}

// Moves requests between waiting and running, and counts what the plan means for them.
void Engine::apply_states(const StepPlan& plan) {
  for (const Preemption& p : plan.preemptions) {
    LiveRequest& live = *requests_.find(p.seq);
    requests_.set_state(live, LiveRequest::State::kWaiting);
    ++live.preemptions;
    count_in_vain(live);
    ++metrics_.num_preemptions;
    for (const CopyChange& c : plan.copies) {
      if (c.seq != p.seq || c.verb != Verb::kDrop || c.tier != Tier::kDevice || c.form != Form::kKv) continue;
      ++(c.trigger == Trigger::kNow ? metrics_.num_preemptions_recomputed : metrics_.num_preemptions_swapped);
    }
    refresh(live, requests_.view_of(live));
  }
  for (const Adoption& a : plan.adoptions) {
    LiveRequest& live = *requests_.find(a.seq);
    count_hits(a);
    if (live.queued) {
      live.cached_prompt_tokens = a.tokens;
      metrics_.prompt_tokens_cached += a.tokens;
    }
  }
  for (const Rows& rows : plan.rows) {
    LiveRequest& live = *requests_.find(rows.seq);
    if (cache_.computes_again(rows.seq, rows.tokens)) continue;
    if (live.state == LiveRequest::State::kWaiting) {
      requests_.set_state(live, LiveRequest::State::kRunning);
      if (options_.cache.prefix_caching) metrics_.prefix_cache_queries += live.known_tokens();
    }
    if (live.queued) {
      live.queued = false;
      live.first_run = view_.now;
      began_to_run();
      metrics_.request_queue_time.observe(to_seconds(view_.now - live.arrival));
      metrics_.prompt_tokens += live.prompt_tokens;
      leave_queue(live);
    }
    ++live.in_flight;
    if (rows.samples) ++live.sampling_in_flight;
    if (live.known_tokens() >= live.max_total_tokens && rows.samples) {
      requests_.set_state(live, LiveRequest::State::kEnding);
    }
  }
  // What was given to, or taken from, a sequence that goes on waiting.
  for (const CopyChange& c : plan.copies) refresh_waiting(c.seq);
  for (const Adoption& a : plan.adoptions) refresh_waiting(a.seq);
  for (const Promise& p : plan.promises) {
    refresh_waiting(p.owner);
    refresh_waiting(p.from);
  }
}

// The blocks' copies are where they were found: what the plan moves has not been moved yet.
void Engine::count_hits(const Adoption& adoption) {
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

void Engine::refresh_waiting(SeqId id) {
  LiveRequest* live = requests_.find(id);
  if (live && live->state == LiveRequest::State::kWaiting) refresh(*live, requests_.view_of(*live));
}

void Engine::began_to_run() {
  std::lock_guard lock(mutex_);
  pace_.began(view_.now);
}

void Engine::leave_queue(LiveRequest& live) {
  std::lock_guard lock(mutex_);
  --queued_reqs_;
  queued_tokens_ -= live.prompt_tokens;
}

void Engine::refresh(LiveRequest& live, SeqView& view) const {
  const KvCache::Summary cells = cache_.summary(live.id);
  view.priority = live.priority;
  view.slo = live.slo;
  view.predicted = live.predicted;
  view.first_token_time = live.first_token;
  view.last_token_time = live.last_token;
  view.prompt_tokens = live.prompt_tokens;
  view.known_tokens = live.known_tokens();
  view.max_total_tokens = live.max_total_tokens;
  view.ready_tokens = cells.ready_tokens;
  view.blocks = cells.blocks;
  for (size_t p = 0; p < kPlaces; ++p) {
    const Place place = place_at(p);
    view.cells[index_of(place.form)][index_of(place.tier)] = cells.cells[p];
    view.own_cells[index_of(place.form)][index_of(place.tier)] = cells.own_cells[p];
    if (p < kPlacesOfKv) {
      view.cached_idle[index_of(place.form)][index_of(place.tier)] = cells.cached.what.idle[p];
    }
  }
  view.promised_cells = cells.promised_cells;
  view.leaving_cells = cells.leaving_cells;
  view.device_groups = cells.device_groups;
  view.resident_blocks = cells.resident_blocks;
  view.first_device_block = cells.first_device_block;
  view.dropped = cells.dropped;
  view.bare_cells = cells.bare_cells;
  view.dropped_first_group = cells.dropped_first_group;
  view.dropped_end_group = cells.dropped_end_group;
  view.restart_group = cells.restart_group;
  view.tail_resident = cells.tail_resident;
  view.tail_busy = cells.tail_busy;
  view.transfers = counted<uint16_t>(cells.transfers);
  view.deferrals = counted<uint8_t>(live.deferrals);
  view.stalled = live.deferrals > 0 && cells.transfers > 0;
  view.cached_tokens = cells.cached.matched * cache_.geometry().block_tokens;
  view.cached_resident_cells = cells.cached.what.cells[index_of(kDeviceKv)];
  view.peer_blocks = cells.peer_blocks;
  view.preemptions = counted<uint16_t>(live.preemptions);
  view.in_flight = counted<uint8_t>(live.in_flight);
}

void Engine::update_gauges() {
  metrics_.num_requests_running = requests_.size() - view_.waiting.size();
  metrics_.num_requests_waiting = view_.waiting.size();
  const uint32_t groups = cache_.geometry().groups();
  metrics_.kv_blocks_used = ceil_div(cache_.map().used_cells(Tier::kDevice), groups);
  metrics_.kv_blocks_cached = cache_.map().idle_blocks();
  for (Tier tier : kAllTiers) {
    EngineMetrics::TierBytes& shown = metrics_.tiers[index_of(tier)];
    shown.bytes_used = cache_.map().used_bytes(tier);
    shown.blocks_cached = cache_.map().idle_blocks(tier);
  }
  metrics_.transfers_in_flight = cache_.transfers_in_flight();
}

// Of sequences that were cut back, what steps in flight sample counts for nothing: those tokens are not
// known, and will be planned again.
void Engine::void_cut_back() {
  for (SeqId id : cache_.take_cut_back()) {
    LiveRequest* live = requests_.find(id);
    if (!live) continue;
    // It is admitted anew, with what is there then.
    if (live->state == LiveRequest::State::kWaiting) cache_.end_promises(id);
    for (Submitted& step : in_flight_) {
      for (Member& m : step.members) {
        if (m.seq != id || !m.samples) continue;
        m.samples = false;
        --live->sampling_in_flight;
      }
    }
    if (live->state == LiveRequest::State::kEnding) requests_.set_state(*live, LiveRequest::State::kRunning);
  }
}

}  // namespace kvasir
