// The time that a request has waited for its next token, compared with its bounds.
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

// Whether its pending time exceeds its bound: the bound on the first token before that token, then the bound
// on the gap between two tokens. False without such a bound.
bool pends_too_long(const SeqView& seq, Nanos now);

// Whether the sum of the waiting requests' pending times is at least that of the decoding requests.
bool waiting_is_more_urgent(const View& view);

}  // namespace kvasir
