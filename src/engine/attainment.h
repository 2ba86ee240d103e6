// Whether a finished request met the bounds on its latency.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "contract/slo.h"

namespace kvasir {

// The papers define "SLO attainment" differently, so each definition has a name. Besides the TTFT, the bound
// is on the mean TPOT, on the 99th percentile of a request's own gaps, or on every gap (docs/benchmarking.md
// lists the papers).
enum class SloKind : uint8_t { kTtft, kMeanTpot, kP99Tbt, kEveryTbt, kE2el };
inline constexpr std::array kSloKinds = {SloKind::kTtft, SloKind::kMeanTpot, SloKind::kP99Tbt,
                                         SloKind::kEveryTbt, SloKind::kE2el};

constexpr const char* name(SloKind kind) {
  switch (kind) {
    case SloKind::kTtft:
      return "ttft";
    case SloKind::kMeanTpot:
      return "mean_tpot";
    case SloKind::kP99Tbt:
      return "p99_tbt";
    case SloKind::kEveryTbt:
      return "every_tbt";
    case SloKind::kE2el:
      return "e2el";
  }
  return "?";
}

// One request's latency. A gap is the time between two of its tokens, as the engine published them.
struct RequestLatency {
  Nanos ttft = 0;
  Nanos e2el = 0;
  Nanos decoding = 0;  // from the first token to the last
  uint32_t gaps = 0;
  uint32_t late_gaps = 0;  // gaps longer than the request's bound on TBT
};

// No value: the request has no such bound. A request without gaps meets every bound on them. The 99th
// percentile is within the bound if at most one gap in a hundred is late.
inline std::optional<bool> attained(SloKind kind, const Slo& slo, const RequestLatency& r) {
  const auto within = [](Nanos time, uint32_t millis) {
    return millis == 0 ? std::nullopt : std::optional(time <= Nanos{millis} * kNanosPerMilli);
  };
  switch (kind) {
    case SloKind::kTtft:
      return within(r.ttft, slo.ttft_ms);
    case SloKind::kMeanTpot:
      return within(r.gaps == 0 ? 0 : r.decoding / r.gaps, slo.tpot_ms);
    case SloKind::kP99Tbt:
      if (slo.tbt_ms == 0) return std::nullopt;
      return uint64_t{r.late_gaps} * 100 <= r.gaps;
    case SloKind::kEveryTbt:
      if (slo.tbt_ms == 0) return std::nullopt;
      return r.late_gaps == 0;
    case SloKind::kE2el:
      return within(r.e2el, slo.e2el_ms);
  }
  return std::nullopt;
}

}  // namespace kvasir
