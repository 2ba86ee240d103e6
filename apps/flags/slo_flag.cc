#include "apps/flags/slo_flag.h"

#include <algorithm>
#include <charconv>

namespace kvasir {
namespace {

bool read_part(std::string_view part, Slo& slo) {
  const size_t colon = part.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view number = part.substr(colon + 1);
  uint32_t millis = 0;
  const auto [end, ec] = std::from_chars(number.data(), number.data() + number.size(), millis);
  if (ec != std::errc() || end != number.data() + number.size() || millis == 0 || millis > kMaxSloMillis) {
    return false;
  }
  for (const SloKey& key : kSloKeys) {
    if (part.substr(0, colon) != key.name) continue;
    slo.*key.millis = millis;
    return true;
  }
  return false;
}

}  // namespace

Result<Slo> parse_slo(std::string_view flag, std::string_view text) {
  Slo slo;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" ,"), text.size());
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (part.empty()) continue;
    if (!read_part(part, slo)) {
      return error(ErrorCode::kInvalidArgument,
                   "{}: '{}' is not one of ttft:MS, tpot:MS, tbt:MS and e2el:MS, with MS from 1 to {}", flag,
                   part, kMaxSloMillis);
    }
  }
  return slo;
}

}  // namespace kvasir
