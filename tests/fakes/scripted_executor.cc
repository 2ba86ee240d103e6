#include "fakes/scripted_executor.h"

#include <utility>

#include "base/check.h"
#include "contract/forced_end.h"

namespace kvasir::test {

void ScriptedExecutor::submit(Step step) {
  KV_CHECK(pending_.size() < static_cast<size_t>(depth_), "{} steps are in flight", pending_.size());
  for (const StepTransfer& f : step.transfers) {
    if (link) link->start(f.transfer);
  }
  pending_.push_back(steps_.size());
  steps_.push_back(std::move(step));
}

StepResult ScriptedExecutor::wait() {
  KV_CHECK(!pending_.empty(), "no step is in flight");
  const size_t index = pending_.front();
  pending_.pop_front();
  const Step& step = steps_[index];
  StepResult result;
  result.id = step.id;
  result.started = clock_.now();
  clock_.advance(step_time_);
  result.ended = clock_.now();
  if (auto it = failures_.find(index + 1); it != failures_.end()) {
    result.status = error(ErrorCode::kIo, "{}", it->second);
    return result;
  }
  for (const StepSlice& s : step.slices) {
    for (uint32_t p = s.tokens.begin; p < s.tokens.end; ++p) {
      if (!s.gives_hidden(p)) continue;
      result.hidden.push_back({s.seq, p, {static_cast<float>(raw(s.seq)), static_cast<float>(p + 1)}});
    }
    if (!s.samples) continue;
    SampledToken sampled;
    sampled.seq = s.seq;
    sampled.token = with_forced_end(s.sampling, s.tokens.end, sample(s.seq, s.tokens.end), INT32_MAX);
    result.sampled.push_back(std::move(sampled));
  }
  return result;
}

}  // namespace kvasir::test
