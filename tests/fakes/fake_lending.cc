#include "fakes/fake_lending.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir::test {

FakeLending::FakeLending(const Options& options, std::span<std::byte> memory)
    : options_(options), memory_(memory), random_(options.seed), cells_(options.cells, State::kFree) {}

uint32_t FakeLending::held() const {
  return static_cast<uint32_t>(std::count_if(
      cells_.begin(), cells_.end(), [](State s) { return s == State::kGranted || s == State::kRecalled; }));
}

std::vector<uint32_t> FakeLending::some(State state, double share) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i] == state && random_.unit() < share) out.push_back(i);
  }
  return out;
}

void FakeLending::lose(uint32_t cell, LendingEvents& events) {
  cells_[cell] = State::kLost;
  due_.erase(cell);
  events.lost.push_back(cell);
  ++lost_;
  const size_t bytes = memory_.size() / cells_.size();
  for (std::byte& b : memory_.subspan(cell * bytes, bytes)) b ^= std::byte{0x5A};
}

void FakeLending::lend(LendableCells& own) {
  if (!loans_.empty() && random_.unit() < 0.5) {
    own.give_back(loans_.back());
    loans_.pop_back();
    return;
  }
  const auto wanted = static_cast<uint32_t>(random_.between(1, 4));
  const uint32_t free = own.free_cells();
  std::vector<LendableCells::Frame> frames = own.take(wanted);
  KV_CHECK(frames.size() == (wanted <= free ? wanted : 0), "{} of {} cells, {} are free", frames.size(),
           wanted, free);
  lent_ += frames.size();
  if (!frames.empty()) loans_.push_back(std::move(frames));
}

void FakeLending::start_anew() {
  std::fill(cells_.begin(), cells_.end(), State::kFree);
  due_.clear();
  loans_.clear();
  asked_ = 0;
  reading_.clear();
  questions_.clear();
  while (!answers_.empty()) forget(answers_.begin()->first);
}

// ---------------------------------------------------------------- prefixes

// A peer that gets hold of blocks: it reads them of the engine, which shows them for some turns.
void FakeLending::learn(LendableCells& own) {
  if (!reading_.empty() && random_.unit() < 0.5) {
    own.hide_prefix(reading_.back());
    reading_.pop_back();
  }
  if (chains_.empty() || random_.unit() > 0.3) return;
  const std::vector<PrefixHash>& chain = chains_[random_.below(chains_.size())];
  const LendableCells::Prefix prefix = own.show_prefix(chain);
  if (prefix.frames.empty()) return;
  reading_.push_back(prefix.id);
  for (size_t i = 0; i < prefix.frames.size(); ++i) {
    std::vector<std::byte>& block = blocks_[chain[i / prefixes_.groups]];
    if (i % prefixes_.groups == 0) block.clear();
    const auto [tier, at] = prefix.frames[i];
    const auto bytes = prefixes_.tiers[index_of(tier)].subspan(at, prefixes_.cell_bytes);
    block.insert(block.end(), bytes.begin(), bytes.end());
  }
}

void FakeLending::answer(const LendingRequest& request, LendingEvents& events) {
  for (const uint64_t id : request.prefixes_done) forget(id);
  for (const PrefixQuestion& question : request.prefixes_wanted) {
    questions_[question.id] = question;
    chains_.push_back(question.chain);
    if (chains_.size() > 32) chains_.erase(chains_.begin());
  }
  while (!questions_.empty() && (ending_ || random_.unit() < options_.prefixes)) {
    events.prefixes_found.push_back(answer(questions_.begin()->second));
    questions_.erase(questions_.begin());
  }
  if (!answers_.empty() && random_.unit() < options_.prefixes_lost) {
    for (const uint32_t cell : answers_.begin()->second) {
      gone_.insert(cell);
      auto bytes = prefixes_.shown.subspan(cell * prefixes_.cell_bytes, prefixes_.cell_bytes);
      std::fill(bytes.begin(), bytes.end(), std::byte{0x5A});
    }
  }
}

