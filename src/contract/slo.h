// The latency bounds that a client asks for one request.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvasir {

// Upper bounds in milliseconds; 0: none. A request is good if it meets all that it has.
struct Slo {
  uint32_t ttft_ms = 0;  // from arrival to the first token
  uint32_t tpot_ms = 0;  // the mean time per output token after the first
  uint32_t tbt_ms = 0;   // between any two tokens
  uint32_t e2el_ms = 0;  // from arrival to the last token

  bool any() const { return (ttft_ms | tpot_ms | tbt_ms | e2el_ms) != 0; }
  friend bool operator==(const Slo&, const Slo&) = default;
};

// A bound and its name in flags ("ttft:500"), headers ("x-slo-ttft-ms") and bodies ("ttft_ms").
struct SloKey {
  std::string_view name;
  uint32_t Slo::*millis;
};
inline constexpr std::array<SloKey, 4> kSloKeys = {
    {{"ttft", &Slo::ttft_ms}, {"tpot", &Slo::tpot_ms}, {"tbt", &Slo::tbt_ms}, {"e2el", &Slo::e2el_ms}}};

// The longest that may be asked for: a day.
inline constexpr uint32_t kMaxSloMillis = 86'400'000;

}  // namespace kvasir
