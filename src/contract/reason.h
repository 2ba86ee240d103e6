// Why a plan does what it does: data in the plan, made into words only where they are read.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "contract/ids.h"

namespace kvasir {

// What `other`, `a` and `b` of a Reason mean stands behind each cause; times are in seconds.
enum class Cause : uint8_t {
  // --- `seq` is preempted.
  // First those for whose sake `other`, which may be `seq` itself, needs a blocks: each is a rule of choice.
  kArrivedLast,     // it arrived last
  kLowestPriority,  // it is the last by priority; a = 0: `other` needs a place
  kLeastValue,      // it is the last by value for its memory, then by arrival
  kPromptIsBegun,   // its prompt is not done, and others decode
  kFirstInOrder,    // a loose bound, much output left, of which b tokens, and little memory
  kMostLeft,        // it has most output left: b tokens
  kLeastMemory,     // it has least in memory: b tokens
  kIsLate,          // it is late
  kCanWait,         // `other` needs b blocks; the next token of `seq` is due in a
  kCostliest,       // `other` needs b blocks; what is left of `seq` costs a
  kOutgrew,         // it needs a blocks beyond the b that it has, as its output was predicted
  kLoanIsDue,       // it has a cells on loan from `other`, which has come to b tokens
  kStandstill,      // by any policy: else nothing could go on, and it is the last to be served
  kBecomesX,        // its history is to be computed again and kept as X
  kBecomesKv,       // the same, and kept as K and V
  kNotChosen,       // the batch of most value for the memory has no room for it
  kMakesWay,        // it is late; `other` heads the queue, which lacks a blocks and b places

  // --- The memory of `seq` shrinks.
  kSwaps,        // it is preempted: to copy it away and back takes a, to compute it again b
  kRecomputes,   // the same, and is not copied
  kGivesLayers,  // full blocks keep b layer groups here: a cells will be missing, and it is the newest
  kGivesBegin,   // a more of its blocks leave the device, b in all, so that more requests can run
  kSpills,       // b tokens go to peers: a cells will be missing, and it is the longest that has some

  // --- `seq` has rows.
  kTurnAlone,              // by any policy: alone, since its transfers came too late a times in a row
  kAdmitted,               // what is left of it costs a; its next token is due in b
  kAdmittedWithoutBounds,  // what is left of it costs a
  kAdmittedLate,           // what is left of it costs a; none on time lacks anything
  kAdmittedOnCredit,       // it is late; the credit pays a
  kAdmittedAway,           // its first token is due in a; its history goes to the slower tier
  kShortChunk,             // a rows, all for which there is time: the next token of `other` is due in b
  kShortChunkForAll,       // the same, for the gap b of requests without bounds

  // --- `seq` waits on.
  kNoFreeBlock,   // it runs, and needs a blocks that are not there; b are about to come free, or 0
  kSitsOut,       // it runs and is late; with its row the batch would exceed the gap of one on time
  kNoMemory,      // it needs a blocks, and b can be had
  kOutgrows,      // with it those with bounded gaps are believed to grow to a tokens, and there is room for b
  kNoPlace,       // a requests run
  kNoTime,        // with it the batch would exceed the gap a of `other`
  kNoTimeForAll,  // the same, the gap a of requests without bounds
  kStepIsFull,    // the step has no time left for it
  kWaitsOnCredit,  // it is the first of the late; of its cost b the credit has a

  // --- `seq` is late from now on: it is served behind those that are on time.
  kMissedTtft,    // by a, of b
  kMissedGap,     // a gap of it was longer than a
  kMissedEnd,     // E2EL, by a, of b
  kBehindMean,    // its mean gap will exceed its TPOT: it is a behind
  kBehindEnd,     // it will exceed its E2EL: it is a behind
  kStretched,     // without bounds, it took a times as long as it would alone
  kNoGapIsKept,   // none is kept, and so not its gap a
  kGapIsGivenUp,  // its gap a is less than the least that is worth keeping, b

  // --- Of all requests.
  kLeastGap,  // gaps of less than a are given up from now on; 0: none is
  kNoGap,     // no bound on a gap can be kept
  kStretch,   // requests without bounds are due after a times what they would take alone
};
constexpr size_t kCauses = static_cast<size_t>(Cause::kStretch) + 1;

struct Reason {
  Cause cause = Cause::kArrivedLast;
  SeqId seq{};    // the request that it concerns; 0: all
  SeqId other{};  // the request for whose sake; 0: none
  double a = 0;   // finite
  double b = 0;   // finite
  friend bool operator==(const Reason&, const Reason&) = default;
};

// A short name, as for a label: "preempt_costliest". Each name begins with what is done.
const char* name(Cause cause);

// What all reasons of a cause have in common, in plain words, as for a count of them.
const char* meaning(Cause cause);

// One line for people: "preempted 3: 7 needs 1 block, and 3 costs most to finish, 12.3 s".
std::string to_string(const Reason& reason);

}  // namespace kvasir
