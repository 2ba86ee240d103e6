// Peers that lend and borrow at random, for tests: they grant, refuse, recall, die with what they have lent,
// and ask for memory of the engine's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/random.h"
#include "contract/lending.h"

namespace kvasir::test {

// Used by one thread.
class FakeLending final : public Lending {
 public:
  struct Options {
    uint32_t cells = 0;  // that may be borrowed in all: numbers below this are granted
    uint64_t seed = 1;
    double grants = 0.5;     // share of the turns in which some of what was asked for is granted
    double refusals = 0;     // and refused
    double recalls = 0;      // in which some is recalled, and taken by force some turns later
    double losses = 0;       // in which some is lost
    double own = 0;          // in which a peer borrows of the engine's own cells, or gives them back
    uint32_t patience = 20;  // turns for what is recalled
  };
  // memory: of the borrowed cells, one behind the other; of what is lost every byte is changed. Outlives it.
  FakeLending(const Options& options, std::span<std::byte> memory);

  LendingEvents turn(const LendingRequest& request, LendableCells& own) override;
  void start_anew() override;
  void set_wake(std::function<void()>) override {}

  // From now on nothing is recalled, lost or borrowed, and what was asked for is refused.
  void end() { ending_ = true; }
  uint64_t granted() const { return granted_; }
  uint64_t recalled() const { return recalled_; }
  uint64_t lost() const { return lost_; }
  uint64_t lent() const { return lent_; }
  // Byte `at` of the memory lies in a cell that is lost: a query for it gets no answer.
  bool lost_at(uint64_t at) const { return cells_[at / (memory_.size() / cells_.size())] == State::kLost; }
  uint32_t held() const;  // by the engine, what is lost and not returned left out

 private:
  enum class State : uint8_t { kFree, kGranted, kRecalled, kLost };

  std::vector<uint32_t> some(State state, double share);
  void lose(uint32_t cell, LendingEvents& events);
  void lend(LendableCells& own);

  const Options options_;
  const std::span<std::byte> memory_;
  Random random_;
  std::vector<State> cells_;
  std::map<uint32_t, uint32_t> due_;  // recalled ones: the turn in which they are taken
  std::vector<std::vector<LendableCells::Frame>> loans_;
  uint32_t asked_ = 0;
  uint32_t turn_ = 0;
  bool ending_ = false;
  bool wanted_back_ = false;
  uint64_t granted_ = 0, recalled_ = 0, lost_ = 0, lent_ = 0;
};

}  // namespace kvasir::test
