#include "fakes/shadow_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir::test {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
  h ^= h >> 29;
  h *= 0x94D049BB133111EBu;
  return h ^ (h >> 32);
}

uint64_t load(const std::byte* at) {
  uint64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void store(std::byte* at, uint64_t value) {
  std::memcpy(at, &value, sizeof value);
}

bool is_staged(const Step& step, const StepSlice& slice, uint32_t block, uint32_t layer) {
  return slice.first_staged != StepSlice::kNothingStaged &&
         step.staged[slice.first_staged + layer * slice.blocks + block].present();
}

}  // namespace

// ---------------------------------------------------------------- the model

uint64_t ShadowModel::embed(Token token) {
  return mix(static_cast<uint64_t>(token), 0xE);
}

uint64_t ShadowModel::slot(uint64_t h, uint32_t layer, uint32_t plane) {
  return mix(h, (uint64_t{layer} << 1) | plane);
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

void ShadowModel::feed(Token token) {
  h_ = embed(token);
  for (uint32_t layer = 0; layer < sums_.size(); ++layer) {
    for (uint32_t plane : {0u, 1u}) sums_[layer] += term(slot(h_, layer, plane), position_, layer, plane);
    h_ = next(h_, sums_[layer]);
  }
  ++position_;
}

std::vector<Token> shadow_output(uint32_t layers, std::span<const Token> prompt, uint64_t seed,
                                 uint32_t max_tokens, std::span<const Token> stop_tokens) {
  ShadowModel model(layers);
  for (Token t : prompt) model.feed(t);
  std::vector<Token> out;
  while (out.size() < max_tokens) {
    out.push_back(model.sample(seed));
    if (std::find(stop_tokens.begin(), stop_tokens.end(), out.back()) != stop_tokens.end()) break;
    model.feed(out.back());
  }
  return out;
}

// ---------------------------------------------------------------- the executor

ShadowExecutor::ShadowExecutor(const CacheGeometry& geometry, std::span<std::byte> device_memory, int depth,
                               VirtualClock& clock, Link* link, const Clock* patience)
    : geometry_(geometry),
      memory_(device_memory),
      depth_(depth),
      clock_(clock),
      transfers_(link, patience ? *patience : clock) {
  KV_CHECK(geometry.kv_plane_bytes_per_token_layer == sizeof(uint64_t), "bytes={}",
           geometry.kv_plane_bytes_per_token_layer);
}

std::byte* ShadowExecutor::plane_at(uint64_t offset) {
  // An absent plane, or a layer's place in one, is no multiple of eight.
  KV_CHECK(
      offset % 8 == 0 && offset <= memory_.size() && geometry_.layer_plane_bytes() <= memory_.size() - offset,
      "a plane at {} of {} bytes", offset, memory_.size());
  return memory_.data() + offset;
}

template <typename Visit>
void ShadowExecutor::visit_slots(const Step& step, const StepSlice& slice, uint32_t layer, Interval tokens,
                                 const Visit& visit, bool wrong_layer) {
  for (uint32_t p = tokens.begin; p < tokens.end;) {
    const uint32_t block = geometry_.block_of(p);
    const bool next = wrong_layer && is_staged(step, slice, block, layer);
    const KvPlanes planes =
        step.planes(geometry_, slice, block, next ? (layer + 1) % geometry_.layers : layer);
    std::byte* k = plane_at(planes.k);
    std::byte* v = plane_at(planes.v);
    const uint32_t first = block * geometry_.block_tokens;
    const uint32_t end = std::min(tokens.end, first + geometry_.block_tokens);
    for (; p < end; ++p) visit(p, k + 8 * (p - first), v + 8 * (p - first));
  }
}

void ShadowExecutor::submit(Step step) {
  KV_CHECK(pending_.size() < static_cast<size_t>(depth_), "{} steps are in flight", pending_.size());
  ++submitted_;
  for (const StepSlice& slice : step.slices) spoil(step, slice);
  pending_.push_back({std::move(step), std::exchange(fail_next_, false)});
  if (pending_.size() == 1) transfers_.begin(pending_.front().step);
}

void ShadowExecutor::spoil(const Step& step, const StepSlice& slice) {
  const uint64_t spoilt = mix(submitted_, 0xBAD);
  for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
    const uint32_t block = geometry_.block_of(p);
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      if (is_staged(step, slice, block, layer)) continue;
      visit_slots(step, slice, layer, {p, p + 1}, [&](uint32_t, std::byte* k, std::byte* v) {
        store(k, spoilt);
        store(v, spoilt);
      });
    }
  }
}

