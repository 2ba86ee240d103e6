#include "engine/map_watch.h"

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/plan_words.h"

namespace kvasir {
namespace {

uint64_t micros(double seconds) {
  return static_cast<uint64_t>(seconds * 1e6);
}

std::vector<size_t> existing_places(const KvCache& cache) {
  std::vector<size_t> out;
  for (size_t p = 0; p < kPlaces; ++p) {
    const Place place = place_at(p);
    if (cache.map().shape(place.tier).cells(place.form) > 0) out.push_back(p);
  }
  return out;
}

void add_run(const BlockCells& cells, std::vector<BlockRun>& out) {
  if (!out.empty() && out.back().cells == cells) {
    ++out.back().blocks;
  } else {
    out.push_back({1, cells});
  }
}

}  // namespace

CellState BlockCells::state(uint32_t group) const {
  CellState state = shared ? kShared : CellState{0};
  for (size_t p = 0; p < kPlaces; ++p) {
    if (ready[p].contains(group)) state = static_cast<CellState>(state | 1 << p);
    if (filling[p].contains(group)) state = static_cast<CellState>(state | 1 << (kFillingShift + p));
  }
  if (at_peers.contains(group)) state |= kAtPeer;
  if (staged.contains(group)) state |= kStaged;
  if (dead.contains(group)) state |= kDead;
  return state;
}

MapWatch::MapWatch(const Parts& parts, std::initializer_list<MapSink*> sinks)
    : p_(parts), places_(existing_places(parts.cache)) {
  const CacheOptions& options = p_.cache.options();
  MapShape shape;
  shape.began = p_.clock.now();
  shape.geometry = options.geometry;
  for (Tier tier : kAllTiers) shape.cells[index_of(tier)] = options.cells(tier);
  shape.borrowable_cells = options.borrowable_cells();
  shape.stage_blocks = options.stage_blocks();
  for (MapSink* sink : sinks) {
    if (!sink) continue;
    viewers_.push_back({sink});
    sink->begin(shape);
  }
}

bool MapWatch::watched() const {
  return std::any_of(viewers_.begin(), viewers_.end(), [](const Viewer& v) { return v.sink->watched(); });
}

void MapWatch::planned(const StepPlan& plan) {
  planned_.clear();
  if (!watched()) return;
  const Nanos begin = p_.clock.now();
  has_plan_ = true;
  kept_ = begin - kept_at_ >= kBetweenKept ||
          std::any_of(viewers_.begin(), viewers_.end(),
                      [](const Viewer& v) { return v.sink->watched() && v.sink->wants_frame(); });
  if (kept_) kept_at_ = begin;
  try {
    if (kept_) keep(plan);
    const Nanos words = p_.clock.now();
    if (words < words_from_) {
      leave_unsaid(plan);
    } else {
      note(plan);
      const Nanos end = p_.clock.now();
      words_from_ = end + (end - words) * pause_for_words();
    }
  } catch (const std::bad_alloc&) {
    planned_.clear();
  }
  planning_ = p_.clock.now() - begin;
  p_.metrics.seconds_map += to_seconds(planning_);
}

void MapWatch::keep(const StepPlan& plan) {
  for (const Rows& rows : plan.rows) {
    if (rows.kind == RowKind::kRestore) continue;  // they are for later rows of the same sequence
    planned_.push_back({raw(rows.seq), static_cast<uint8_t>(rows.kind), rows.tokens.size()});
  }
  const auto by_id = [](const Planned& a, const Planned& b) { return a.seq < b.seq; };
  std::stable_sort(planned_.begin(), planned_.end(), by_id);
  for (const CopyChange& c : plan.copies) {
    if (c.verb != Verb::kStage) continue;
    auto it = std::lower_bound(planned_.begin(), planned_.end(), Planned{raw(c.seq)}, by_id);
    if (it == planned_.end() || it->seq != raw(c.seq)) it = planned_.insert(it, {raw(c.seq)});
    it->staged.push_back(c);
  }
}

uint32_t MapWatch::pause_for_words() const {
  std::optional<uint32_t> least;
  for (const Viewer& v : viewers_) {
    if (v.sink->watched()) least = std::min(least.value_or(UINT32_MAX), v.sink->pause_for_words());
  }
  return least.value_or(0);
}

void MapWatch::leave_unsaid(const StepPlan& plan) {
  const uint64_t decisions = plan.failures.size() + plan.reasons.size() + plan.preemptions.size() +
                             plan.adoptions.size() + plan.promises.size();
  for (Viewer& v : viewers_) {
    if (v.sink->watched()) v.unsaid += decisions;
  }
}

void MapWatch::note(const StepPlan& plan) {
  size_t most = 0;
  for (const Viewer& v : viewers_) {
    if (v.sink->watched()) most = std::max(most, v.room());
  }
  uint64_t unsaid = 0;
  const std::vector<MapNote> notes = plan_words(p_.view, plan, most, unsaid);
  for (Viewer& v : viewers_) {
    if (!v.sink->watched()) continue;
    const size_t said = std::min(v.room(), notes.size());
    v.notes.insert(v.notes.end(), notes.begin(), notes.begin() + static_cast<ptrdiff_t>(said));
    v.unsaid += notes.size() - said + unsaid;
  }
}

void MapWatch::turn_ended(uint64_t step) {
  const Nanos planning = std::exchange(planning_, 0);
  // Where the plan was not kept, and a frame is wanted since, the next turn is shown.
  const bool shows_plan = !std::exchange(has_plan_, false) || kept_;
  for (Viewer& v : viewers_) {
    if (!v.sink->watched()) {
      if (!v.notes.empty()) v.notes = {};
      v.unsaid = 0;
      continue;
    }
    if (!shows_plan || !v.sink->wants_frame()) continue;
    const Nanos begin = p_.clock.now();
    try {
      MapFrame frame = take(step);
      frame.notes = std::exchange(v.notes, {});
      frame.unsaid = std::exchange(v.unsaid, 0);
      const Nanos making = p_.clock.now() - begin;
      frame.cost = planning + making;
      p_.metrics.seconds_map += to_seconds(making);
      v.sink->show(std::move(frame));
    } catch (const std::bad_alloc&) {
      // The next frame shows it.
    }
  }
}

const MapWatch::Planned* MapWatch::planned_for(uint64_t seq) const {
  const auto it = std::lower_bound(planned_.begin(), planned_.end(), seq,
                                   [](const Planned& p, uint64_t id) { return p.seq < id; });
  return it != planned_.end() && it->seq == seq ? &*it : nullptr;
}

MapFrame MapWatch::take(uint64_t step) {
  MapFrame frame;
  frame.at = p_.clock.now();
  frame.step = step;
  frame.sequences.reserve(p_.requests.size());
  p_.requests.for_each([&](const LiveRequest& live) { frame.sequences.push_back(take(live)); });
  std::sort(frame.sequences.begin(), frame.sequences.end(),
            [](const MapSequence& a, const MapSequence& b) { return a.id < b.id; });
  frame.moves = moves();
  frame.claims = p_.cache.claims();
  frame.gauges = gauges();
  return frame;
}

MapSequence MapWatch::take(const LiveRequest& live) const {
  MapSequence s;
  s.id = raw(live.id);
  s.state = static_cast<SequenceFacts::State>(live.state);
  s.prompt_tokens = live.prompt_tokens;
  s.known_tokens = live.known_tokens();
  s.ready_tokens = p_.cache.ready_tokens(live.id);
  s.max_total_tokens = live.max_total_tokens;
  s.predicted_tokens = live.predicted.output_tokens;
  s.preemptions = live.preemptions;
  s.late_gaps = live.late_gaps;
  s.priority = live.priority;
  s.arrival = live.arrival;
  s.first_run = live.first_run;
  s.first_token = live.first_token;
  s.slo = live.slo;
  s.promised_cells = p_.cache.promised_cells(live.id);
  if (live.state == LiveRequest::State::kWaiting) {
    s.cached_tokens = p_.requests.view_of(*p_.requests.find(live.id)).cached_tokens;
  }
  const Planned* planned = planned_for(s.id);
  if (planned) {
    s.row_kind = planned->row_kind;
    s.rows = planned->rows;
  }
  add_blocks(live.id, planned, s.blocks);
  return s;
}

void MapWatch::add_blocks(SeqId id, const Planned* planned, std::vector<BlockRun>& out) const {
  const std::span<const BlockId> table = p_.cache.blocks_of(id);
  const size_t kv = index_of(kDeviceKv);
  for (uint32_t i = 0; i < table.size(); ++i) {
    BlockCells cells = cells_of(p_.cache.block(table[i]));
    if (i < p_.cache.dead_blocks(id)) cells.dead = p_.cache.geometry().windowed;
    if (planned) {
      for (const CopyChange& c : planned->staged) {
        const Interval blocks = c.blocks(p_.cache.geometry().block_tokens, /*tail=*/true);
        if (i >= blocks.begin && i < blocks.end) cells.staged |= c.layers - cells.ready[kv];
      }
    }
    add_run(cells, out);
  }
}

BlockCells MapWatch::cells_of(const BlockMap::Block& block) const {
  BlockCells cells;
  for (size_t p : places_) {
    const BlockMap::Copies& copies = block.on[p];
    cells.ready[p] = copies.usable();
    cells.filling[p] = copies.present - cells.ready[p];
  }
  if (p_.cache.options().has_peers_cells()) {
    const BlockMap::Copies& copies = block.at(kHostKv);
    copies.present.for_each([&](uint32_t g) {
      if (p_.cache.is_borrowed(kHostKv, copies.by_group[g].at)) cells.at_peers.add(g);
    });
  }
  cells.shared = block.owners.size() > 1;
  return cells;
}

std::vector<MapMove> MapWatch::moves() const {
  const auto number = [](const std::optional<Place>& place) {
    return place ? static_cast<uint8_t>(index_of(*place)) : MapMove::kNowhere;
  };
  std::map<std::tuple<uint64_t, uint8_t, uint8_t>, uint32_t> sums;
  p_.cache.for_each_move([&](const KvCache::InFlight& move) {
    sums[{raw(move.seq), number(move.from), number(move.to)}] += move.cells;
  });
  std::vector<MapMove> out;
  for (const auto& [key, cells] : sums) {
    out.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), cells});
  }
  return out;
}

