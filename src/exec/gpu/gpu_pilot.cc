// The pilot: goes along with steps on the device.
#include <new>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "exec/gpu/gpu_executor.h"

namespace kvasir {
namespace {

using Kind = GpuFlight::Moment::Kind;

// The words are so short that they need no memory.
template <typename F>
Status guarded(const F& part) {
  try {
    return part();
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kExhausted, "no memory"};
  }
}

}  // namespace

// ---------------------------------------------------------------- the engine's thread

void GpuExecutor::submit(Step step) {
  KV_CHECK(mail_.in_flight() < depth(), "{} steps run still", mail_.in_flight());
  mail_.submit(std::move(step));
  if (has_thread()) return;
  take_up();
  GpuFlight& f = flight(0);
  while (f.begun && f.status.ok() && f.passed < f.moments.size() && options_.goes_along_in_submit()) {
    f.status = guarded([&] { return pass_next(f); });
  }
}

StepResult GpuExecutor::wait() {
  KV_CHECK(mail_.in_flight() > 0, "no step is in flight");
  if (!has_thread()) complete_oldest();
  StepLetter& letter = mail_.take();
  if (letter.lacked_memory) throw std::bad_alloc();
  for (const TappedRow& row : letter.tapped) tap_(row.seq, row.position, row.logits);
  return std::move(letter.result);
}

// ---------------------------------------------------------------- the pilot

void GpuExecutor::fly() {
  while (mail_.await_step()) {
    take_up();
    while (at_hand_ > 0) {
      // It may wait for transfers that the end of the step before starts, and a link calls a transfer that
      // has not been started done.
      if (!mutant(Mutant::kStepUnsettled)) mail_.await_settled();
      complete_oldest();
    }
  }
}

void GpuExecutor::take_up() {
  GpuFlight& f = flight(at_hand_++);
  f.reset(mail_.open());
  if (at_hand_ == 1) return try_to_begin(f);
  queue_second();
}

void GpuExecutor::queue_second() {
  GpuFlight& f = flight(1);
  // Behind one that has failed, or is not queued yet, nothing is queued.
  if (!flight(0).status.ok() || !flight(0).is_queued) return;
  f.status = guarded([&] { return queue(f, &flight(0)); });
  if (!f.status.ok()) tables_.forget_all();  // some may not have been uploaded
}

Status GpuExecutor::queue_long() {
  GpuFlight& f = flight(0);
  is_queueing_long_ = true;
  const Status status = guarded([&] { return queue(f, /*before=*/nullptr); });
  is_queueing_long_ = false;
  ++queued_long_;
  if (!status.ok()) tables_.forget_all();
  return status.ok() ? f.status : status;
}

void GpuExecutor::make_way(GpuFlight& f, uint64_t entries) {
  const auto is_full = [&] {
    const uint64_t behind = behind_gates(f);
    return behind > 0 && behind + entries > kMostBehindAGate;
  };
  while (is_queueing_long_ && f.status.ok() && is_full()) f.status = pass_next(f);
  entries_ += entries;
}

void GpuExecutor::complete_oldest() {
  GpuFlight& f = flight(0);
  StepLetter& letter = *f.letter;
  const auto attempt = [&](const auto& part) {
    try {
      part();
    } catch (const std::bad_alloc&) {
      letter.lacked_memory = true;
    }
  };
  attempt([&] {
    if (!f.begun) begin(f);
    if (f.status.ok()) f.status = guarded([&] { return run(f); });
  });
  // Whatever has happened, its gates are opened, so that the stream comes to the end of it.
  open_gates(f);
  attempt([&] {
    const Status ended = f.is_complete ? wait_for(f.end_mark) : stream_->wait();
    failure_.note(ended);
    if (f.status.ok()) f.status = ended;
    f.result.status = f.status;
    if (f.begun) transfers_.end(f.result);
    f.result.ended = clock_.now();
  });
  f.step = nullptr;
  first_ = 1 - first_;
  --at_hand_;
  if (at_hand_ > 0) try_to_begin(flight(0));
  if (mutant(Mutant::kStepLetGo)) letter.step = {};
  letter.result = std::move(f.result);
  mail_.answer();
}

