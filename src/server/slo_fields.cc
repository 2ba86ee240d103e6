#include "server/slo_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "server/json_fields.h"

namespace kvasir {
namespace {

ApiError wrong(const std::string& name) {
  return bad_field(
      name, fmt::format("'{}' must be a whole number of milliseconds from 1 to {}", name, kMaxSloMillis));
}

}  // namespace

std::optional<ApiError> read_slo_header(std::string_view name, std::string_view value, Slo& slo) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  std::string_view rest = lower;
  bool found = false;
  for (std::string_view prefix : {"x-slo-", "x-llm-d-slo-"}) {
    if (!rest.starts_with(prefix)) continue;
    rest.remove_prefix(prefix.size());
    found = true;
    break;
  }
  if (!found) return std::nullopt;
  for (const SloKey& bound : kSloKeys) {
    if (rest != fmt::format("{}-ms", bound.name)) continue;
    uint32_t millis = 0;
    const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), millis);
    if (ec != std::errc() || end != value.data() + value.size() || millis == 0 || millis > kMaxSloMillis) {
      return wrong(lower);
    }
    slo.*bound.millis = millis;
    return std::nullopt;
  }
  const std::string shown = lower.substr(0, 100);
  ApiError e = bad_field(
      shown, fmt::format("the header '{}' is not known: there are x-slo-ttft-ms, x-slo-tpot-ms, x-slo-tbt-ms "
                         "and x-slo-e2el-ms",
                         shown));
  e.code = "unsupported_parameter";
  return e;
}

std::optional<ApiError> read_slo_field(const nlohmann::json& value, Slo& slo) {
  if (!value.is_object()) return bad_field("slo", "'slo' must be an object");
  for (const auto& [key, item] : value.items()) {
    const auto* bound = std::find_if(kSloKeys.begin(), kSloKeys.end(), [&, &k = key](const SloKey& b) {
      return k == fmt::format("{}_ms", b.name);
    });
    const std::string name = "slo." + key.substr(0, 100);
    if (bound == kSloKeys.end()) {
      return bad_field(
          name, fmt::format("'{}' is not known: there are ttft_ms, tpot_ms, tbt_ms and e2el_ms", name));
    }
    if (item.is_null()) continue;
    const std::optional<int64_t> millis = whole_number(item);
    if (!millis || *millis < 1 || *millis > kMaxSloMillis) return wrong(name);
    slo.*bound->millis = static_cast<uint32_t>(*millis);
  }
  return std::nullopt;
}

Slo SloPolicy::resolve(const Slo& body, const Slo& headers) const {
  Slo out;
  for (const SloKey& bound : kSloKeys) {
    uint32_t& millis = out.*bound.millis;
    for (const Slo* from : {&body, &headers, &otherwise}) {
      if (millis == 0) millis = from->*bound.millis;
    }
    if (millis > 0) millis = std::max(millis, tightest.*bound.millis);
  }
  return out;
}

}  // namespace kvasir
