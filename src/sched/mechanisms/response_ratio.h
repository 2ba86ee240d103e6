// How much more a request is worth the longer it has been here, where nothing is promised to it.
//
//   w (1 + t / e)    t: since its arrival; e: what it would take alone
//
// The factor is its response ratio so far. Orders by size over worth serve the shortest first among requests
// that have just arrived, but a long one is not put off for ever: after as many times e as it is larger than
// the others, it is equal to them.
//
// Source: highest response ratio next, Brinch Hansen, "An analysis of response ratio scheduling", IFIP 1971.
#pragma once

#include <algorithm>

namespace kvasir {

inline double worth_by_response_ratio(double weight, double age_s, double alone_s) {
  return alone_s > 0 ? weight * (1 + std::max(age_s, 0.0) / alone_s) : weight;
}

}  // namespace kvasir
