// What comes of a step: tokens, log-probabilities, hidden rows.
#include <algorithm>
#include <utility>

#include "exec/gpu/gpu_executor.h"
#include "ops/cpu/isa.h"

namespace kvasir {

bool is_drawn_on_device(const SamplingParams& s) {
  return !s.rules && !s.constraint && s.min_p == 0 && s.typical_p == 1 && s.forced_end == 0;
}

bool GpuExecutor::needs_logits(const GpuFlight& f, const LogitUse& use) const {
  const SamplingParams& sampling = f.step->slices[use.slice].sampling;
  return tap_ != nullptr || !use.samples || sampling.logprobs >= 0 || !is_drawn_on_device(sampling);
}

size_t GpuExecutor::host_rows(const GpuFlight& f) const {
  const std::span<const LogitUse> uses = f.image.logit_uses();
  return static_cast<size_t>(
      std::count_if(uses.begin(), uses.end(), [&](const LogitUse& use) { return needs_logits(f, use); }));
}

Status GpuExecutor::take_tokens(GpuFlight& f) {
  masks_.await(*f.step, transfers_);
  const size_t all = f.image.logit_uses().size();
  if (f.is_complete) {
    KV_RETURN_IF_ERROR(wait_for(f.end_mark));
    take_rows(f, 0, all, 0);
  } else {
    for (size_t first = 0; first < all; first += kLogitRows) {
      const size_t count = std::min(kLogitRows, all - first);
      queue_tokens(f, first, count, 0);
      KV_RETURN_IF_ERROR(stream_->wait());
      take_rows(f, first, count, 0);
    }
  }
  take_hidden(f);
  return {};
}

void GpuExecutor::take_rows(GpuFlight& f, size_t first, size_t count, size_t at) {
  const ops::FlushToZero mode;
  const auto vocabulary = static_cast<size_t>(model_.spec.vocab_size);
  for (size_t i = first; i < first + count; ++i) {
    const LogitUse& use = f.image.logit_uses()[i];
    const bool has_logits = needs_logits(f, use);
    const std::span<const float> logits(f.pinned_logits.data<float>() + at * vocabulary,
                                        has_logits ? vocabulary : 0);
    at += has_logits ? 1 : 0;
    if (transfers_.deferred(use.slice)) continue;
    // What the sampler draws takes the place of what the device has drawn, for a step that refers to it.
    Token& token = f.pinned_tokens.data<Token>()[i];
    token = take_row(f, use, logits, token);
    if (tap_ && use.samples) {
      f.letter->tapped.push_back(
          {f.step->slices[use.slice].seq, use.position, {logits.begin(), logits.end()}});
    }
  }
}

Token GpuExecutor::take_row(GpuFlight& f, const LogitUse& use, std::span<const float> logits, Token drawn) {
  const StepSlice& slice = f.step->slices[use.slice];
  const std::span<const Token> history = f.step->history_of(slice);
  if (!use.samples) {
    ScoredToken scored = sampler_.score(logits, history[use.position + 1], slice.sampling.prompt_logprobs);
    scored.seq = slice.seq;
    scored.position = use.position + 1;
    f.result.scored.push_back(std::move(scored));
    return drawn;
  }
  if (!is_drawn_on_device(slice.sampling)) {
    f.result.sampled.push_back(
        sampler_.sample(logits, slice.sampling, use.position + 1, history, slice.seq, masks_.of(use.slice)));
    return f.result.sampled.back().token;
  }
  SampledToken& sampled = f.result.sampled.emplace_back();
  sampled.seq = slice.seq;
  sampled.token = drawn;
  if (slice.sampling.logprobs >= 0) {
    ScoredToken scored = sampler_.score(logits, drawn, slice.sampling.logprobs);
    sampled.logprob = scored.logprob;
    sampled.top = std::move(scored.top);
  }
  return drawn;
}

void GpuExecutor::take_hidden(GpuFlight& f) {
  const auto dim = static_cast<size_t>(model_.spec.dim);
  const float* row = f.pinned_hidden.data<float>();
  for (const StepImage::HiddenUse& use : f.image.hidden_uses()) {
    if (!transfers_.deferred(use.slice)) {
      f.result.hidden.push_back(
          {f.step->slices[use.slice].seq, use.position, std::vector<float>(row, row + dim)});
    }
    row += dim;
  }
}

}  // namespace kvasir
