// A shadow of a transformer, by hashes: the right output of the shadow executor, as a function of the tokens.
//
// h(p, 0), the residual stream, is a hash of the token at p. In layer l it becomes x(p, l), 32 bits, the
// operand of which K and V are made: one slot of eight bytes in each plane, a hash of x(p, l), p and l. Then
// the row attends: a(p, l) is a sum over what it reads from the slots of all positions up to its own (in a
// windowed layer group, of the last ones), and
// h(p, l + 1) is a hash of h(p, l) and a(p, l). What is sampled is a function of the last h.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/step.h"

namespace kvasir::test {

// Of a shadow model: how many layers it has, and which of them attend to their last `window` positions only.
struct ShadowLayers {
  ShadowLayers(uint32_t layers) : count(layers) {}  // NOLINT(google-explicit-constructor)
  explicit ShadowLayers(const CacheGeometry& geometry);

  uint32_t count = 0;
  uint32_t window = 0;
  std::vector<bool> windowed;  // by layer; none: no layer is
};

// What the executor computes, from the tokens alone.
class ShadowModel {
 public:
  explicit ShadowModel(const ShadowLayers& layers)
      : layers_(layers), sums_(layers.count), terms_(layers.count) {}

  // Takes the next token of the sequence. written(layer, k, v): gets the slots of its position.
  void feed(Token token) {
    feed(token, [](uint32_t, uint64_t, uint64_t) {});
  }
  template <typename Written>
  void feed(Token token, const Written& written) {
    h_ = embed(token);
    for (uint32_t layer = 0; layer < sums_.size(); ++layer) {
      const uint32_t x = operand(h_, layer);
      const uint64_t k = slot(x, position_, layer, 0), v = slot(x, position_, layer, 1);
      written(layer, k, v);
      h_ = next(h_, attend(layer, term(k, position_, layer, 0) + term(v, position_, layer, 1)));
    }
    ++position_;
  }
  // The token that a model with this seed samples next. REQUIRES: one token was fed.
  Token sample(uint64_t seed) const { return sample(h_, seed, position_); }

  // The functions that the model is made of: h(p, 0); x(p, l); a slot's value in a plane (0: K, 1: V); what
  // reading it adds to a(p, l); h(p, l + 1); the token for `position`, which follows the row with this last
  // h.
  static uint64_t embed(Token token);
  static uint32_t operand(uint64_t h, uint32_t layer);
  static uint64_t slot(uint32_t x, uint32_t position, uint32_t layer, uint32_t plane);
  // True for every value that slot() has for this place, and for one in 65,536 others.
  static bool in_place(uint64_t slot, uint32_t position, uint32_t layer, uint32_t plane);
  static uint64_t term(uint64_t slot, uint32_t position, uint32_t layer, uint32_t plane);
  static uint64_t next(uint64_t h, uint64_t a);
  static Token sample(uint64_t h, uint64_t seed, uint32_t position);

 private:
  // a(p, l) of the newest position, whose slots give `term`.
  uint64_t attend(uint32_t layer, uint64_t term);

  const ShadowLayers layers_;
  std::vector<uint64_t> sums_;               // by layer, over all positions so far, or those in its window
  std::vector<std::deque<uint64_t>> terms_;  // of these positions, in layers with a window
  uint64_t h_ = 0;                           // of the newest position, after the last layer
  uint32_t position_ = 0;
};

// `max_tokens` tokens that follow the prompt, fewer where a stop token comes (it is the last then).
std::vector<Token> shadow_output(const ShadowLayers& layers, std::span<const Token> prompt, uint64_t seed,
                                 uint32_t max_tokens, std::span<const Token> stop_tokens);
// The same with an end that is forced.
std::vector<Token> shadow_output(const ShadowLayers& layers, std::span<const Token> prompt,
                                 const SamplingParams& sampling, uint32_t max_tokens,
                                 std::span<const Token> stop_tokens);

constexpr int32_t kShadowVocab = 64;

// Prompts of different `first` differ in every place.
std::vector<Token> shadow_prompt(uint32_t count, uint32_t first);

}  // namespace kvasir::test