StepResult ShadowExecutor::wait() {
  KV_CHECK(!pending_.empty(), "no step is in flight");
  const Pending& pending = pending_.front();
  StepResult result;
  result.id = pending.step.id;
  result.started = clock_.now();
  clock_.advance(1000 * static_cast<Nanos>(pending.step.row_count()));
  if (pending.fails) {
    result.status = error(ErrorCode::kIo, "the shadow step was told to fail");
  } else {
    run(pending.step);
    sample(pending.step, result);
  }
  transfers_.end(result);
  result.ended = clock_.now();
  pending_.pop_front();
  if (!pending_.empty()) transfers_.begin(pending_.front().step, /*submitted_early=*/true);
  return result;
}

void ShadowExecutor::run(const Step& step) {
  embed(step);
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    if (transfers_.waits_before(layer)) transfers_.wait_before(layer);
    if (transfers_.all_deferred()) return;
    for (size_t s = 0; s < step.slices.size(); ++s) {
      if (!transfers_.deferred(s)) write(step, step.slices[s], layer);
    }
    transfers_.pass(layer_written(layer));
    for (size_t s = 0; s < step.slices.size(); ++s) {
      if (!transfers_.deferred(s)) attend(step, step.slices[s], layer);
    }
    transfers_.pass(layer_attended(layer));
  }
}

void ShadowExecutor::embed(const Step& step) {
  h_.resize(step.token_ids.size());
  for (size_t r = 0; r < h_.size(); ++r) h_[r] = ShadowModel::embed(step.token_ids[r]);
  for (const StepSlice& slice : step.slices) {
    if (!slice.last_token_by_reference) continue;
    const auto it = last_sample_.find(slice.seq);
    const Token token = it == last_sample_.end() ? -1 : it->second;
    h_[slice.first_token + slice.tokens.size() - 1] = ShadowModel::embed(token);
  }
}

void ShadowExecutor::write(const Step& step, const StepSlice& slice, uint32_t layer) {
  const uint64_t* h = h_.data() + slice.first_token;
  visit_slots(step, slice, layer, slice.tokens, [&](uint32_t, std::byte* k, std::byte* v) {
    store(k, ShadowModel::slot(*h, layer, 0));
    store(v, ShadowModel::slot(*h, layer, 1));
    ++h;
  });
}

void ShadowExecutor::attend(const Step& step, const StepSlice& slice, uint32_t layer) {
  const bool wrong = mutant(Mutant::kStagedWrongLayer);
  uint64_t a = 0;
  const auto read = [&](uint32_t position, const std::byte* k, const std::byte* v) {
    a += ShadowModel::term(load(k), position, layer, 0);
    a += ShadowModel::term(load(v), position, layer, 1);
  };
  // What all rows see is summed once.
  visit_slots(step, slice, layer, {0, slice.tokens.begin}, read, wrong);
  uint64_t* h = h_.data() + slice.first_token;
  const auto read_own = [&](uint32_t position, const std::byte* k, const std::byte* v) {
    read(position, k, v);
    *h = ShadowModel::next(*h, a);
    ++h;
  };
  visit_slots(step, slice, layer, slice.tokens, read_own, wrong);
}

void ShadowExecutor::sample(const Step& step, StepResult& result) {
  for (size_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    if (!slice.samples || (transfers_.deferred(s) && !mutant(Mutant::kDeferredSampled))) continue;
    const uint64_t h = h_[slice.first_token + slice.tokens.size() - 1];
    SampledToken sampled;
    sampled.seq = slice.seq;
    sampled.token = ShadowModel::sample(h, slice.sampling.seed, slice.tokens.end);
    last_sample_[slice.seq] = sampled.token;
    result.sampled.push_back(std::move(sampled));
  }
}

}  // namespace kvasir::test
