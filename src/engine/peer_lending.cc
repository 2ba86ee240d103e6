#include "engine/peer_lending.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutant.h"
#include "base/random.h"
#include "plan/kv_placement.h"
#include "plan/plan_checker.h"

namespace kvasir {
namespace {

// The instance's own frames, as it lends them. Where the host tier has borrowed memory, that tier is not
// lent: what is borrowed is never lent on.
class OwnCells final : public LendableCells {
 public:
  OwnCells(KvCache& cache, EngineMetrics::Peers& metrics) : cache_(cache), metrics_(metrics) {}

  std::vector<Frame> take(uint32_t cells) override {
    if (free_cells() < cells) return {};
    std::vector<Frame> frames;
    // The host's first: the instance's own requests run on device memory.
    for (Tier tier : {Tier::kHost, Tier::kDevice}) {
      if (!lends(tier)) continue;
      for (uint64_t at : cache_.lend(tier, cells - static_cast<uint32_t>(frames.size()))) {
        frames.push_back({tier, at});
      }
    }
    KV_CHECK(frames.size() == cells, "{} of {} cells", frames.size(), cells);
    return frames;
  }

  void give_back(std::span<const Frame> frames) override {
    for (const Frame& f : frames) cache_.take_back(f.tier, std::span(&f.at, 1));
  }

  uint32_t free_cells() const override {
    const auto free = [&](Tier tier) {
      return lends(tier) ? std::max<int64_t>(0, cache_.budget(tier).available_cells()) : 0;
    };
    return static_cast<uint32_t>(free(Tier::kHost) + free(Tier::kDevice));
  }

  uint32_t total_cells() const override {
    const auto all = [&](Tier tier) { return lends(tier) ? cache_.options().cells(tier) : 0; };
    return all(Tier::kHost) + all(Tier::kDevice);
  }

  Prefix show_prefix(std::span<const PrefixHash> chain) override {
    std::vector<BlockHash> hashes;
    hashes.reserve(chain.size());
    for (const PrefixHash& hash : chain) hashes.push_back({hash});
    const KvCache::ShownPrefix shown = cache_.show_prefix(hashes);
    Prefix out{raw(shown.id), {}, 0};
    for (const KvCache::Frame& f : shown.frames) out.frames.push_back({f.tier, f.at});
    out.blocks = static_cast<uint32_t>(shown.frames.size()) / cache_.geometry().groups();
    metrics_.prefix_shown += uint64_t{out.blocks} * cache_.geometry().block_tokens;
    return out;
  }
  void keep_prefix(uint64_t id, uint32_t blocks) override {
    if (!mutant(Mutant::kKeptPrefixAwaited)) cache_.keep_prefix(TransferId{id}, blocks);
  }
  void hide_prefix(uint64_t id) override { cache_.hide_prefix(TransferId{id}); }

  BlockShape block_shape() const override {
    return {cache_.geometry().block_tokens, cache_.geometry().groups()};
  }
  std::optional<std::vector<Frame>> take_blocks(std::span<const PrefixHash> chain) override {
    std::vector<BlockHash> hashes;
    hashes.reserve(chain.size());
    for (const PrefixHash& hash : chain) hashes.push_back({hash});
    const std::optional<std::vector<KvCache::Frame>> lent = cache_.lend_blocks(hashes);
    if (!lent) return std::nullopt;
    std::vector<Frame> frames;
    for (const KvCache::Frame& f : *lent) frames.push_back({f.tier, f.at});
    return frames;
  }

 private:
  bool lends(Tier tier) const { return tier == Tier::kDevice || cache_.options().borrowed_bytes == 0; }

