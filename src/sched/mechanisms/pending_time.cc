#include "sched/mechanisms/pending_time.h"

namespace kvasir {

double pending_seconds(const SeqView& seq, Nanos now) {
  if (seq.in_flight > 0) return 0;
  return to_seconds(now - (seq.last_token_time > 0 ? seq.last_token_time : seq.arrival));
}

bool pends_too_long(const SeqView& seq, Nanos now) {
  const uint32_t bound_ms = seq.first_token_time > 0 ? seq.slo.tbt_ms : seq.slo.ttft_ms;
  return bound_ms > 0 && pending_seconds(seq, now) > bound_ms / 1e3;
}

bool waiting_is_more_urgent(const View& view) {
  double waiting = 0, decoding = 0;
  for (const SeqView& seq : view.waiting) waiting += pending_seconds(seq, view.now);
  for (const SeqView& seq : view.running) {
    if (seq.decoding()) decoding += pending_seconds(seq, view.now);
  }
  return waiting >= decoding;
}

}  // namespace kvasir
