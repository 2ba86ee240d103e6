#include "cluster/broker/broker.h"

#include <algorithm>
#include <numeric>
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
  if (!events_.lost.empty()) {
    const std::set<uint32_t> returned(request.returned.begin(), request.returned.end());
    std::erase_if(events_.lost, [&](uint32_t cell) { return returned.contains(cell); });
  }
  if (request.borrow > 0 && asked_ == 0) asked_since_ = now;
  asked_ += request.borrow;
  if (life_) {
    ControlPlane& control = life_->control;
    if (leaving_ && !std::exchange(life_->told_to_leave, true)) control.leave(now);
    Lender& lender = control.rmanager().lender();
    lender.keep_for_own(request.own.cells, request.own.since);
    if (request.recall > 0) control.recall(request.recall, now, request.own.since);
    for (const BorrowEvent& event : control.take_events()) heed(event, now);
    ask_for_prompts(request, now);
    want(request, now);
    ask_for_prefixes(request, now);
    control.tick(now);
    for (const BorrowEvent& event : control.take_events()) heed(event, now);
    tell_of_prefixes();
    tell_of_prompts();
    const Lender::Claim awaited = lender.awaited();
    events_.awaited = {awaited.blocks, awaited.since};
  } else {
    refuse_at_ = now;
    ask_for_prefixes(request, now);
    ask_for_prompts(request, now);
  }
  if (now >= refuse_at_) {
    events_.refused += std::exchange(asked_, 0);
    refuse_at_ = INT64_MAX;
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
  return life_ ? std::min(life_->control.next_deadline(), refuse_at_) : refuse_at_;
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
  life_->control.prefixes().leave();
  life_->control.prompts().leave();
  for (const uint64_t job : life_->control.prompts().take_dropped()) events_.prompts_dropped.push_back(job);
  lender.collect_unpinned();
  KV_CHECK(lender.pinned_leftovers() == 0, "{} lent blocks are pinned still", lender.pinned_leftovers());
  life_ = nullptr;
  const std::vector<uint32_t> lost = cells_.lose_all();
  events_.lost.insert(events_.lost.end(), lost.begin(), lost.end());
  for (const uint32_t cell : attended_.lose_all()) events_.lost.push_back(options_.borrowable_cells + cell);
  for (const auto& [question, cells] : std::exchange(keeping_, {}))
    events_.prefixes_kept.push_back({question, {}});
  events_.refused += std::exchange(asked_, 0);
  refuse_at_ = INT64_MAX;
  for (const auto& [question, shown] : prefixes_) {
    if (!shown) events_.prefixes_found.push_back({question, {}, {}});
  }
  for (const auto& [question, cells] : std::exchange(prompts_, {}))
    events_.prompts_found.push_back({question, {}});
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

void Broker::directory(bool reached, Nanos now) {
  if (life_) life_->control.directory(reached, now);
}

// ---------------------------------------------------------------- what the engine wants

// Cells of one contract that come back in a turn go back together.
void Broker::take_returned(const LendingRequest& request, Nanos now) {
  std::vector<uint32_t> borrowed, attended;
  for (const uint32_t cell : request.returned) {
    if (cell < options_.borrowable_cells) {
      borrowed.push_back(cell);
    } else {
      attended.push_back(cell - options_.borrowable_cells);
    }
  }
  std::vector<BorrowedCells::Returned> returned = cells_.returned(borrowed);
  for (BorrowedCells::Returned& back : attended_.returned(attended)) returned.push_back(std::move(back));
  for (const BorrowedCells::Returned& back : returned) {
    for (size_t i = 0, end = 0; i < back.slots.size(); i = end) {
      end = i + 1;
      while (end < back.slots.size() && back.slots[end] == back.slots[i] + (end - i)) ++end;
      places_.unmap(back.contract, back.slots[i], static_cast<uint32_t>(end - i));
    }
    life_->control.give_back(back.contract, back.slots, now);
  }
}

void Broker::want(const LendingRequest& request, Nanos now) {
  // What has been granted in this turn the engine does not know yet.
  const auto granted = static_cast<uint32_t>(events_.granted.size());
  const uint32_t lacks = request.missing.cells - std::min(request.missing.cells, granted);
  Want want;
  want.most = leaving_ ? 0 : std::min(std::max(lacks, asked_), cells_.free() - kept_for_prompts());
  want.least = request.least - std::min(request.least, granted);
  want.since = lacks > 0 ? request.missing.since : asked_since_;
  want.hold = request.hold;
  life_->control.want(want, request.needed_since, now);
  if (asked_ > 0 && refuse_at_ == INT64_MAX) refuse_at_ = now + options_.protocol.heartbeat;
}

void Broker::ask_for_prefixes(const LendingRequest& request, Nanos now) {
  for (const uint64_t question : request.prefixes_done) {
    const auto it = prefixes_.find(question);
    if (it == prefixes_.end()) continue;
    keeping_.erase(question);
    if (const std::optional<ContractRef> shown = it->second) {
      forget_shown(*shown);
      if (life_) life_->control.prefixes().done(*shown);
    } else if (life_) {
      life_->control.prefixes().forget(question);
    }
    std::erase_if(events_.prefixes_found, [&](const PrefixAnswer& a) { return a.id == question; });
    std::erase_if(events_.prefixes_kept, [&](const PrefixKeptAnswer& a) { return a.id == question; });
    prefixes_.erase(it);
  }
  for (const PrefixQuestion& question : request.prefixes_wanted) {
    prefixes_[question.id] = std::nullopt;
    if (life_ && !leaving_) {
      life_->control.prefixes().ask(question, now);
    } else {
      events_.prefixes_found.push_back({question.id, {}, {}});
    }
  }
  keep_prefixes(request, now);
}

void Broker::keep_prefixes(const LendingRequest& request, Nanos now) {
  for (const PrefixKept& wanted : request.prefixes_kept) {
    const auto it = prefixes_.find(wanted.id);
    if (it == prefixes_.end()) continue;
    const bool room = wanted.cells <= attended_.free() - kept_for_prefixes();
    if (life_ && !leaving_ && it->second && room) {
      keeping_[wanted.id] = wanted.cells;
      life_->control.prefixes().keep(*it->second, wanted.cells, wanted.since, now);
    } else {
      events_.prefixes_kept.push_back({wanted.id, {}});
    }
  }
}

uint32_t Broker::kept_for_prefixes() const {
  uint32_t cells = 0;
  for (const auto& [question, of_it] : keeping_) cells += of_it;
  return cells;
}

void Broker::forget_shown(const ContractRef& shown) {
  places_.unmap(shown);
  prefix_cells_.returned(prefix_cells_.lose(shown));
}

void Broker::tell_of_prefixes() {
  PrefixExchange& exchange = life_->control.prefixes();
  for (const PrefixExchange::Answer& answer : exchange.take_answers()) {
    PrefixAnswer out{answer.question, {}, {}};
    // A peer may not answer two questions with the same contract.
    const bool twice = std::any_of(prefixes_.begin(), prefixes_.end(),
                                   [&](const auto& p) { return p.second == answer.shown; });
    if (answer.cells > prefix_cells_.free()) {
      exchange.done(answer.shown);
    } else if (answer.cells > 0 && !twice) {
      for (const BorrowedCells::Run& run : prefix_cells_.grant(answer.shown, answer.cells)) {
        const uint32_t first = options_.borrowable_cells + options_.attended_cells + run.first;
        places_.map(answer.shown, run.first_slot, first, run.count);
        for (uint32_t i = 0; i < run.count; ++i) out.cells.push_back(first + i);
      }
      out.peer = answer.shown.creditor.instance;
      prefixes_[answer.question] = answer.shown;
    }
    events_.prefixes_found.push_back(std::move(out));
  }
  for (const ContractRef& shown : exchange.take_refused()) {
    const auto it =
        std::find_if(prefixes_.begin(), prefixes_.end(), [&](const auto& p) { return p.second == shown; });
    if (it != prefixes_.end() && keeping_.erase(it->first) > 0)
      events_.prefixes_kept.push_back({it->first, {}});
  }
}

// What was shown of these cells has ended with the loan.
void Broker::take_kept(const ContractRef& shown, const BorrowEvent& event, Nanos now) {
  const auto it =
      std::find_if(prefixes_.begin(), prefixes_.end(), [&](const auto& p) { return p.second == shown; });
  if (it == prefixes_.end() || keeping_.erase(it->first) == 0) return give_back_from(event, 0, now);
  PrefixKeptAnswer answer{it->first, {}};
  prefixes_.erase(it);
  forget_shown(shown);
  KV_CHECK(event.blocks <= attended_.free(), "{} cells are kept, {} numbers are free", event.blocks,
           attended_.free());
  for (const BorrowedCells::Run& run : attended_.grant(event.contract, event.blocks)) {
    const uint32_t first = options_.borrowable_cells + run.first;
    places_.map(event.contract, run.first_slot, first, run.count);
    for (uint32_t i = 0; i < run.count; ++i) answer.cells.push_back(first + i);
  }
  events_.prefixes_kept.push_back(std::move(answer));
}

std::vector<uint32_t> Broker::cells_of(const ContractRef& contract) const {
  std::vector<uint32_t> cells = cells_.of(contract);
  for (const uint32_t cell : attended_.of(contract)) cells.push_back(options_.borrowable_cells + cell);
  return cells;
}

std::vector<uint32_t> Broker::lose(const ContractRef& contract) {
  std::vector<uint32_t> cells = cells_.lose(contract);
  for (const uint32_t cell : attended_.lose(contract)) cells.push_back(options_.borrowable_cells + cell);
  return cells;
}

void Broker::ask_for_prompts(const LendingRequest& request, Nanos now) {
  for (const uint64_t question : request.prompts_done) {
    if (prompts_.erase(question) > 0) life_->control.prompts().forget(question);
  }
  for (const PromptQuestion& question : request.prompts_wanted) {
    // What has been asked for may come before the answer.
    const uint64_t expected = life_ ? std::max(asked_, life_->control.rmanager().borrower().expected()) : 0;
    const bool room = expected + kept_for_prompts() + question.cells <= cells_.free();
    if (life_ && !leaving_ && room) {
      prompts_[question.id] = question.cells;
      life_->control.prompts().ask(question, now);
    } else {
      events_.prompts_found.push_back({question.id, {}});
    }
  }
  if (!life_) return;
  for (const auto& [job, chain] : request.prompts_computed)
    life_->control.prompts().computed(job, chain, now);
}

uint32_t Broker::kept_for_prompts() const {
  uint32_t cells = 0;
  for (const auto& [question, of_it] : prompts_) cells += of_it;
  return std::min(cells, cells_.free());
}

void Broker::tell_of_prompts() {
  PromptLoans& prompts = life_->control.prompts();
  for (const uint64_t question : prompts.take_refused()) {
    if (prompts_.erase(question) > 0) events_.prompts_found.push_back({question, {}});
  }
  events_.prompts_to_compute = prompts.take_jobs();
  for (const uint64_t job : prompts.take_dropped()) events_.prompts_dropped.push_back(job);
}

// ---------------------------------------------------------------- what became of it

void Broker::heed(const BorrowEvent& event, Nanos now) {
  switch (event.kind) {
    case BorrowEvent::Kind::kGranted: {
      if (const auto question = life_->control.prompts().take_question(event.contract)) {
        return take_computed(*question, event, now);
      }
      if (const auto shown = life_->control.prefixes().take_kept(event.contract)) {
        return take_kept(*shown, event, now);
      }
      const uint32_t taken = std::min(event.blocks, cells_.free() - kept_for_prompts());
      give_back_from(event, taken, now);
      for (const BorrowedCells::Run& run : cells_.grant(event.contract, taken)) {
        places_.map(event.contract, run.first_slot, run.first, run.count);
        for (uint32_t i = 0; i < run.count; ++i) events_.granted.push_back(run.first + i);
      }
      asked_ -= std::min(asked_, taken);
      refuse_at_ = asked_ > 0 ? now + options_.protocol.heartbeat : INT64_MAX;
      return;
    }
    case BorrowEvent::Kind::kRecalled:
    case BorrowEvent::Kind::kVacate:
      return recall(event);
    case BorrowEvent::Kind::kLost: {
      const std::vector<uint32_t> cells = lose(event.contract);
      events_.lost.insert(events_.lost.end(), cells.begin(), cells.end());
      places_.unmap(event.contract);
      return;
    }
  }
}

void Broker::give_back_from(const BorrowEvent& event, uint32_t first, Nanos now) {
  if (first == event.blocks) return;
  std::vector<uint32_t> slots(event.blocks - first);
  std::iota(slots.begin(), slots.end(), first);
  life_->control.give_back(event.contract, slots, now);
}

// The cells of a prompt that a peer has computed, if there is still use and room for them.
void Broker::take_computed(uint64_t question, const BorrowEvent& event, Nanos now) {
  const bool wanted = prompts_.erase(question) > 0;
  PromptAnswer answer{question, {}};
  const uint32_t expected = life_->control.rmanager().borrower().expected() + kept_for_prompts();
  if (!wanted || event.blocks + expected > cells_.free()) {
    give_back_from(event, 0, now);
  } else {
    for (const BorrowedCells::Run& run : cells_.grant(event.contract, event.blocks)) {
      places_.map(event.contract, run.first_slot, run.first, run.count);
      for (uint32_t i = 0; i < run.count; ++i) answer.cells.push_back(run.first + i);
    }
  }
  if (wanted) events_.prompts_found.push_back(std::move(answer));
}

void Broker::recall(const BorrowEvent& event) {
  const bool vacate = event.kind == BorrowEvent::Kind::kVacate;
  std::vector<uint32_t> cells = cells_of(event.contract);
  if (!vacate && event.blocks == 0) {
    const std::set<uint32_t> kept(cells.begin(), cells.end());
    std::erase_if(events_.recalled, [&](uint32_t cell) { return kept.contains(cell); });
    events_.kept.insert(events_.kept.end(), cells.begin(), cells.end());
    return;
  }
  if (!vacate && event.blocks < cells.size()) cells.resize(event.blocks);
  // Another statement of the same turn may have said so, too.
  const std::set<uint32_t> before(events_.recalled.begin(), events_.recalled.end());
  std::erase_if(cells, [&](uint32_t cell) { return before.contains(cell); });
  if (cells.empty()) return;
  const Nanos by = vacate ? INT64_MAX : event.by;
  events_.recalled_by = events_.recalled.empty() ? by : std::min(events_.recalled_by, by);
  events_.recalled.insert(events_.recalled.end(), cells.begin(), cells.end());
}

}  // namespace kvasir::cluster
