#include "fakes/shadow_model.h"

#include <algorithm>

#include "contract/forced_end.h"

namespace kvasir::test {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
  h ^= h >> 29;
  h *= 0x94D049BB133111EBu;
  return h ^ (h >> 32);
}

// What every slot of a place ends in.
uint64_t tag(uint32_t position, uint32_t layer, uint32_t plane) {
  return mix(position, (uint64_t{layer} << 1) | plane) & 0xFFFF;
}

}  // namespace

ShadowLayers::ShadowLayers(const CacheGeometry& geometry)
    : count(geometry.layers), window(geometry.window), windowed(geometry.layers) {
  for (uint32_t l = 0; l < count; ++l) windowed[l] = geometry.windowed.contains(geometry.group_of(l));
}

uint64_t ShadowModel::embed(Token token) {
  return mix(static_cast<uint64_t>(token), 0xE);
}

uint32_t ShadowModel::operand(uint64_t h, uint32_t layer) {
  return static_cast<uint32_t>(mix(h, 0x1000 + uint64_t{layer}));
}

uint64_t ShadowModel::slot(uint32_t x, uint32_t position, uint32_t layer, uint32_t plane) {
  const uint64_t value = mix((uint64_t{position} << 32) | x, (uint64_t{layer} << 1) | plane);
  return (value & ~uint64_t{0xFFFF}) | tag(position, layer, plane);
}

bool ShadowModel::in_place(uint64_t slot, uint32_t position, uint32_t layer, uint32_t plane) {
  return (slot & 0xFFFF) == tag(position, layer, plane);
}

// Slots are well mixed already, so that little binds them to their place. Nearly all of a test's time is
// here.
uint64_t ShadowModel::term(uint64_t slot, uint32_t position, uint32_t layer, uint32_t plane) {
  const uint64_t place = (uint64_t{position} << 16) | (uint64_t{layer} << 1) | plane;
  const uint64_t x = (slot ^ place * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}

uint64_t ShadowModel::next(uint64_t h, uint64_t a) {
  return mix(h, a);
}

Token ShadowModel::sample(uint64_t h, uint64_t seed, uint32_t position) {
  return static_cast<Token>(mix(mix(h, seed), position) % kShadowVocab);
}

uint64_t ShadowModel::attend(uint32_t layer, uint64_t term) {
  sums_[layer] += term;
  if (layers_.window > 0 && layers_.windowed[layer]) {
    terms_[layer].push_back(term);
    if (terms_[layer].size() > layers_.window) {
      sums_[layer] -= terms_[layer].front();
      terms_[layer].pop_front();
    }
  }
  return sums_[layer];
}

std::vector<Token> shadow_output(const ShadowLayers& layers, std::span<const Token> prompt, uint64_t seed,
                                 uint32_t max_tokens, std::span<const Token> stop_tokens) {
  SamplingParams sampling;
  sampling.seed = seed;
  return shadow_output(layers, prompt, sampling, max_tokens, stop_tokens);
}

std::vector<Token> shadow_output(const ShadowLayers& layers, std::span<const Token> prompt,
                                 const SamplingParams& sampling, uint32_t max_tokens,
                                 std::span<const Token> stop_tokens) {
  ShadowModel model(layers);
  for (Token t : prompt) model.feed(t);
  std::vector<Token> out;
  while (out.size() < max_tokens) {
    const auto position = static_cast<uint32_t>(prompt.size() + out.size());
    out.push_back(with_forced_end(sampling, position, model.sample(sampling.seed), kShadowVocab));
    if (std::find(stop_tokens.begin(), stop_tokens.end(), out.back()) != stop_tokens.end()) break;
    model.feed(out.back());
  }
  return out;
}

std::vector<Token> shadow_prompt(uint32_t count, uint32_t first) {
  std::vector<Token> out(count);
  for (uint32_t i = 0; i < count; ++i) out[i] = static_cast<Token>((first + 7 * i) % kShadowVocab);
  return out;
}

}  // namespace kvasir::test
