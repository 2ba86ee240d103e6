// Engine: memory that is borrowed from other instances, and lent to them.
#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "contract/residence.h"
#include "engine/engine.h"

namespace kvasir {

// ---------------------------------------------------------------- what it has to lend

std::vector<LendableCells::Frame> Engine::OwnCells::take(uint32_t cells) {
  if (free_cells() < cells) return {};
  std::vector<Frame> frames;
  // Device memory is what this instance's own requests run on; of the host tier, what is borrowed stays.
  for (Tier tier : {Tier::kHost, Tier::kDevice}) {
    if (tier == Tier::kHost && cache_.options().borrowed_bytes > 0) continue;
    for (uint64_t at : cache_.lend(tier, cells - static_cast<uint32_t>(frames.size()))) {
      frames.push_back({tier, at});
    }
  }
  KV_CHECK(frames.size() == cells, "{} of {} cells", frames.size(), cells);
  return frames;
}

void Engine::OwnCells::give_back(std::span<const Frame> frames) {
  for (const Frame& f : frames) cache_.take_back(f.tier, std::span(&f.at, 1));
}

// What is borrowed is never lent on.
uint32_t Engine::OwnCells::free_cells() const {
  const auto free = [&](Tier tier) { return std::max<int64_t>(0, cache_.budget(tier).available_cells()); };
  const int64_t host = cache_.options().borrowed_bytes > 0 ? 0 : free(Tier::kHost);
  return static_cast<uint32_t>(host + free(Tier::kDevice));
}

uint32_t Engine::OwnCells::total_cells() const {
  const CacheOptions& o = cache_.options();
  return o.cells(Tier::kDevice) + (o.borrowed_bytes > 0 ? 0 : o.cells(Tier::kHost));
}

// ---------------------------------------------------------------- a turn

void Engine::deal_with_peers() {
  if (!lending_) return;
  if (view_.running.empty() && view_.waiting.empty()) {
    refused_since_ = 0;
    own_claim_ = lacking_ = {};
    cache_.close_borrowed(cache_.empty_borrowed(cache_.borrowed_cells()));
  }
  LendingRequest request;
  request.borrow = std::exchange(borrow_next_, 0);
  request.returned = cache_.take_departed();
  request.recall = std::exchange(recall_next_, 0);
  request.own = own_claim_;
  request.lacking = lacking_;
  // Any that runs may need it yet, and the first that waits is what it may be borrowed for.
  if (!view_.waiting.empty()) request.needed_since = view_.waiting.front().arrival;
  for (const SeqView& seq : view_.running) request.needed_since = std::min(request.needed_since, seq.arrival);
  PeersView& view = view_.peers;
  view.asked += request.borrow;
  OwnCells own(cache_);
  const LendingEvents events = lending_->turn(request, own);
  const Nanos now = clock_.now();
  if (ask_again_at_ > 0 && (now >= ask_again_at_ || view_.waiting.empty())) {
    ask_again_at_ = 0;
    refused_since_ = 0;
  }

  cache_.add_borrowed(events.granted);
  // What a peer wants back may be needed here: it is gone when that has ended, or at the latest when the peer
  // takes it.
  cache_.keep_borrowed(events.kept);
  cache_.close_borrowed(events.recalled);
  cache_.lose_borrowed(events.lost);
  view.awaited = events.awaited.cells;
  view.awaited_since = events.awaited.since;
  // What is only kept is of use to the request that waits elsewhere, if none that came before it waits here.
  const bool later = view_.waiting.empty() || view_.waiting.front().arrival > view.awaited_since;
  if (view.awaited_since != INT64_MAX && later) cache_.close_borrowed(cache_.idle_borrowed());
  const auto granted = static_cast<uint32_t>(events.granted.size());
  view.asked -= std::min(view.asked, granted + events.refused);
  if (granted > 0) refused_since_ = 0;
  if (events.refused > 0 && refused_since_ == 0) refused_since_ = now;
  view.borrowed = cache_.borrowed_cells();
  view.recalled = cache_.closed_borrowed_cells();
  lacking_.cells -= std::min(lacking_.cells, granted);
  view.lent = cache_.lent_cells(Tier::kDevice) + cache_.lent_cells(Tier::kHost);
  if (!events.recalled.empty() && (view.recalled_by == 0 || events.recalled_by < view.recalled_by)) {
    view.recalled_by = events.recalled_by;
  }
  if (view.recalled == 0) view.recalled_by = 0;
  view.in_recalled = cache_.in_closed_borrowed();
  view.nobody_lends = refused_since_ > 0 && now - refused_since_ >= options_.borrow_patience;
  if (view.nobody_lends) view.out_of_reach = view.most_borrowed;
  if (view.borrowed + view.recalled + view.asked == 0 && !view.nobody_lends) view.out_of_reach = 0;
  view.out_of_reach = std::min(view.out_of_reach, view.most_borrowed - view.borrowed);

  metrics_.peers.borrowed_cells = view.borrowed;
  metrics_.peers.recalled_cells = view.recalled;
  metrics_.peers.lent_cells = view.lent;
  metrics_.peers.granted += granted;
  metrics_.peers.refused += events.refused;
  metrics_.peers.lost += events.lost.size();
  void_cut_back();
}

// Instead of failing the first request: others may give back what it needs. Where an older one waits
// somewhere, what this one has of peers is too little and goes back, or each would keep what the other lacks;
// then it asks again, after a while of its own. The oldest keeps what it has, and asks on.
bool Engine::waits_for_peers() {
  if (view_.peers.most_borrowed == 0 || !view_.running.empty()) return false;
  const Nanos now = clock_.now();
  if (ask_again_at_ > 0) return true;
  const SeqId head = view_.waiting.front().id;
  if (stuck_since_ == 0 || stuck_ != head) {
    stuck_ = head;
    stuck_since_ = now;
  }
  if (now - stuck_since_ >= options_.borrow_timeout) {
    stuck_since_ = 0;
    return false;
  }
  double part = 0;
  if (view_.waiting.front().arrival > view_.peers.awaited_since) {
    cache_.close_borrowed(cache_.empty_borrowed(cache_.borrowed_cells()));
    part = random_unit(static_cast<uint64_t>(now), raw(head), 0);
  }
  ask_again_at_ = now + options_.borrow_patience / 4 +
                  static_cast<Nanos>(part * static_cast<double>(options_.borrow_patience));
  return true;
}

// Of its own memory, what its own requests need: those that were preempted, the last one that runs and has
// nobody to stop, and the first that waits.
MemoryClaim Engine::claim_own(const StepPlan& plan) {
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
  const bool nothing_moves =
      plan.rows.empty() && plan.copies.empty() && in_flight_.empty() && cache_.transfers_in_flight() == 0;
  if (nothing_moves && !view_.running.empty()) {
    add(view_.running.front().arrival, cells(view_.running.front().known_tokens));
  }
  if (view_.waiting.empty()) return claim;
  const SeqView& head = view_.waiting.front();
  const auto its_own = [&](const Rows& r) { return r.seq == head.id; };
  if (std::any_of(plan.rows.begin(), plan.rows.end(), its_own)) return claim;
  const uint32_t blocks = g.blocks_for(head.max_total_tokens);
  const Residence where = Residence::of(blocks, view_.capacity());
  add(head.arrival, where.streams ? blocks * where.kept_groups + 2 * g.groups() : cells(head.known_tokens));
  return claim;
}

// What a plan wants of peers, for the next turn.
void Engine::ask_peers(const StepPlan& plan) {
  if (!lending_) return;
  const uint32_t room =
      view_.peers.most_borrowed -
      std::min(view_.peers.most_borrowed, view_.peers.borrowed + view_.peers.recalled + view_.peers.asked);
  borrow_next_ = std::min(plan.borrow_cells, room);
  own_claim_ = claim_own(plan);
  const auto free = static_cast<uint32_t>(std::max<int64_t>(0, view_.device.available_cells()));
  recall_next_ = std::min(view_.peers.lent, own_claim_.cells - std::min(own_claim_.cells, free));
  // While it asks for nothing for a while it lacks what it lacked.
  if (ask_again_at_ == 0) {
    const std::vector<SeqView>& oldest = view_.waiting.empty() ? view_.running : view_.waiting;
    lacking_.cells = view_.peers.asked + borrow_next_;
    lacking_.since = oldest.empty() ? view_.now : oldest.front().arrival;
  }

  // Who needs nothing has nothing to be refused; who waits makes do with what is there.
  const bool makes_do = view_.peers.nobody_lends && !view_.waiting.empty();
  if (plan.borrow_cells == 0 && view_.peers.asked == 0 && !makes_do) refused_since_ = 0;
  if (plan.return_cells > 0) cache_.close_borrowed(cache_.empty_borrowed(plan.return_cells));
}

}  // namespace kvasir
