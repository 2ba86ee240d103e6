#include "exec/cpu/cpu_executor.h"

#include <utility>

#include "base/check.h"

namespace kvasir {

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
  transfers_.begin(*step_);
  prepared_ = decoder_.prepare(*step_);
}

StepResult CpuExecutor::wait() {
  KV_CHECK(step_.has_value(), "no step is in flight");
  if (prepared_.ok()) decoder_.run(*step_, transfers_);
  StepResult result;
  result.id = step_->id;
  result.status = prepared_;
  result.sampled = std::move(decoder_.sampled());
  result.scored = std::move(decoder_.scored());
  result.hidden = std::move(decoder_.hidden());
  transfers_.end(result);
  result.started = started_;
  result.ended = clock_.now();
  step_.reset();
  return result;
}

}  // namespace kvasir
