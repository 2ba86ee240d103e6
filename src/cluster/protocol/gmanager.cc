#include "cluster/protocol/gmanager.h"

#include <algorithm>

#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {
namespace {

constexpr size_t kMostEarly = 4096;  // questions kept until the ledger is known

}  // namespace

void GManager::lead(uint64_t term, Nanos now) {
  if (term <= last_term_) return;
  step_down();
  term_ = term;
  last_term_ = term;
  answers_from_ = now + settings_.heartbeat + settings_.heartbeat / 2;
  next_sort_ = now + settings_.heartbeat;
  next_plan_ = now + settings_.settle_period;
}

void GManager::step_down() {
  term_ = 0;
  ledger_.clear();
  early_.clear();
  planned_.clear();
  run_.reset();
}

Status GManager::handle(const PeerId& from, const wire::Heartbeat& message, Nanos now) {
  if (!leads() || message.term() != term_) return {};
  InstanceFigures figures{.free = message.free(),
                          .total = message.total(),
                          .room = message.room(),
                          .device = message.device(),
                          .location = message.location(),
                          .lent = {},
                          .owed = {}};
  if (figures.room > figures.total || figures.free > figures.total) {
    return error(ErrorCode::kCorrupt, "of {} blocks {} are free and {} may be lent", figures.total,
                 figures.free, figures.room);
  }
  for (const wire::Debt& debt : message.lent()) figures.lent[get(debt.peer())] = debt.blocks();
  for (const wire::Debt& debt : message.owed()) figures.owed[get(debt.peer())] = debt.blocks();
  ledger_.update(from, std::move(figures), now);
  ++counts_.heartbeats;
  return {};
}

Status GManager::handle(const PeerId& from, const wire::Query& message, Nanos now) {
  if (!leads() || message.term() != term_) return {};
  if (message.blocks() == 0) return error(ErrorCode::kCorrupt, "it wants to borrow 0 blocks");
  const Question question{from, message.attempt(), message.blocks()};
  if (now < answers_from_) {
    // An instance that gets no answer asks again.
    if (early_.size() < kMostEarly) early_.push_back(question);
  } else {
    answer(question);
  }
  return {};
}

void GManager::answer(const Question& question) {
  ++counts_.queries;
  const Recommendation recommendation =
      ledger_.recommend(question.from, question.blocks, settings_.lend_to_creditors);
  wire::Envelope message;
  wire::Advice* advice = message.mutable_advice();
  advice->set_term(term_);
  advice->set_attempt(question.attempt);
  for (const PeerId& creditor : recommendation.creditors) put(creditor, advice->add_creditors());
  advice->set_largest_room(recommendation.largest_room);
  // A receiver that misses it has deadlines.
  (void)post_.send(question.from, message);
}

Status GManager::handle(const PeerId&, const wire::Denied& message, Nanos) {
  if (!leads() || message.term() != term_) return {};
  ++counts_.denied;
  ledger_.refused(get(message.creditor()));
  return {};
}

Status GManager::handle(const PeerId& from, const wire::Frozen& message, Nanos now) {
  if (!run_ || message.term() != term_) return {};
  run_->frozen(from, message.settlement(), message.agreed(), message.lent());
  advance(now);
  return {};
}

Status GManager::handle(const PeerId& from, const wire::Settled& message, Nanos now) {
  if (!run_ || message.term() != term_) return {};
  run_->settled(from, message.settlement(), message.done());
  advance(now);
  return {};
}

void GManager::lost(const PeerId& peer, Nanos now) {
  ledger_.remove(peer);
  if (!run_) return;
  run_->lost(peer);
  advance(now);
}

void GManager::plan() {
  const std::vector<PeerId> instances = ledger_.instances();
  const std::vector<Debt> debts = ledger_.debts();
  planned_.clear();
  for (Settlement& settlement :
       plan_settlements(static_cast<uint32_t>(instances.size()), debts, settings_.settle_min)) {
    Planned planned{{}, settlement.blocks};
    for (const uint32_t number : settlement.cycle) planned.cycle.push_back(instances[number]);
    planned_.push_back(std::move(planned));
  }
}

void GManager::advance(Nanos now) {
  while (true) {
    if (run_ && !run_->ended()) return;
    if (run_) {
      if (run_->state() == SettlementRun::State::kDone) {
        ++counts_.settlements;
        counts_.settled_blocks += run_->blocks() * run_->cycle().size();
      } else {
        ++counts_.settlements_failed;
      }
      run_.reset();
    }
    if (planned_.empty()) return;
    Planned next = std::move(planned_.front());
    planned_.pop_front();
    run_.emplace(settings_, post_, term_, ++last_settlement_, std::move(next.cycle), next.blocks, now);
  }
}

void GManager::tick(Nanos now) {
  if (!leads()) return;
  ledger_.expire(now - settings_.entry_lives);
  if (now >= next_sort_) {
    ledger_.sort();
    next_sort_ = now + settings_.heartbeat;
  }
  if (now >= answers_from_) {
    for (const Question& question : std::exchange(early_, {})) answer(question);
  }
  if (run_) run_->tick(now);
  if (now >= next_plan_) {
    next_plan_ = now + settings_.settle_period;
    if (!run_ && directory_) plan();
  }
  advance(now);
}

Nanos GManager::next_deadline() const {
  if (!leads()) return INT64_MAX;
  Nanos next = std::min(next_sort_, next_plan_);
  if (!early_.empty()) next = std::min(next, answers_from_);
  if (run_) next = std::min(next, run_->next_deadline());
  return next;
}

std::string GManager::describe() const {
  std::string out = fmt::format(
      "gmanager: term {} of {}, answers from {}, sort {}, plan {}, settlement {}{}\n", term_, last_term_,
      answers_from_, next_sort_, next_plan_, last_settlement_, directory_ ? "" : " no directory");
  for (const Question& question : early_) {
    out += fmt::format("  asked by {}: {} blocks, {}\n", name_of(question.from), question.blocks,
                       question.attempt);
  }
  for (const Planned& planned : planned_) {
    out += fmt::format("  planned {}:", planned.blocks);
    for (const PeerId& peer : planned.cycle) out += " " + name_of(peer);
    out += "\n";
  }
  if (run_) out += run_->describe();
  return out + ledger_.describe();
}

}  // namespace kvasir::cluster
