#include "engine/standstill_watch.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "base/log.h"

namespace kvasir {
namespace {

// Where memory is missing, the line is left out and counted.
template <typename... Args>
void log_standstill(const LiveRequest& live, fmt::format_string<Args...> format, Args&&... args) {
  try {
    log_request(LogLevel::kError, live, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::bad_alloc&) {
    count_lost_log_line();
  }
}

}  // namespace

void StandstillWatch::fail(SeqId id, StepPlan& plan) {
  ++metrics_.standstills;
  plan = StepPlan{};
  plan.failures.push_back({id, "there is no memory for this request: try again later, or send less"});
}

void StandstillWatch::fail_head(StepPlan& plan) {
  const SeqView& head = view_.running.empty() ? view_.waiting.front() : view_.running.front();
  log_standstill(*requests_.find(head.id),
                 "the scheduling policy found no way to go on with {} running and {} waiting requests; the "
                 "first one fails",
                 view_.running.size(), view_.waiting.size());
  fail(head.id, plan);
}

void StandstillWatch::break_cycle(StepPlan& plan) {
  for (const Preemption& p : plan.preemptions) {
    const LiveRequest* live = requests_.find(p.seq);
    if (!live) continue;  // check_plan() reports it
    const LiveRequest::Progress& last = live->progress;
    if (last.when_preempted != progress_ || last.preemptions_in_vain < kPreemptionsInVain) continue;
    log_standstill(
        *live,
        "the scheduling policy has preempted a request {} times and no request has made progress; that "
        "request fails",
        last.preemptions_in_vain);
    fail(live->id, plan);
    return;
  }
}

void StandstillWatch::preempted(LiveRequest& live) {
  LiveRequest::Progress& last = live.progress;
  last.preemptions_in_vain = last.when_preempted == progress_ ? last.preemptions_in_vain + 1 : 1;
  last.when_preempted = progress_;
}

void StandstillWatch::ran(LiveRequest& live, uint32_t ready_tokens) {
  if (ready_tokens <= live.progress.furthest_tokens) return;
  live.progress.furthest_tokens = ready_tokens;
  ++progress_;
}

}  // namespace kvasir
