#include "cluster/broker/broker.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace kvasir::cluster {

void Broker::begin_turn(LendableCells& own) {
  frames_.begin_turn(own);
}

LendingEvents Broker::end_turn(const LendingRequest& request, Nanos now) {
  take_returned(request, now);
  // What the engine returns in the turn in which a life ends it is not told to have lost.
  std::erase_if(events_.lost, [&](uint32_t cell) {
    return std::find(request.returned.begin(), request.returned.end(), cell) != request.returned.end();
  });
  if (life_) {
    ControlPlane& control = life_->control;
    if (leaving_ && !std::exchange(life_->told_to_leave, true)) control.leave(now);
    control.rmanager().lender().keep_for_own(request.own.cells, request.own.since);
    if (request.recall > 0) control.recall(request.recall, now, request.own.since);
    control.wait_for(leaving_ ? 0 : request.missing.cells, now, request.missing.since, request.needed_since);
    wish(request.borrow, now, request.missing.cells > 0 ? request.missing.since : now);
    control.tick(now);
    for (const BorrowEvent& event : control.take_events()) heed(event, now);
    const Lender::Claim awaited = control.rmanager().lender().awaited();
    events_.awaited = {awaited.blocks, awaited.since};
    std::erase_if(refused_, [&](const auto& refused) {
      if (refused.first > now) return false;
      events_.refused += refused.second;
      return true;
    });
  } else {
    events_.refused += request.borrow;
  }
  frames_.end_turn();
  return std::exchange(events_, {});
}

void Broker::tick(Nanos now) {
  if (life_) life_->control.tick(now);
}

bool Broker::gone() const {
  return leaving_ && frames_.empty() &&
         (!life_ || (life_->told_to_leave && life_->control.rmanager().gone()));
}

Nanos Broker::next_deadline() const {
  Nanos next = life_ ? life_->control.next_deadline() : INT64_MAX;
  for (const auto& [due, cells] : refused_) next = std::min(next, due);
  return next;
}

// ---------------------------------------------------------------- what was heard

void Broker::begin_life(const PeerId& self) {
  KV_CHECK(!life_, "{} begins while a life is at hand", name_of(self));
  life_ = std::make_unique<Life>(options_, transport_, self, frames_);
}

void Broker::end_life() {
  if (!life_) return;
  Lender& lender = life_->control.rmanager().lender();
  for (const auto& [debtor, blocks] : lender.by_debtor()) lender.debtor_lost(debtor);
  KV_CHECK(lender.pinned_leftovers() == 0, "{} lent blocks are pinned still", lender.pinned_leftovers());
  life_ = nullptr;
  const std::vector<uint32_t> lost = cells_.lose_all();
  events_.lost.insert(events_.lost.end(), lost.begin(), lost.end());
  for (const Wish& w : wishes_) events_.refused += w.cells;
  wishes_.clear();
  for (const auto& [due, cells] : refused_) events_.refused += cells;
  refused_.clear();
}

void Broker::handle(const PeerMessage& message, Nanos now) {
  if (life_) life_->control.handle(message, now);
}

void Broker::joined(const PeerId& peer, Nanos now) {
  if (life_) life_->control.joined(peer, now);
}

void Broker::lost(const PeerId& peer, Nanos now) {
  if (life_) life_->control.lost(peer, now);
}

void Broker::leader(const PeerId& peer, uint64_t term, Nanos now) {
  if (life_) life_->control.leader(peer, term, now);
}

void Broker::directory(bool reached) {
  if (!life_) return;
  if (reached) {
    life_->control.directory_up();
  } else {
    life_->control.directory_down();
  }
}

// ---------------------------------------------------------------- what the engine wants

