// Peers that lend and borrow at random, for tests: they grant, refuse, recall, die with what they have lent,
// and ask for memory of the engine's own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/random.h"
#include "contract/geometry.h"
#include "contract/lending.h"

namespace kvasir::test {

// Used by one thread.
class FakeLending final : public Lending {
 public:
  struct Options {
    uint32_t cells = 0;     // that may be borrowed in all: numbers below this are granted
    uint32_t attended = 0;  // cells of prefixes that peers keep at once; their numbers follow
    uint64_t seed = 1;
    double grants = 0.5;     // share of the turns in which some of what was asked for is granted
    double refusals = 0;     // and refused
    double recalls = 0;      // in which some is recalled, and taken by force some turns later
    double losses = 0;       // in which some is lost
    double own = 0;          // in which a peer borrows of the engine's own cells, or gives them back
    uint32_t patience = 20;  // turns for what is recalled
    // Peers have blocks that the engine has computed before. Share of the turns in which questions for them
    // are answered, some, and in which what was shown for a copy is lost.
    double prefixes = 0;
    double prefixes_lost = 0;
    double keeps = 0.7;  // share of what is to be kept that peers keep
    // Share of the prefixes that they find at the engine which it keeps for them, up to half of its memory,
    // until it calls them back.
    double stays = 0;
    // Peers compute the first rows of prompts as the shadow model does, and ask the engine to compute some:
    // share of the turns in which questions for them are answered, and in which it is asked.
    double prompts = 0;
  };
  struct PromptMemory {
    CacheGeometry geometry;
    std::array<std::span<std::byte>, kTiers> tiers;
  };
  // For that: the engine's memory by tier, and the cells that are shown to it, of which the numbers follow
  // the others.
  struct PrefixMemory {
    std::array<std::span<std::byte>, kTiers> tiers;
    std::span<std::byte> shown;
    uint64_t cell_bytes = 1;
    uint32_t groups = 1;
  };
  // memory: of the borrowed and the attended cells, one behind the other; of what is lost every byte is
  // changed. Outlives it.
  FakeLending(const Options& options, std::span<std::byte> memory);

  LendingEvents turn(const LendingRequest& request, LendableCells& own) override;
  void start_anew() override;
  void set_wake(std::function<void()>) override {}
  void have_prefixes(const PrefixMemory& memory) { prefixes_ = memory; }

  void compute_prompts(const PromptMemory& memory) { prompts_ = memory; }

  // From now on nothing is recalled, lost or borrowed, and what was asked for is refused.
  void end() { ending_ = true; }
  uint64_t granted() const { return granted_; }
  uint64_t recalled() const { return recalled_; }
  uint64_t lost() const { return lost_; }
  uint64_t lent() const { return lent_; }
  uint64_t computed() const { return computed_; }            // cells that it got with their KV
  uint64_t computed_here() const { return computed_here_; }  // cells that the engine lent with theirs
  uint64_t shown() const { return shown_; }                  // cells that were shown to the engine
  uint64_t kept() const { return kept_; }                    // cells that were kept for it
  uint64_t kept_here() const { return kept_here_; }          // cells that the engine kept for peers
  // Byte `at` of the shown cells is lost.
  bool shown_lost_at(uint64_t at) const {
    return gone_.contains(static_cast<uint32_t>(at / prefixes_.cell_bytes));
  }
  // Byte `at` of the memory lies in a cell that is lost: a query for it gets no answer.
  bool lost_at(uint64_t at) const { return cells_[at / (memory_.size() / cells_.size())] == State::kLost; }
  uint32_t held() const;  // by the engine, what is lost and not returned left out

 private:
  enum class State : uint8_t { kFree, kGranted, kRecalled, kLost };

  std::vector<uint32_t> some(State state, double share);
  void lose(uint32_t cell, LendingEvents& events);
  void lend(LendableCells& own);
  void learn(LendableCells& own);
  void answer(const LendingRequest& request, LendingEvents& events);
  PrefixAnswer answer(const PrefixQuestion& question);
  void keep(const PrefixKept& wanted, LendingEvents& events);
  void forget(uint64_t question);
  void compute(const LendingRequest& request, LendableCells& own, LendingEvents& events);
  PromptAnswer compute(const PromptQuestion& question);
  void ask_to_compute(LendingEvents& events);
  void take_computed(LendableCells& own);

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
  PrefixMemory prefixes_;
  std::vector<std::vector<PrefixHash>> chains_;          // that were asked for
  std::map<PrefixHash, std::vector<std::byte>> blocks_;  // of these: those that a peer has
  std::vector<uint64_t> reading_;                        // what it reads of the engine
  std::map<uint64_t, size_t> attending_;                 // what it attends there, and the cells
  std::map<uint64_t, PrefixQuestion> questions_;         // not answered
  std::map<uint64_t, std::vector<uint32_t>> answers_;    // by question: the cells
  std::set<uint32_t> taken_, gone_;  // cells that are shown; and of which the bytes are lost
  uint64_t shown_ = 0, kept_ = 0, kept_here_ = 0;
  PromptMemory prompts_;
  std::map<uint64_t, PromptQuestion> prompt_questions_;  // not answered
  struct Job {
    std::vector<Token> tokens;
    std::vector<PrefixHash> chain;  // once it is computed
  };
  std::map<uint64_t, Job> jobs_;
  uint64_t last_job_ = 0;
  uint64_t computed_ = 0, computed_here_ = 0;
  uint64_t granted_ = 0, recalled_ = 0, lost_ = 0, lent_ = 0;
};

}  // namespace kvasir::test
