#include "contract/reason.h"

#include <fmt/format.h>

#include <iterator>

namespace kvasir {
namespace {

// {s}: the sequence, {o}: the other one; {a}, {b}: numbers, {at}, {bt}: the same as times.
struct Words {
  Cause cause;
  const char* name;
  const char* text;
};

constexpr Words kWords[] = {
    {Cause::kNeedsBlock, "preempt_memory", "preempted {s}: {o} needs a block"},
    {Cause::kStandstill, "preempt_standstill", "preempted {s}: nothing could go on"},
    {Cause::kIsLate, "preempt_late", "preempted {s}: {o} needs a block, and {s} is late"},
    {Cause::kCanWait, "preempt_can_wait", "preempted {s}: {o} needs a block, and {s} has {at} left"},
    {Cause::kCostliest, "preempt_costliest",
     "preempted {s}: {o} needs a block, and {s} costs most to finish, {at}"},
    {Cause::kMakesWay, "preempt_make_way",
     "preempted {s}: late, it makes way for the queue from {o} on, which lacks {a} blocks and {b} places"},

    {Cause::kTurnAlone, "alone", "{s} has the step alone: its transfers came too late {a} times in a row"},
    {Cause::kAdmitted, "admit", "admitted {s}: it costs {at} to finish, its next token is due in {bt}"},
    {Cause::kAdmittedWithoutBounds, "admit_without_bounds",
     "admitted {s}: it has no bounds and costs {at} to finish"},
    {Cause::kAdmittedLate, "admit_late", "admitted {s}, late: no other needs the room; it costs {at}"},
    {Cause::kAdmittedOnCredit, "admit_on_credit", "served {s}, late: its credit pays its cost of {at}"},
    {Cause::kAdmittedAway, "admit_away", "admitted {s} away: first token due in {at}, no room on the device"},
    {Cause::kShortChunk, "chunk_gap", "cut {s} to {a} rows: the next token of {o} is due in {bt}"},
    {Cause::kShortChunkForAll, "chunk_default_gap",
     "cut {s} to {a} rows: requests without bounds are to have gaps below {bt}"},

    {Cause::kNoMemory, "wait_memory", "not admitted {s}: it needs {a} blocks, {b} can be had"},
    {Cause::kNoPlace, "wait_place", "not admitted {s}: {a} requests run, and no more may"},
    {Cause::kNoTime, "wait_gap", "not admitted {s}: the batch would exceed the gap of {at} of {o}"},
    {Cause::kNoTimeForAll, "wait_default_gap",
     "not admitted {s}: the batch would exceed the gap of {at} of requests without bounds"},
    {Cause::kStepIsFull, "wait_step", "not admitted {s}: the step has no time left for its prompt"},
    {Cause::kWaitsOnCredit, "wait_credit", "{s} is late and waits on credit: {at} of {bt}"},

    {Cause::kMissedTtft, "late_ttft", "late {s}: missed ttft of {bt} by {at}"},
    {Cause::kMissedGap, "late_tbt", "late {s}: a gap was longer than {at}"},
    {Cause::kMissedEnd, "late_e2el", "late {s}: missed e2el of {bt} by {at}"},
    {Cause::kBehindMean, "late_tpot", "late {s}: by {at} its mean gap will exceed tpot"},
    {Cause::kBehindEnd, "late_e2el_ahead", "late {s}: by {at} it will exceed e2el"},
    {Cause::kStretched, "late_stretch", "late {s}: without bounds, it took {a} times as long as alone"},
    {Cause::kNoGapIsKept, "late_no_gap", "late {s}: its gap of {at} is given up, as all are"},
    {Cause::kGapIsGivenUp, "late_gap_given_up",
     "late {s}: its gap of {at} is given up, as all below {bt} are"},

    {Cause::kLeastGap, "least_gap", "gaps below {at} are given up: they would cost others more"},
    {Cause::kNoGap, "no_gap", "all gaps are given up: none can be kept"},
    {Cause::kStretch, "stretch", "requests without bounds may take {a} times as long as alone"},
};
static_assert(std::size(kWords) == kCauses);

constexpr bool in_order() {
  for (size_t i = 0; i < kCauses; ++i) {
    if (kWords[i].cause != static_cast<Cause>(i)) return false;
  }
  return true;
}
static_assert(in_order());

std::string number(double value) {
  return fmt::format("{:.4g}", value);
}

std::string time(double seconds) {
  return seconds < 1 && seconds > -1 ? fmt::format("{:.3g} ms", 1e3 * seconds)
                                     : fmt::format("{:.3g} s", seconds);
}

}  // namespace

const char* name(Cause cause) {
  return kWords[static_cast<size_t>(cause)].name;
}

std::string to_string(const Reason& reason) {
  return fmt::format(fmt::runtime(kWords[static_cast<size_t>(reason.cause)].text),
                     fmt::arg("s", raw(reason.seq)), fmt::arg("o", raw(reason.other)),
                     fmt::arg("a", number(reason.a)), fmt::arg("b", number(reason.b)),
                     fmt::arg("at", time(reason.a)), fmt::arg("bt", time(reason.b)));
}

}  // namespace kvasir
