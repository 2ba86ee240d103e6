// Runs steps on the CPU: one at a time, in wait(), with helpers of its own.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "contract/executor.h"
#include "exec/cpu/decoder.h"
#include "exec/cpu/thread_pool.h"
#include "exec/step_transfers.h"

namespace kvasir {

class CpuExecutor final : public Executor {
 public:
  // Everything referred to outlives the executor. The thread that calls wait() is one of `threads`; `cpus` as
  // in ThreadPool. link: null where there is none; steps then have no transfers.
  CpuExecutor(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
              const Decoder::Options& options, std::byte* device_memory, int threads, const Clock& clock,
              std::vector<int> cpus = {}, Link* link = nullptr);

  // Makes room for steps of so many rows in advance. Larger steps still grow it.
  // kExhausted: there is no memory for it.
  Status reserve(uint32_t rows) { return decoder_.reserve(rows); }
  uint64_t scratch_bytes() const { return decoder_.scratch_bytes(); }

  int depth() const override { return 1; }
  void submit(Step step) override;
  StepResult wait() override;
  Nanos came_on_at() const override { return transfers_.came_on_at(); }
  void give_up_waiting() override { transfers_.give_up_waiting(); }

  // Tests and evaluation only; not while a step runs.
  void set_tap(LogitsTap tap) { decoder_.set_tap(std::move(tap)); }

 private:
  // A part of the step. kExhausted: there was no memory for it. No thread works on it any more.
  template <typename F>
  Status guarded(const F& part);

  const Clock& clock_;
  ThreadPool pool_;
  Decoder decoder_;
  StepTransfers transfers_;
  std::optional<Step> step_;
  Status status_;  // not ok: the step did not start
  Nanos started_ = 0;
};

}  // namespace kvasir
