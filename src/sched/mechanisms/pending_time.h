// How long a request has been waiting for its next token, and what that says of its bounds.
//
// Source: Apt-Serve, Section 4.2 (runtime information tracking, the SLO-aware fallback) and Section 5
// (deciding the iteration type).
//
//   symbol   here                              unit
//   p_i      pending_seconds()                 s: now less the last token's time, before the first token less
//                                              the arrival
//   sum p    of the waiting against those      s; the greater one decides what kind of step is made. Those
//            that decode                       that have missed a bound keep their weight
#pragma once

#include "contract/view.h"

namespace kvasir {

// Of one whose rows are in flight, 0: its next token is on its way.
double pending_seconds(const SeqView& seq, Nanos now);

// Its pending time is beyond its bound: on the first token while there is none, on the gap between two tokens
// from then on. Without such a bound, never.
bool pends_too_long(const SeqView& seq, Nanos now);

// Those that wait pend for no less time, together, than those that decode.
bool waiting_is_more_urgent(const View& view);

}  // namespace kvasir
