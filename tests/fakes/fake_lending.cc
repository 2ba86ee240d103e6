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
}

LendingEvents FakeLending::turn(const LendingRequest& request, LendableCells& own) {
  ++turn_;
  LendingEvents events;
  for (uint32_t cell : request.returned) {
    KV_CHECK(cells_[cell] != State::kFree, "cell {} is returned, and was not lent", cell);
    cells_[cell] = State::kFree;
    due_.erase(cell);
  }
  asked_ += request.borrow;
  if (ending_) {
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
