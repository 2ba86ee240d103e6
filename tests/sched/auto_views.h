// Small views for tests of the policy `auto`: blocks of 16 tokens.
#pragma once

#include "base/clock.h"
#include "fakes/views.h"

namespace kvasir::test {

constexpr Nanos kAutoNow = 100 * kNanosPerSecond;

// A step takes 20 ms, a row of a prompt 1 ms, a decode 1 ms and a microsecond for each token of context.
inline View auto_view(uint32_t total_blocks, uint32_t free_blocks) {
  View view = make_view(total_blocks, free_blocks);
  view.now = kAutoNow;
  view.limits.max_num_batched_tokens = 512;
  view.costs.step_s = 0.02;
  view.costs.prefill_row_s = 1e-3;
  view.costs.decode_row_s = 1e-3;
  view.costs.context_s = 1e-6;
  return view;
}

inline SeqView auto_waiting(uint64_t id, uint32_t prompt, double seconds_ago, Slo slo, uint32_t output = 50) {
  SeqView s = waiting_seq(id, prompt);
  s.max_total_tokens = prompt + 1000;
  s.arrival = kAutoNow - from_seconds(seconds_ago);
  s.slo = slo;
  s.predicted.output_tokens = output;
  return s;
}

inline SeqView auto_decoding(uint64_t id, uint32_t prompt, uint32_t known, double gap_so_far, Slo slo,
                             uint32_t output = 50) {
  SeqView s = decoding_seq(id, prompt, known);
  s.max_total_tokens = prompt + 1000;
  s.arrival = kAutoNow - kNanosPerSecond;
  s.first_token_time = kAutoNow - from_seconds(0.9);
  s.last_token_time = kAutoNow - from_seconds(gap_so_far);
  s.slo = slo;
  s.predicted.output_tokens = output;
  return s;
}

}  // namespace kvasir::test