PrefixAnswer FakeLending::answer(const PrefixQuestion& question) {
  PrefixAnswer answer{question.id, {}, "peer"};
  std::vector<uint32_t>& cells = answers_[question.id];
  const auto total = static_cast<uint32_t>(prefixes_.shown.size() / prefixes_.cell_bytes);
  for (const PrefixHash& hash : question.chain) {
    const auto found = blocks_.find(hash);
    if (found == blocks_.end() || ending_ || total - taken_.size() < prefixes_.groups) break;
    for (uint32_t g = 0; g < prefixes_.groups; ++g) {
      uint32_t cell = 0;
      while (taken_.contains(cell)) ++cell;
      taken_.insert(cell);
      cells.push_back(cell);
      answer.cells.push_back(static_cast<uint32_t>(cells_.size()) + cell);
      const auto from = std::span(found->second).subspan(g * prefixes_.cell_bytes, prefixes_.cell_bytes);
      std::copy(from.begin(), from.end(),
                prefixes_.shown.begin() + static_cast<ptrdiff_t>(cell * prefixes_.cell_bytes));
    }
  }
  shown_ += cells.size();
  return answer;
}

void FakeLending::forget(uint64_t question) {
  questions_.erase(question);
  for (const uint32_t cell : answers_[question]) {
    taken_.erase(cell);
    gone_.erase(cell);
    auto bytes = prefixes_.shown.subspan(cell * prefixes_.cell_bytes, prefixes_.cell_bytes);
    std::fill(bytes.begin(), bytes.end(), std::byte{0x5A});
  }
  answers_.erase(question);
}

// ---------------------------------------------------------------- a turn

LendingEvents FakeLending::turn(const LendingRequest& request, LendableCells& own) {
  ++turn_;
  LendingEvents events;
  for (uint32_t cell : request.returned) {
    KV_CHECK(cells_[cell] != State::kFree, "cell {} is returned, and was not lent", cell);
    cells_[cell] = State::kFree;
    due_.erase(cell);
  }
  asked_ += request.borrow;
  if (options_.prefixes > 0) {
    learn(own);
    answer(request, events);
  }
  if (ending_) {
    for (const uint64_t id : std::exchange(reading_, {})) own.hide_prefix(id);
    while (!loans_.empty()) {
      own.give_back(loans_.back());
      loans_.pop_back();
    }
    events.refused = std::exchange(asked_, 0);
    return events;
  }
  if (asked_ > 0 && random_.unit() < options_.refusals) {
    events.refused = static_cast<uint32_t>(random_.between(1, asked_));
    asked_ -= events.refused;
  }
  if (asked_ > 0 && random_.unit() < options_.grants) {
    for (uint32_t cell : some(State::kFree, 0.7)) {
      if (asked_ == 0) break;
      cells_[cell] = State::kGranted;
      events.granted.push_back(cell);
      --asked_;
      ++granted_;
    }
  }
  if (random_.unit() < options_.recalls) {
    for (uint32_t cell : some(State::kGranted, 0.3)) {
      cells_[cell] = State::kRecalled;
      due_[cell] = turn_ + options_.patience;
      events.recalled.push_back(cell);
      ++recalled_;
    }
  }
  if (random_.unit() < options_.recalls) {
    for (uint32_t cell : some(State::kRecalled, 0.5)) {
      cells_[cell] = State::kGranted;
      due_.erase(cell);
      events.kept.push_back(cell);
      std::erase(events.recalled, cell);
    }
  }
  std::vector<uint32_t> overdue;
  for (const auto& [cell, turn] : due_) {
    if (turn <= turn_) overdue.push_back(cell);
  }
  for (uint32_t cell : overdue) lose(cell, events);
  if (random_.unit() < options_.losses) {
    for (uint32_t cell : some(State::kGranted, 0.3)) lose(cell, events);
  }
  wanted_back_ |= request.recall > 0;
  if (wanted_back_ && !loans_.empty() && random_.unit() < 0.3) {
    own.give_back(loans_.back());
    loans_.pop_back();
  } else if (!wanted_back_ && random_.unit() < options_.own) {
    lend(own);
  }
  wanted_back_ = wanted_back_ && !loans_.empty();
  return events;
}

}  // namespace kvasir::test
