// How long a request has been waiting for its next token, and what that says of its bounds.
//
// Source: Apt-Serve, Section 4.2 (runtime information tracking, the SLO-aware fallback) and Section 5
// (deciding the iteration type).
//
//   symbol   here                              unit
//   p_i      pending_seconds()                 s: now less the last token's time, before the first token less
//                                              the arrival
//   sum p    of the waiting against those      s; the greater sum decides which kind of step is made.
//            that decode                       Requests that have missed a bound count like others
#pragma once

#include "contract/view.h"

namespace kvasir {

// 0 while its rows are in flight: its next token is on its way.
double pending_seconds(const SeqView& seq, Nanos now);

// Whether its pending time is beyond its bound: that on the first token while there is none, that on the gap
// between two tokens from then on. Never without such a bound.
bool pends_too_long(const SeqView& seq, Nanos now);

// Whether the waiting requests together pend for no less time than those that decode.
bool waiting_is_more_urgent(const View& view);

}  // namespace kvasir