void GpuExecutor::try_to_begin(GpuFlight& f) {
  try {
    begin(f);
  } catch (const std::bad_alloc&) {  // complete_oldest() tries again
  }
}

void GpuExecutor::begin(GpuFlight& f) {
  const bool is_early = f.letter->is_early && !mutant(Mutant::kEarlyStepUnknown);
  transfers_.begin(*f.step, is_early);
  f.begun = true;
  f.result.started = clock_.now();
  GpuFlight& other = &f == &flights_[0] ? flights_[1] : flights_[0];
  if (f.status.ok() && f.letter->is_early) {
    f.status = guarded([&] {
      resolve_references(f, other);
      return Status();
    });
  }
  if (f.status.ok() && !f.is_queued) {
    f.status = guarded([&] { return queue(f, /*before=*/nullptr); });
    if (!f.status.ok()) tables_.forget_all();
  } else if (f.is_queued) {
    leave_out_deferred(f);
  }
  if (f.begin_gate) gpu_.open_gate(gate_word(), *f.begin_gate);
}

void GpuExecutor::leave_out_deferred(GpuFlight& f) {
  auto* const slices = reinterpret_cast<ops::gpu::SlicePlace*>(f.pinned_image.data());
  for (size_t s = 0; s < f.step->slices.size(); ++s) {
    if (transfers_.deferred(s)) slices[s].left_out = 1;
  }
}

void GpuExecutor::resolve_references(GpuFlight& f, const GpuFlight& before) {
  for (StepSlice& slice : f.step->slices) {
    if (!slice.last_token_by_reference) continue;
    // Of a step that failed there is none, and what comes of this slice does not count.
    const Token token = before.status.ok()
                            ? before.pinned_tokens.data<Token>()[before.image.sampling_row_of(slice.seq)]
                            : Token{0};
    f.step->token_ids[slice.first_token + slice.tokens.size() - 1] = token;
    if (slice.history_tokens + 1 != slice.tokens.end) continue;
    // Its history is not read.
    if (is_drawn_on_device(slice.sampling) && !slice.scores) continue;
    std::vector<Token>& history = f.step->history;
    const auto at = static_cast<uint32_t>(history.size());
    history.reserve(at + slice.history_tokens + 1);
    for (uint32_t i = 0; i < slice.history_tokens; ++i) history.push_back(history[slice.first_history + i]);
    history.push_back(token);
    slice.first_history = at;
    ++slice.history_tokens;
  }
}

Status GpuExecutor::run(GpuFlight& f) {
  KV_RETURN_IF_ERROR(failure_.status());
  if (!f.is_queued) {
    KV_RETURN_IF_ERROR(queue_long());
    if (at_hand_ > 1) queue_second();
  }
  while (f.passed < f.moments.size()) {
    KV_RETURN_IF_ERROR(pass_next(f));
    if (at_hand_ > 1 && flight(1).lacks_room && fits_behind(flight(1), f)) queue_second();
  }
  return take_tokens(f);
}

Status GpuExecutor::pass_next(GpuFlight& f) {
  const GpuFlight::Moment moment = f.moments[f.passed++];
  if (moment.kind == Kind::kMark) {
    KV_RETURN_IF_ERROR(wait_for(moment.value));
    transfers_.pass(moment.at);
    return {};
  }
  if (mutant(Mutant::kGateOpenedEarly)) gpu_.open_gate(gate_word(), moment.value);
  if (transfers_.wait_before(moment.at)) leave_out_deferred(f);
  gpu_.open_gate(gate_word(), moment.value);
  return {};
}

Status GpuExecutor::wait_for(uint32_t mark) {
  const std::atomic<bool>& comes = is_queueing_long_ ? never_ : mail_.has_step();
  for (;;) {
    KV_RETURN_IF_ERROR(stream_->wait_for_mark(mark_word(), mark, comes));
    if (!comes) return {};
    take_up();
  }
}

void GpuExecutor::open_gates(const GpuFlight& f) {
  if (f.last_gate) gpu_.open_gate(gate_word(), *f.last_gate);
}

}  // namespace kvasir
