// An Executor whose "K and V" are hashes of the history, in real bytes, for tests of everything above the
// kernels.
//
// It runs a shadow of a transformer, layer by layer over all slices. h(p, 0) is a hash of the token at p. In
// layer l each row writes one slot of eight bytes into each plane, a hash of h(p, l); then it attends: a(p,
// l) is a sum over what it reads from the slots of all positions up to its own, and h(p, l + 1) is a hash of
// h(p, l) and a(p, l). What is sampled is a function of the last h. So a wrong table, a stale or early reused
// frame, a wrong or partial shared block, a plane read before it has arrived, a lost write and a skipped
// token all change an output, and the right output is a function of the tokens alone: ShadowModel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "contract/executor.h"
#include "contract/geometry.h"
#include "exec/step_transfers.h"

namespace kvasir::test {

// What the executor computes, from the tokens alone.
class ShadowModel {
 public:
  explicit ShadowModel(uint32_t layers) : sums_(layers) {}

  // Takes the next token of the sequence.
  void feed(Token token);
  // The token that a model with this seed samples next. REQUIRES: one token was fed.
  Token sample(uint64_t seed) const { return sample(h_, seed, position_); }

  // The functions that the model is made of: h(p, 0); a slot's value in a plane (0: K, 1: V); what reading it
  // adds to a(p, l); h(p, l + 1); the token for `position`, which follows the row with this last h.
  static uint64_t embed(Token token);
  static uint64_t slot(uint64_t h, uint32_t layer, uint32_t plane);
  static uint64_t term(uint64_t slot, uint32_t position, uint32_t layer, uint32_t plane);
  static uint64_t next(uint64_t h, uint64_t a);
  static Token sample(uint64_t h, uint64_t seed, uint32_t position);

 private:
  std::vector<uint64_t> sums_;  // by layer, over all positions so far
  uint64_t h_ = 0;              // of the newest position, after the last layer
  uint32_t position_ = 0;
};

// `max_tokens` tokens that follow the prompt, fewer where a stop token comes (it is the last then).
std::vector<Token> shadow_output(uint32_t layers, std::span<const Token> prompt, uint64_t seed,
                                 uint32_t max_tokens, std::span<const Token> stop_tokens);

constexpr int32_t kShadowVocab = 64;

// Used by one thread. Steps are executed in wait(); submit() spoils the slots in frames that a step will
// write, so that a frame that is handed out too early is spoilt for the older step in flight, and for a
// transfer that still reads it. It spoils nothing in staged planes: until the step begins those may rightly
// be in use by the older step, and until the layer by transfers that it started. What is staged too early,
// the link spoils (fakes/fake_link.h).
class ShadowExecutor final : public Executor {
 public:
  // Every row takes a microsecond of the clock, which wait() advances. Clock, link and memory outlive the
  // executor. device_memory: all that a step's planes may name, the stage ring included. link: null where
  // there is none. patience: by which waits for transfers are measured; null: the clock. REQUIRES: a token
  // takes eight bytes of a layer's plane.
  ShadowExecutor(const CacheGeometry& geometry, std::span<std::byte> device_memory, int depth,
                 VirtualClock& clock, Link* link = nullptr, const Clock* patience = nullptr);

  int depth() const override { return depth_; }
  void submit(Step step) override;
  StepResult wait() override;

  // The step that is submitted next fails: it computes nothing.
  void fail_next() { fail_next_ = true; }

 private:
  struct Pending {
    Step step;
    bool fails;
  };

  void spoil(const Step& step, const StepSlice& slice);
  void run(const Step& step);
  void embed(const Step& step);
  void write(const Step& step, const StepSlice& slice, uint32_t layer);
  void attend(const Step& step, const StepSlice& slice, uint32_t layer);
  void sample(const Step& step, StepResult& result);
  // Calls visit(position, K slot, V slot) for some positions of a slice, in a layer. wrong_layer: takes
  // staged blocks from the layer after it (a seeded fault).
  template <typename Visit>
  void visit_slots(const Step& step, const StepSlice& slice, uint32_t layer, Interval tokens,
                   const Visit& visit, bool wrong_layer = false);
  std::byte* plane_at(uint64_t offset);

  const CacheGeometry geometry_;
  const std::span<std::byte> memory_;
  const int depth_;
  VirtualClock& clock_;
  StepTransfers transfers_;  // of the oldest pending step
  std::vector<uint64_t> h_;  // by row of the step at hand
  std::unordered_map<SeqId, Token> last_sample_;
  std::deque<Pending> pending_;
  uint64_t submitted_ = 0;
  bool fail_next_ = false;
};

}  // namespace kvasir::test
