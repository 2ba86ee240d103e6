#include "fakes/shadow_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir::test {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
  h ^= h >> 29;
  h *= 0x94D049BB133111EBu;
  return h ^ (h >> 32);
}

}  // namespace

uint64_t ShadowModel::slot(uint64_t previous, Token token, uint64_t fold) {
  return mix(mix(previous, static_cast<uint64_t>(token)), fold);
}

uint64_t ShadowModel::term(uint64_t slot, uint32_t group, uint32_t plane, uint32_t position) {
  return mix(slot, (uint64_t{position} << 16) | (uint64_t{group} << 1) | plane);
}

Token ShadowModel::sample(uint64_t fold, uint64_t seed, uint32_t position) {
  return static_cast<Token>(mix(mix(fold, seed), position) % kShadowVocab);
}

void ShadowModel::feed(Token token) {
  slot_ = slot(slot_, token, fold_);
  for (uint32_t g = 0; g < groups_; ++g) {
    for (uint32_t plane : {0u, 1u}) fold_ += term(slot_, g, plane, position_);
  }
  ++position_;
}

std::vector<Token> shadow_output(uint32_t groups, std::span<const Token> prompt, uint64_t seed,
                                 uint32_t max_tokens, std::span<const Token> stop_tokens) {
  ShadowModel model(groups);
  for (Token t : prompt) model.feed(t);
  std::vector<Token> out;
  while (out.size() < max_tokens) {
    out.push_back(model.sample(seed));
    if (std::find(stop_tokens.begin(), stop_tokens.end(), out.back()) != stop_tokens.end()) break;
    model.feed(out.back());
  }
  return out;
}

ShadowExecutor::ShadowExecutor(const CacheGeometry& geometry, uint64_t device_bytes, int depth,
                               VirtualClock& clock)
    : geometry_(geometry), depth_(depth), clock_(clock) {
  slots_.resize(device_bytes / geometry.frame_bytes(FrameClass::kKvPlane) * geometry.block_tokens);
}

uint64_t& ShadowExecutor::at(const Step& step, const StepSlice& slice, uint32_t position, uint32_t group,
                             uint32_t plane) {
  const KvFrames& frames = step.frames(slice, geometry_.block_of(position), group);
  const uint64_t offset = plane == 0 ? frames.k.offset : frames.v.offset;
  const uint64_t frame = offset / geometry_.frame_bytes(FrameClass::kKvPlane);
  return slots_[frame * geometry_.block_tokens + position % geometry_.block_tokens];
}

void ShadowExecutor::submit(Step step) {
  KV_CHECK(pending_.size() < static_cast<size_t>(depth_), "{} steps are in flight", pending_.size());
  ++submitted_;
  for (const StepSlice& slice : step.slices) {
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
      for (uint32_t g = 0; g < step.groups; ++g) {
        for (uint32_t plane : {0u, 1u}) at(step, slice, p, g, plane) = mix(submitted_, 0xBAD);
      }
    }
  }
  pending_.push_back({std::move(step), std::exchange(fail_next_, false)});
}

void ShadowExecutor::run_slice(const Step& step, const StepSlice& slice, StepResult& result) {
  uint64_t fold = 0;
  for (uint32_t p = 0; p < slice.tokens.begin; ++p) {
    for (uint32_t g = 0; g < step.groups; ++g) {
      for (uint32_t plane : {0u, 1u}) fold += ShadowModel::term(at(step, slice, p, g, plane), g, plane, p);
    }
  }
  uint64_t previous = slice.tokens.begin == 0 ? 0 : at(step, slice, slice.tokens.begin - 1, 0, 0);
  for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
    Token token = step.token_ids[slice.first_token + (p - slice.tokens.begin)];
    if (slice.last_token_by_reference && p + 1 == slice.tokens.end) {
      auto it = last_sample_.find(slice.seq);
      token = it == last_sample_.end() ? -1 : it->second;
    }
    previous = ShadowModel::slot(previous, token, fold);
    for (uint32_t g = 0; g < step.groups; ++g) {
      for (uint32_t plane : {0u, 1u}) {
        at(step, slice, p, g, plane) = previous;
        fold += ShadowModel::term(previous, g, plane, p);
      }
    }
  }
  if (!slice.samples) return;
  SampledToken sampled;
  sampled.seq = slice.seq;
  sampled.token = ShadowModel::sample(fold, slice.sampling.seed, slice.tokens.end);
  last_sample_[slice.seq] = sampled.token;
  result.sampled.push_back(std::move(sampled));
}

StepResult ShadowExecutor::wait() {
  KV_CHECK(!pending_.empty(), "no step is in flight");
  const Pending pending = std::move(pending_.front());
  pending_.pop_front();
  StepResult result;
  result.id = pending.step.id;
  result.started = clock_.now();
  clock_.advance(1000 * static_cast<Nanos>(pending.step.row_count()));
  result.ended = clock_.now();
  if (pending.fails) {
    result.status = error(ErrorCode::kIo, "the shadow step was told to fail");
    return result;
  }
  for (const StepSlice& slice : pending.step.slices) run_slice(pending.step, slice, result);
  return result;
}

}  // namespace kvasir::test