MapGauges MapWatch::gauges() const {
  const EngineMetrics& m = p_.metrics;
  MapGauges g;
  for (Tier tier : kAllTiers) {
    MapGauges::TierUse& use = g.tiers[index_of(tier)];
    use.bytes = p_.cache.map().total_bytes(tier);
    use.used_bytes = p_.cache.map().used_bytes(tier);
    use.cached_blocks = p_.cache.map().idle_blocks(tier);
    const auto promised = p_.cache.budget(tier).promised;
    for (uint32_t cells : promised) use.promised_cells += cells;
    g.lent_cells += p_.cache.lent_cells(tier);
  }
  g.borrowed_cells = p_.cache.borrowed_cells();
  g.recalled_cells = p_.cache.closed_borrowed_cells();
  g.transfers = p_.cache.transfers_in_flight();
  if (p_.link) {
    const LinkStats stats = p_.link->stats();
    g.queued_bytes = stats.queued_bytes;
    g.link_bytes_per_s = static_cast<uint64_t>(stats.bytes_per_s);
    g.moved_bytes = stats.bytes;
  }
  g.phases_us = {micros(m.seconds_drain),   micros(m.seconds_plan),    micros(m.seconds_commit),
                 micros(m.seconds_execute), micros(m.seconds_publish), micros(m.seconds_stalled)};
  g.prompt_tokens = m.prompt_tokens;
  g.cached_tokens = m.prompt_tokens_cached;
  g.generated_tokens = m.generation_tokens;
  g.preemptions = m.num_preemptions;
  g.swapped = m.num_preemptions_swapped;
  g.recomputed = m.num_preemptions_recomputed;
  for (size_t i = 0; i < g.finished.size(); ++i) g.finished[i] = m.finished[i];
  for (size_t i = 0; i < g.slo.size(); ++i) g.slo[i] = {m.slo[i].requests, m.slo[i].attained};
  g.goodput = {m.goodput.requests, m.goodput.attained};
  return g;
}

}  // namespace kvasir