  KvCache& cache_;
  EngineMetrics::Peers& metrics_;
};

}  // namespace

PeerLending::PeerLending(const EngineOptions& options, Lending& lending, const Clock& clock, KvCache& cache,
                         View& view, LiveRequests& requests, EngineMetrics::Peers& metrics,
                         PeerPrefixes* prefixes, PeerPrompts* prompts)
    : patience_(options.borrow_patience),
      timeout_(options.borrow_timeout),
      lending_(lending),
      clock_(clock),
      cache_(cache),
      view_(view),
      peers_(view.peers),
      requests_(requests),
      metrics_(metrics),
      prefixes_(prefixes),
      prompts_(prompts) {
  metrics_.present = true;
}

// ---------------------------------------------------------------- before a plan

void PeerLending::turn() {
  if (view_.running.empty() && view_.waiting.empty()) {
    refused_since_ = 0;
    own_ = missing_ = {};
    give_back_empty(cache_.borrowed_cells());
  }
  OwnCells own(cache_, metrics_);
  const LendingEvents events = lending_.turn(next_request(), own);
  const Nanos now = clock_.now();
  if (ask_again_at_ > 0 && (now >= ask_again_at_ || view_.waiting.empty())) {
    ask_again_at_ = 0;
    refused_since_ = 0;
  }
  // First, as what is granted may be recalled or lost in the same turn.
  if (prompts_) prompts_->take_in(events);
  if (prefixes_) prefixes_->take_in(events);
  take_in(events);
  note_answers(events, now);
  show(events, now);
  count(events);
}

LendingRequest PeerLending::next_request() {
  LendingRequest request;
  if (prefixes_) prefixes_->add_to(request);
  request.borrow = std::exchange(borrow_, 0);
  request.returned = cache_.take_departed();
  request.recall = std::exchange(recall_, 0);
  request.own = own_;
  request.missing = missing_;
  // Running requests may still need what is borrowed, and it may have been borrowed for the first waiting
  // one.
  if (!view_.waiting.empty()) request.needed_since = view_.waiting.front().arrival;
  for (const SeqView& seq : view_.running) request.needed_since = std::min(request.needed_since, seq.arrival);
  peers_.asked += request.borrow;
  if (prompts_) prompts_->add_to(request);
  return request;
}

// What a peer wants back may be needed here: it is gone when that has ended, or at the latest when the peer
// takes it.
void PeerLending::take_in(const LendingEvents& events) {
  cache_.add_borrowed(events.granted);
  cache_.keep_borrowed(events.kept);
  cache_.close_borrowed(events.recalled);
  cache_.lose_borrowed(events.lost);
  // Cells in which only cached prefixes lie go to the peer's request that waits for memory, unless an older
  // one waits here.
  const Nanos awaited = events.awaited.since;
  const bool later = view_.waiting.empty() || view_.waiting.front().arrival > awaited;
  if (awaited != INT64_MAX && later) cache_.close_borrowed(cache_.idle_borrowed());
}

void PeerLending::note_answers(const LendingEvents& events, Nanos now) {
  const auto granted = static_cast<uint32_t>(events.granted.size());
  peers_.asked -= std::min(peers_.asked, granted + events.refused);
  missing_.cells -= std::min(missing_.cells, granted);
  if (granted > 0) refused_since_ = 0;
  lendable_ = events.lendable;
  if (events.refused > 0 && refused_since_ == 0) refused_since_ = now;
}

void PeerLending::show(const LendingEvents& events, Nanos now) {
  peers_.awaited = events.awaited.cells;
  peers_.awaited_since = events.awaited.since;
  peers_.borrowed = cache_.borrowed_cells();
  peers_.recalled = cache_.closed_borrowed_cells();
  peers_.lent = cache_.lent_cells(Tier::kDevice) + cache_.lent_cells(Tier::kHost) + cache_.kept_cells();
  if (!events.recalled.empty() && (peers_.recalled_by == 0 || events.recalled_by < peers_.recalled_by)) {
    peers_.recalled_by = events.recalled_by;
  }
  if (peers_.recalled == 0) peers_.recalled_by = 0;
  peers_.in_recalled = cache_.in_closed_borrowed();
  peers_.peers_refuse = refused_since_ > 0 && now - refused_since_ >= patience_;
  if (peers_.peers_refuse) {
    peers_.out_of_reach = peers_.most_borrowed;
  } else if (peers_.borrowed + peers_.recalled + peers_.asked == 0) {
    peers_.out_of_reach = 0;
  }
  peers_.out_of_reach = std::min(peers_.out_of_reach, peers_.most_borrowed - peers_.borrowed);
}

void PeerLending::count(const LendingEvents& events) {
  metrics_.borrowed_cells = peers_.borrowed;
  metrics_.recalled_cells = peers_.recalled;
  metrics_.lent_cells = peers_.lent;
  metrics_.granted += events.granted.size();
  for (const PromptAnswer& answer : events.prompts_found) metrics_.granted += answer.cells.size();
  metrics_.refused += events.refused;
  metrics_.lost += events.lost.size();
}

void PeerLending::give_back_empty(uint32_t cells) {
  cache_.close_borrowed(cache_.empty_borrowed(cells));
}

// ---------------------------------------------------------------- after a plan

void PeerLending::ask(const StepPlan& plan, bool steps_in_flight) {
  const uint32_t kept = prompts_ ? prompts_->reserved() : 0;
  const uint32_t reached = peers_.borrowed + peers_.recalled + peers_.asked + kept;
  const uint32_t room = peers_.most_borrowed - std::min(peers_.most_borrowed, reached);
  borrow_ = std::min(plan.borrow_cells, room);
  const bool moves = steps_in_flight || !plan.rows.empty() || !plan.copies.empty() ||
                     cache_.transfers_in_flight() > cache_.prefixes_shown();
  own_ = claim_own(plan, moves);
  const auto free = static_cast<uint32_t>(std::max<int64_t>(0, view_.device.available_cells()));
  recall_ = std::min(peers_.lent, own_.cells - std::min(own_.cells, free));
  // What the first request lacks may also be memory of a slower tier, or more than its tokens take.
  const bool waits = peers_.asked > 0 || plan.borrow_cells > 0 || yields_to_peer(view_);
  const bool ends = !plan.failures.empty() || !plan.preemptions.empty();
  if (recall_ == 0 && !moves && !waits && !ends && own_.cells > 0) recall_ = peers_.lent;
  // While the first request asks for nothing, it still lacks what it lacked.
  if (ask_again_at_ == 0) {
    const std::vector<SeqView>& oldest = view_.waiting.empty() ? view_.running : view_.waiting;
    missing_.cells = peers_.asked + borrow_;
    missing_.since = oldest.empty() ? view_.now : oldest.front().arrival;
  }

  // A refusal counts while this instance asks, and while a waiting request makes do with what there is.
  const bool makes_do = peers_.peers_refuse && !view_.waiting.empty();
  if (plan.borrow_cells == 0 && peers_.asked == 0 && !makes_do) refused_since_ = 0;
  if (plan.return_cells > 0) give_back_empty(plan.return_cells);
}

// What the instance's requests need of its own memory: those preempted, the one that runs if nothing moves
// (no other can be preempted for it), and the first that waits.
MemoryClaim PeerLending::claim_own(const StepPlan& plan, bool moves) const {
  const CacheGeometry& g = view_.geometry;
  MemoryClaim claim = {0, INT64_MAX};
  const auto add = [&](Nanos arrival, uint32_t cells) {
    claim.cells += std::min(cells, view_.total_cells(Tier::kDevice));
    claim.since = std::min(claim.since, arrival);
  };
  const auto cells = [&](uint32_t tokens) { return g.blocks_for(tokens) * g.groups(); };
  for (const Preemption& p : plan.preemptions) {
    const LiveRequest& preempted = *requests_.find(p.seq);
    add(preempted.arrival, cells(preempted.known_tokens()));
  }
  if (!moves && !view_.running.empty()) {
    add(view_.running.front().arrival, cells(view_.running.front().known_tokens));
  }
  if (view_.waiting.empty()) return claim;
  const SeqView& head = view_.waiting.front();
  const auto its_own = [&](const Rows& r) { return r.seq == head.id; };
  if (std::any_of(plan.rows.begin(), plan.rows.end(), its_own)) return claim;
  const KvPlacement where = KvPlacement::of(g.blocks_for(head.max_total_tokens), view_.capacity());
  const uint32_t own = where.device_cells(g.blocks_for(head.known_tokens), g.groups());
  add(head.arrival, own + (where.streams ? 2 * g.groups() : 0));
  return claim;
}

// ---------------------------------------------------------------- waiting

// Peers may give back what the first request needs. While an older request waits at another instance, this
// one gives back the little that it has borrowed, or each would keep what the other lacks; it asks again
// after a random time. The oldest request of all keeps what it has, and goes on asking.
bool PeerLending::keeps_waiting() {
  if (peers_.most_borrowed == 0 || !view_.running.empty()) return false;
  const Nanos now = clock_.now();
  if (ask_again_at_ > 0) return true;
  const SeqView& head = view_.waiting.front();
  if (stuck_since_ == 0 || stuck_ != head.id) {
    stuck_ = head.id;
    stuck_since_ = now;
    beyond_reach_since_ = 0;
  }
  if (within_reach(head)) {
    beyond_reach_since_ = 0;
  } else if (beyond_reach_since_ == 0) {
    beyond_reach_since_ = now;
  }
  if (now - stuck_since_ >= timeout_ || (beyond_reach_since_ > 0 && now - beyond_reach_since_ >= patience_)) {
    stuck_since_ = beyond_reach_since_ = 0;
    return false;
  }
  double part = 0;
  if (head.arrival > peers_.awaited_since) {
    give_back_empty(cache_.borrowed_cells());
    part = random_unit(static_cast<uint64_t>(now), raw(head.id), 0);
  }
  ask_again_at_ = now + patience_ / 4 + static_cast<Nanos>(part * static_cast<double>(patience_));
  return true;
}

bool PeerLending::within_reach(const SeqView& seq) const {
  CellCapacity capacity = view_.capacity();
  capacity.borrowed_cells = std::min(peers_.most_borrowed, lendable_);
  return KvPlacement::of(view_.geometry.blocks_for(seq.max_total_tokens), capacity).fits;
}

bool PeerLending::expects_something() const {
  return peers_.asked > 0 || borrow_ > 0 || recall_ > 0 || ask_again_at_ > 0 || yields_to_peer(view_);
}

}  // namespace kvasir
