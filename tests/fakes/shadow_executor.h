// An Executor whose "K and V" are hashes of the history, for tests of everything above the kernels.
//
// Each slot of each frame holds a hash of the tokens up to its position and of all slots before it, in all
// layer groups and in both planes. What is sampled is a function of all the slots that a row attends to. So a
// wrong table, a stale or early reused frame, a wrong or partial shared block and a skipped token all change
// an output, and the right output is a function of the tokens alone: ShadowModel.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "contract/executor.h"
#include "contract/geometry.h"

namespace kvasir::test {

// What the executor computes, from the tokens alone.
class ShadowModel {
 public:
  explicit ShadowModel(uint32_t groups) : groups_(groups) {}

  // Takes the next token of the sequence.
  void feed(Token token);
  // The token that a model with this seed samples next. REQUIRES: one token was fed.
  Token sample(uint64_t seed) const { return sample(fold_, seed, position_); }

  // The two functions that the model is made of. A slot's value, from that of the position before it, its
  // token and the fold of all slots before it; and what it adds to the fold.
  static uint64_t slot(uint64_t previous, Token token, uint64_t fold);
  static uint64_t term(uint64_t slot, uint32_t group, uint32_t plane, uint32_t position);
  static Token sample(uint64_t fold, uint64_t seed, uint32_t position);

 private:
  const uint32_t groups_;
  uint64_t slot_ = 0;
  uint64_t fold_ = 0;
  uint32_t position_ = 0;
};

// `max_tokens` tokens that follow the prompt, fewer where a stop token comes (it is the last then).
std::vector<Token> shadow_output(uint32_t groups, std::span<const Token> prompt, uint64_t seed,
                                 uint32_t max_tokens, std::span<const Token> stop_tokens);

constexpr int32_t kShadowVocab = 64;

// Used by one thread. Steps are executed in wait(); submit() spoils what a step will write, so that a frame
// that is handed out too early is spoilt for the older step in flight.
class ShadowExecutor final : public Executor {
 public:
  // Every row takes a microsecond of the clock, which wait() advances and which outlives the executor.
  ShadowExecutor(const CacheGeometry& geometry, uint64_t device_bytes, int depth, VirtualClock& clock);

  int depth() const override { return depth_; }
  void submit(Step step) override;
  StepResult wait() override;

  // The step that is submitted next fails.
  void fail_next() { fail_next_ = true; }

 private:
  struct Pending {
    Step step;
    bool fails;
  };

  void run_slice(const Step& step, const StepSlice& slice, StepResult& result);
  // The slot of a position in a plane (0: K, 1: V) of a layer group.
  uint64_t& at(const Step& step, const StepSlice& slice, uint32_t position, uint32_t group, uint32_t plane);

  const CacheGeometry geometry_;
  const int depth_;
  VirtualClock& clock_;
  std::vector<uint64_t> slots_;  // [frame][slot]
  std::unordered_map<SeqId, Token> last_sample_;
  std::deque<Pending> pending_;
  uint64_t submitted_ = 0;
  bool fail_next_ = false;
};

}  // namespace kvasir::test