// Cells of one contract that come back in a turn go back together.
void Broker::take_returned(const LendingRequest& request, Nanos now) {
  struct Back {
    ContractRef contract;
    std::vector<uint32_t> slots;
  };
  std::vector<Back> back;
  for (uint32_t cell : request.returned) {
    const std::optional<BorrowedCells::Place> place = cells_.returned(cell);
    if (!place) continue;
    auto it =
        std::find_if(back.begin(), back.end(), [&](const Back& b) { return b.contract == place->contract; });
    if (it == back.end()) it = back.insert(back.end(), {place->contract, {}});
    it->slots.push_back(place->slot);
    places_.unmap(place->contract, place->slot);
    cells_.given_back(cell);
  }
  for (const Back& b : back) life_->control.give_back(b.contract, b.slots, now);
}

// A large wish is asked for in parts: a contract has one creditor.
void Broker::wish(uint32_t cells, Nanos now, Nanos since) {
  if (cells == 0) return;
  uint32_t wished = 0;
  for (const Wish& w : wishes_) wished += w.cells;
  const uint32_t numbers = cells_.free() - std::min(cells_.free(), wished);
  const uint32_t asked = leaving_ ? 0 : std::min(cells, numbers);
  refuse(cells - asked, now);
  for (uint32_t left = asked; left > 0;) {
    const uint32_t part = std::min(left, options_.cells_at_a_time);
    wishes_.push_back({life_->control.borrow(part, now, since), part, since});
    left -= part;
  }
}

void Broker::refuse(uint32_t cells, Nanos now) {
  if (cells > 0) refused_.emplace_back(now + options_.protocol.heartbeat, cells);
}

// ---------------------------------------------------------------- what became of it

void Broker::heed(const BorrowEvent& event, Nanos now) {
  const auto wish =
      std::find_if(wishes_.begin(), wishes_.end(), [&](const Wish& w) { return w.request == event.request; });
  switch (event.kind) {
    case BorrowEvent::Kind::kGranted:
      for (const BorrowedCells::Run& run : cells_.grant(event.contract, event.blocks)) {
        places_.map(event.contract, run.first_slot, run.first, run.count);
        for (uint32_t i = 0; i < run.count; ++i) events_.granted.push_back(run.first + i);
      }
      if (wish != wishes_.end()) wishes_.erase(wish);
      return;
    case BorrowEvent::Kind::kRefused: {
      if (wish == wishes_.end()) return;
      // A peer has fewer: that is better than nothing.
      const uint32_t less = std::min(event.blocks, wish->cells - 1);
      refuse(wish->cells - less, now);
      if (less == 0) {
        wishes_.erase(wish);
      } else {
        *wish = {life_->control.borrow(less, now, wish->since), less, wish->since};
      }
      return;
    }
    case BorrowEvent::Kind::kRecalled:
    case BorrowEvent::Kind::kVacate: {
      const bool vacate = event.kind == BorrowEvent::Kind::kVacate;
      std::vector<uint32_t> cells = cells_.of(event.contract);
      if (!vacate && event.blocks == 0) {
        const std::set<uint32_t> kept(cells.begin(), cells.end());
        std::erase_if(events_.recalled, [&](uint32_t cell) { return kept.contains(cell); });
        events_.kept.insert(events_.kept.end(), cells.begin(), cells.end());
        return;
      }
      if (!vacate && event.blocks < cells.size()) cells.resize(event.blocks);
      // Another statement of the same turn may have said so, too.
      std::erase_if(cells, [&](uint32_t cell) {
        return std::find(events_.recalled.begin(), events_.recalled.end(), cell) != events_.recalled.end();
      });
      if (cells.empty()) return;
      const Nanos by = vacate ? INT64_MAX : event.by;
      events_.recalled_by = events_.recalled.empty() ? by : std::min(events_.recalled_by, by);
      events_.recalled.insert(events_.recalled.end(), cells.begin(), cells.end());
      return;
    }
    case BorrowEvent::Kind::kLost: {
      const std::vector<uint32_t> cells = cells_.lose(event.contract);
      events_.lost.insert(events_.lost.end(), cells.begin(), cells.end());
      places_.unmap(event.contract);
      return;
    }
    case BorrowEvent::Kind::kFrozen:
    case BorrowEvent::Kind::kThawed:
      return;  // what is given back meanwhile waits in the borrower
  }
}

}  // namespace kvasir::cluster
