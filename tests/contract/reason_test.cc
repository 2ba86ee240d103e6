// Reasons in words.
#include "contract/reason.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvasir {
namespace {

constexpr SeqId kSeq{3}, kOther{7};

TEST(Reason, EachInWords) {
  const struct {
    Reason reason;
    const char* words;
  } cases[] = {
      {{Cause::kArrivedLast, kSeq, kOther, 12}, "preempted 3: 7 needs 12 blocks, and 3 arrived last"},
      {{Cause::kLowestPriority, kSeq, kOther, 1},
       "preempted 3: 7 needs 1 block, and 3 is the last by priority"},
      {{Cause::kLowestPriority, kSeq, kOther, 0},
       "preempted 3: 7 needs a place, and 3 is the last by priority"},
      {{Cause::kLeastValue, kSeq, kOther, 1},
       "preempted 3: 7 needs 1 block, and 3 is the last by value for its memory, then by arrival"},
      {{Cause::kPromptIsBegun, kSeq, kOther, 1},
       "preempted 3: 7 needs 1 block, and the prompt of 3 is not done"},
      {{Cause::kFirstInOrder, kSeq, kOther, 2, 370},
       "preempted 3: 7 needs 2 blocks, and 3 comes first by loose bound, output left (370 tokens) and little "
       "memory"},
      {{Cause::kMostLeft, kSeq, kSeq, 2, 280},
       "preempted 3: it needs 2 blocks, and 3 has most output left, 280 tokens"},
      {{Cause::kLeastMemory, kSeq, kOther, 2, 23},
       "preempted 3: 7 needs 2 blocks, and 3 has the least memory, of 23 tokens"},
      {{Cause::kOutgrew, kSeq, {}, 1, 4},
       "preempted 3: it outgrew its room of 4 blocks for the predicted output, and needs 1 block more"},
      {{Cause::kLoanIsDue, kSeq, kOther, 6, 40},
       "preempted 3: 7 has come to 40 tokens and takes back the 6 cells that it lent"},
      {{Cause::kSwaps, kSeq, {}, 0.012, 0.04},
       "3 is copied away: that and back takes 12 ms, to compute it again 40 ms"},
      {{Cause::kRecomputes, kSeq, {}, 0.04, 0.012},
       "3 is to be computed again in 12 ms: to copy it away and back takes 40 ms"},
      {{Cause::kGivesLayers, kSeq, {}, 10, 4},
       "3 keeps 4 layer groups of its full blocks on the device: 10 cells will be missing, and 3 is the "
       "newest "
       "that has some"},
      {{Cause::kGivesBegin, kSeq, {}, 1, 3},
       "3 keeps 1 block less of the begin of its history on the device, 3 less in all, so that more requests "
       "can run"},
      {{Cause::kSpills, kSeq, {}, 16, 256},
       "256 tokens of 3 go to peers: 16 cells will be missing, and 3 is the longest that has some to give"},
      {{Cause::kNoFreeBlock, kSeq, {}, 1, 4},
       "3 has no row: it needs 1 block, none can be had, and 4 will be free when steps and transfers end"},
      {{Cause::kNoFreeBlock, kSeq, {}, 1, 0}, "3 has no row: it needs 1 block, and none can be had"},
      {{Cause::kStandstill, kSeq}, "preempted 3: nothing could go on, and 3 is the last to be served"},
      {{Cause::kIsLate, kSeq, kOther, 1}, "preempted 3: 7 needs 1 block, and 3 is late"},
      {{Cause::kCanWait, kSeq, kOther, 5.25, 1}, "preempted 3: 7 needs 1 block, and 3 has 5.25 s left"},
      {{Cause::kCostliest, kSeq, kOther, 12.3, 1},
       "preempted 3: 7 needs 1 block, and 3 costs most to finish, 12.3 s"},
      {{Cause::kBecomesX, kSeq}, "preempted 3: its history is to be computed again and kept as X"},
      {{Cause::kBecomesKv, kSeq}, "preempted 3: its history is to be computed again and kept as K and V"},
      {{Cause::kNotChosen, kSeq}, "preempted 3: the batch of most value has no room for it"},
      {{Cause::kMakesWay, kSeq, kOther, 12, 1},
       "preempted 3: late, it makes way for the queue from 7 on, which lacks 12 blocks and 1 places"},
      {{Cause::kTurnAlone, kSeq, {}, 4},
       "3 has the step alone: its transfers came too late 4 times in a row"},
      {{Cause::kAdmitted, kSeq, {}, 1.5, 0.8},
       "admitted 3: it costs 1.5 s to finish, its next token is due in 800 ms"},
      {{Cause::kAdmittedWithoutBounds, kSeq, {}, 1.5},
       "admitted 3: it has no bounds and costs 1.5 s to finish"},
      {{Cause::kAdmittedLate, kSeq, {}, 0.0125},
       "admitted 3, late: no other needs the room; it costs 12.5 ms"},
      {{Cause::kAdmittedOnCredit, kSeq, {}, 1.2}, "served 3, late: its credit pays its cost of 1.2 s"},
      {{Cause::kAdmittedAway, kSeq, {}, 0.212},
       "admitted 3 away: first token due in 212 ms, no room on the device"},
      {{Cause::kShortChunk, kSeq, kOther, 51, 0.08}, "cut 3 to 51 rows: the next token of 7 is due in 80 ms"},
      {{Cause::kShortChunkForAll, kSeq, {}, 160, 0.2},
       "cut 3 to 160 rows: requests without bounds are to have gaps below 200 ms"},
      {{Cause::kSitsOut, kSeq},
       "3 is late and has no row: with it the batch would exceed the gap of another"},
      {{Cause::kNoMemory, kSeq, {}, 12, 7}, "not admitted 3: it needs 12 blocks, 7 can be had"},
      {{Cause::kOutgrows, kSeq, {}, 14'250.4, 13'315},
       "not admitted 3: those whose gaps are bounded would grow to 14250 tokens, of 13315"},
      {{Cause::kNoPlace, kSeq, {}, 256}, "not admitted 3: 256 requests run, and no more may"},
      {{Cause::kNoTime, kSeq, kOther, 0.05}, "not admitted 3: the batch would exceed the gap of 50 ms of 7"},
      {{Cause::kNoTimeForAll, kSeq, {}, 0.2},
       "not admitted 3: the batch would exceed the gap of 200 ms of requests without bounds"},
      {{Cause::kStepIsFull, kSeq}, "not admitted 3: the step has no time left for its prompt"},
      {{Cause::kWaitsOnCredit, kSeq, {}, 0.4, 1.2}, "3 is late and waits on credit: 400 ms of 1.2 s"},
      {{Cause::kMissedTtft, kSeq, {}, 0.12, 1}, "late 3: missed ttft of 1 s by 120 ms"},
      {{Cause::kMissedGap, kSeq, {}, 0.05}, "late 3: a gap was longer than 50 ms"},
      {{Cause::kMissedEnd, kSeq, {}, 2, 10}, "late 3: missed e2el of 10 s by 2 s"},
      {{Cause::kBehindMean, kSeq, {}, 0.4}, "late 3: by 400 ms its mean gap will exceed tpot"},
      {{Cause::kBehindEnd, kSeq, {}, 0.4}, "late 3: by 400 ms it will exceed e2el"},
      {{Cause::kStretched, kSeq, {}, 16.02}, "late 3: without bounds, it took 16.02 times as long as alone"},
      {{Cause::kNoGapIsKept, kSeq, {}, 0.012}, "late 3: its gap of 12 ms is given up, as all are"},
      {{Cause::kGapIsGivenUp, kSeq, {}, 0.012, 0.05},
       "late 3: its gap of 12 ms is given up, as all below 50 ms are"},
      {{Cause::kLeastGap, {}, {}, 0.04}, "gaps below 40 ms are given up: they would cost others more"},
      {{Cause::kNoGap}, "all gaps are given up: none can be kept"},
      {{Cause::kStretch, {}, {}, 4}, "requests without bounds may take 4 times as long as alone"},
  };
  std::set<std::string> names, meanings;
  for (const auto& c : cases) {
    EXPECT_EQ(to_string(c.reason), c.words);
    names.insert(name(c.reason.cause));
    meanings.insert(meaning(c.reason.cause));
  }
  EXPECT_EQ(names.size(), kCauses) << "each cause is here, and has a name of its own";
  EXPECT_EQ(meanings.size(), kCauses);
  EXPECT_STREQ(meaning(Cause::kIsLate), "preempted: another request needed memory, and this one was late");
}

}  // namespace
}  // namespace kvasir
