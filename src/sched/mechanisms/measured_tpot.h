// The time between two tokens of a request as it is measured, all waits included.
//
// Source: LayerKV, Section 3.1: the expected remaining time of a request is N_future times "the current
// TPOT", and its time so far includes "time waiting for decoding". Our reading: the current TPOT is that of
// all requests that have their first token, whether they decode or wait (for layers, or for memory after a
// preemption),
//
//   TPOT = sum over requests of their time in the window / tokens that they got in it
//
// so if a third of them decode in each step, it is three steps. The window fades: each step in which a token
// came leaves 31/32 of what was measured before.
//
//   symbol                  here                                                unit
//   time in the window      `request_s_`, from the first token on               s
//   tokens                  `tokens_`, those after the first                    tokens
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "contract/view.h"

namespace kvasir {

// Deterministic in the views that it has seen.
class MeasuredTpot {
 public:
  // Once for each plan. If no request has its first token, what was measured is forgotten.
  void observe(const View& view);
  // `otherwise` until the first token has come.
  double seconds(double otherwise) const { return tokens_ > 0 ? request_s_ / tokens_ : otherwise; }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  Nanos last_ = 0;  // of the view before; 0: none
  double request_s_ = 0;
  double tokens_ = 0;
};

}  // namespace kvasir
