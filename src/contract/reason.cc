#include "contract/reason.h"

#include <fmt/format.h>

#include <iterator>

namespace kvasir {
namespace {

// text: of one reason, with {s}: the sequence, {o}: the other one, {it}: the same, or "it"; {a}, {b}:
// numbers, and the same {at}, {bt}: as times, {ab}, {bb}: as blocks, {ac}: as cells, {bk}: as tokens, {bg}:
// as layer groups; {need}: a blocks, or a place; {coming}: that none can be had, and what b says of it.
struct Words {
  Cause cause;
  const char* name;
  const char* meaning;
  const char* text;
};

constexpr Words kWords[] = {
    {Cause::kArrivedLast, "preempt_latest",
     "preempted: another request needed memory, and this one arrived last",
     "preempted {s}: {it} needs {ab}, and {s} arrived last"},
    {Cause::kLowestPriority, "preempt_priority",
     "preempted: another request needed memory or a place, and this one was the last by priority",
     "preempted {s}: {it} needs {need}, and {s} is the last by priority"},
    {Cause::kLeastValue, "preempt_least_value",
     "preempted: another request needed memory, and this one was the last by value for its own, then arrival",
     "preempted {s}: {it} needs {ab}, and {s} is the last by value for its memory, then by arrival"},
    {Cause::kPromptIsBegun, "preempt_prompt",
     "preempted: another request needed memory, and the prompt of this one was not done",
     "preempted {s}: {it} needs {ab}, and the prompt of {s} is not done"},
    {Cause::kFirstInOrder, "preempt_order",
     "preempted: another request needed memory, and this one came first by bound, output left and memory",
     "preempted {s}: {it} needs {ab}, and {s} comes first by loose bound, output left ({bk}) and little "
     "memory"},
    {Cause::kMostLeft, "preempt_most_left",
     "preempted: another request needed memory, and this one had most output left",
     "preempted {s}: {it} needs {ab}, and {s} has most output left, {bk}"},
    {Cause::kLeastMemory, "preempt_least_memory",
     "preempted: another request needed memory, and this one had the least",
     "preempted {s}: {it} needs {ab}, and {s} has the least memory, of {bk}"},
    {Cause::kIsLate, "preempt_late", "preempted: another request needed memory, and this one was late",
     "preempted {s}: {it} needs {ab}, and {s} is late"},
    {Cause::kCanWait, "preempt_can_wait",
     "preempted: another request needed memory, and the bounds of this one left it time",
     "preempted {s}: {it} needs {bb}, and {s} has {at} left"},
    {Cause::kCostliest, "preempt_costliest",
     "preempted: another request needed memory, and this one cost most to finish",
     "preempted {s}: {it} needs {bb}, and {s} costs most to finish, {at}"},
    {Cause::kOutgrew, "preempt_outgrew", "preempted: it outgrew the room for its predicted output",
     "preempted {s}: it outgrew its room of {bb} for the predicted output, and needs {ab} more"},
    {Cause::kLoanIsDue, "preempt_loan", "preempted: memory that it was lent was due",
     "preempted {s}: {o} has come to {bk} and takes back the {ac} that it lent"},
    {Cause::kStandstill, "preempt_standstill", "preempted: else nothing could have gone on",
     "preempted {s}: nothing could go on, and {s} is the last to be served"},
    {Cause::kBecomesX, "preempt_become_x",
     "preempted: its history is to be computed again, and kept as X in less memory",
     "preempted {s}: its history is to be computed again and kept as X"},
    {Cause::kBecomesKv, "preempt_become_kv",
     "preempted: its history, which was kept as X, is to be computed again and kept as K and V",
     "preempted {s}: its history is to be computed again and kept as K and V"},
    {Cause::kNotChosen, "preempt_not_chosen", "preempted: the batch of most value had no room for it",
     "preempted {s}: the batch of most value has no room for it"},
    {Cause::kMakesWay, "preempt_make_way",
     "preempted: it was late, and those on time waited for its memory or its place",
     "preempted {s}: late, it makes way for the queue from {o} on, which lacks {a} blocks and {b} places"},

    {Cause::kSwaps, "swap", "preempted and copied away: to compute it again would take longer",
     "{s} is copied away: that and back takes {at}, to compute it again {bt}"},
    {Cause::kRecomputes, "recompute", "preempted and not copied away: to compute it again takes no longer",
     "{s} is to be computed again in {bt}: to copy it away and back takes {at}"},
    {Cause::kGivesLayers, "offload", "layers went to the slower tier, for room that was about to be needed",
     "{s} keeps {bg} of its full blocks on the device: {ac} will be missing, and {s} is the newest that has "
     "some"},
    {Cause::kGivesBegin, "keep_less",
     "the begin of its history left the device, so that more requests could run",
     "{s} keeps {ab} less of the begin of its history on the device, {b} less in all, so that more requests "
     "can run"},
    {Cause::kSpills, "spill", "the begin of its history went to peers, for room that was about to be needed",
     "{bk} of {s} go to peers: {ac} will be missing, and {s} is the longest that has some to give"},

    {Cause::kTurnAlone, "alone", "had a step alone: its transfers had come too late several times in a row",
     "{s} has the step alone: its transfers came too late {a} times in a row"},
    {Cause::kAdmitted, "admit", "admitted: on time, and there was room",
     "admitted {s}: it costs {at} to finish, its next token is due in {bt}"},
    {Cause::kAdmittedWithoutBounds, "admit_without_bounds", "admitted: without bounds, and there was room",
     "admitted {s}: it has no bounds and costs {at} to finish"},
    {Cause::kAdmittedLate, "admit_late", "admitted: late, and no other needed the room",
     "admitted {s}, late: no other needs the room; it costs {at}"},
    {Cause::kAdmittedOnCredit, "admit_on_credit", "served though late: the credit paid for its turn",
     "served {s}, late: its credit pays its cost of {at}"},
    {Cause::kAdmittedAway, "admit_away", "admitted before there was room on the device, for its first token",
     "admitted {s} away: first token due in {at}, no room on the device"},
    {Cause::kShortChunk, "chunk_gap", "a prompt got fewer rows in a step, for the next token of another",
     "cut {s} to {a} rows: the next token of {o} is due in {bt}"},
    {Cause::kShortChunkForAll, "chunk_default_gap",
     "a prompt got fewer rows in a step, for the gaps of requests without bounds",
     "cut {s} to {a} rows: requests without bounds are to have gaps below {bt}"},

    {Cause::kNoFreeBlock, "sit_out_memory", "had no row in a step: no block was free for it",
     "{s} has no row: it needs {ab}, {coming}"},
    {Cause::kSitsOut, "sit_out",
     "had no row in a step: it was late, and the batch would have exceeded a gap of others",
     "{s} is late and has no row: with it the batch would exceed the gap of another"},
    {Cause::kNoMemory, "wait_memory", "stayed out of a step: too few blocks",
     "not admitted {s}: it needs {ab}, {b} can be had"},
    {Cause::kOutgrows, "wait_growth", "stayed out of a step: the batch would have outgrown the memory",
     "not admitted {s}: those whose gaps are bounded would grow to {a} tokens, of {b}"},
    {Cause::kNoPlace, "wait_place", "stayed out of a step: no more requests may run at once",
     "not admitted {s}: {a} requests run, and no more may"},
    {Cause::kNoTime, "wait_gap", "stayed out of a step: the batch would have exceeded the gap of a request",
     "not admitted {s}: the batch would exceed the gap of {at} of {o}"},
    {Cause::kNoTimeForAll, "wait_default_gap",
     "stayed out of a step: the batch would have exceeded the gap of requests without bounds",
     "not admitted {s}: the batch would exceed the gap of {at} of requests without bounds"},
    {Cause::kStepIsFull, "wait_step", "stayed out of a step: no time was left for its prompt",
     "not admitted {s}: the step has no time left for its prompt"},
    {Cause::kWaitsOnCredit, "wait_credit", "the first late request waited for credit in a step",
     "{s} is late and waits on credit: {at} of {bt}"},

    {Cause::kMissedTtft, "late_ttft", "became late: it had no first token within its bound",
     "late {s}: missed ttft of {bt} by {at}"},
    {Cause::kMissedGap, "late_tbt", "became late: a gap was too long",
     "late {s}: a gap was longer than {at}"},
    {Cause::kMissedEnd, "late_e2el", "became late: it did not end within its bound",
     "late {s}: missed e2el of {bt} by {at}"},
    {Cause::kBehindMean, "late_tpot", "became late: its mean gap would exceed its bound",
     "late {s}: by {at} its mean gap will exceed tpot"},
    {Cause::kBehindEnd, "late_e2el_ahead", "became late: it would not end within its bound",
     "late {s}: by {at} it will exceed e2el"},
    {Cause::kStretched, "late_stretch",
     "became late: without bounds, it took too many times as long as alone",
     "late {s}: without bounds, it took {a} times as long as alone"},
    {Cause::kNoGapIsKept, "late_no_gap", "became late: its gap was given up, as all were",
     "late {s}: its gap of {at} is given up, as all are"},
    {Cause::kGapIsGivenUp, "late_gap_given_up", "became late: its gap was given up, as all short ones were",
     "late {s}: its gap of {at} is given up, as all below {bt} are"},

    {Cause::kLeastGap, "least_gap", "the least gap that is kept changed",
     "gaps below {at} are given up: they would cost others more"},
    {Cause::kNoGap, "no_gap", "all gaps were given up", "all gaps are given up: none can be kept"},
    {Cause::kStretch, "stretch", "how long requests without bounds may take changed",
     "requests without bounds may take {a} times as long as alone"},
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
  return value < 1000 ? fmt::format("{:.4g}", value) : fmt::format("{:.0f}", value);
}

std::string many(double value, const char* thing) {
  return fmt::format("{} {}{}", number(value), thing, value == 1 ? "" : "s");
}

std::string time(double seconds) {
  return seconds < 1 && seconds > -1 ? fmt::format("{:.3g} ms", 1e3 * seconds)
                                     : fmt::format("{:.3g} s", seconds);
}

std::string coming(double blocks) {
  if (blocks <= 0) return "and none can be had";
  return fmt::format("none can be had, and {} will be free when steps and transfers end", number(blocks));
}

}  // namespace

const char* name(Cause cause) {
  return kWords[static_cast<size_t>(cause)].name;
}

const char* meaning(Cause cause) {
  return kWords[static_cast<size_t>(cause)].meaning;
}

std::string to_string(const Reason& reason) {
  const std::string other = reason.other == reason.seq ? "it" : fmt::format("{}", raw(reason.other));
  return fmt::format(fmt::runtime(kWords[static_cast<size_t>(reason.cause)].text),
                     fmt::arg("s", raw(reason.seq)), fmt::arg("o", raw(reason.other)), fmt::arg("it", other),
                     fmt::arg("a", number(reason.a)), fmt::arg("b", number(reason.b)),
                     fmt::arg("at", time(reason.a)), fmt::arg("bt", time(reason.b)),
                     fmt::arg("ab", many(reason.a, "block")), fmt::arg("bb", many(reason.b, "block")),
                     fmt::arg("ac", many(reason.a, "cell")), fmt::arg("bk", many(reason.b, "token")),
                     fmt::arg("bg", many(reason.b, "layer group")),
                     fmt::arg("need", reason.a > 0 ? many(reason.a, "block") : "a place"),
                     fmt::arg("coming", coming(reason.b)));
}

}  // namespace kvasir
