#include "exec/cpu/cpu_executor.h"

#include <new>
#include <utility>

#include "base/check.h"

namespace kvasir {

// The words are so short that they need no memory.
template <typename F>
Status CpuExecutor::guarded(const F& part) {
  try {
    return part();
  } catch (const std::bad_alloc&) {
    pool_.settle();
    return {ErrorCode::kExhausted, "no memory"};
  }
}

CpuExecutor::CpuExecutor(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
                         const Decoder::Options& options, std::byte* device_memory, int threads,
                         const Clock& clock, std::vector<int> cpus, Link* link)
    : clock_(clock),
      pool_(threads, std::move(cpus)),
      decoder_(model, kernels, geometry, options, device_memory, pool_),
      transfers_(link, clock) {}

void CpuExecutor::submit(Step step) {
  KV_CHECK(!step_, "step {} runs still", raw(step_->id));
  for (const StepSlice& slice : step.slices) {
    KV_CHECK(!slice.last_token_by_reference, "seq={}: with one step at a time every token is known",
             raw(slice.seq));
  }
  step_ = std::move(step);
  started_ = clock_.now();
  try {
    transfers_.begin(*step_);
  } catch (const std::bad_alloc&) {
    step_.reset();
    throw;
  }
  status_ = guarded([this] { return decoder_.prepare(*step_); });
}

StepResult CpuExecutor::wait() {
  KV_CHECK(step_.has_value(), "no step is in flight");
  struct Forget {
    std::optional<Step>& step;
    ~Forget() { step.reset(); }
  } forget{step_};
  if (status_.ok()) {
    status_ = guarded([this] {
      decoder_.run(*step_, transfers_);
      return Status();
    });
  }
  StepResult result;
  result.id = step_->id;
  result.status = std::exchange(status_, {});
  result.sampled = std::move(decoder_.sampled());
  result.scored = std::move(decoder_.scored());
  result.hidden = std::move(decoder_.hidden());
  transfers_.end(result);
  result.started = started_;
  result.ended = clock_.now();
  return result;
}

}  // namespace kvasir
