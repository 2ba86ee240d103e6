#include "exec/sim/sim_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace kvasir {

Token SimExecutor::token(SeqId seq, uint32_t position) const {
  return static_cast<Token>(random_bits(options_.seed, raw(seq), position) %
                            static_cast<uint64_t>(options_.vocab_size));
}

Nanos SimExecutor::duration(const Step& step) const {
  const SimTruth& t = options_.truth;
  double us = t.step_us;
  for (const StepSlice& s : step.slices) {
    const double rows = s.tokens.size();
    us += rows * (s.kind == RowKind::kDecode ? t.decode_row_us : t.prefill_token_us);
    // Row p attends to p + 1 tokens.
    us += t.history_token_us * rows * (s.tokens.begin + 1 + s.tokens.end) / 2;
  }
  return static_cast<Nanos>(us * 1000.0);
}

void SimExecutor::submit(Step step) {
  KV_CHECK(pending_.size() < static_cast<size_t>(options_.depth), "{} steps are in flight", pending_.size());
  StepResult result;
  result.id = step.id;
  for (const StepSlice& s : step.slices) {
    if (!s.samples) continue;
    SampledToken sampled;
    sampled.seq = s.seq;
    sampled.token = token(s.seq, s.tokens.end);
    result.sampled.push_back(std::move(sampled));
  }
  result.started = std::max(free_at_, clock_.now());
  result.ended = result.started + duration(step);
  free_at_ = result.ended;
  pending_.push_back(std::move(result));
}

StepResult SimExecutor::wait() {
  KV_CHECK(!pending_.empty(), "no step is in flight");
  StepResult result = std::move(pending_.front());
  pending_.pop_front();
  if (result.ended > clock_.now()) clock_.advance(result.ended - clock_.now());
  return result;
}

}  // namespace kvasir
