// Latency objectives as clients write them: in headers, or in the body's 'slo'. Internal to src/server.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "contract/slo.h"
#include "server/api_error.h"

namespace kvasir {

// A header such as x-slo-ttft-ms or x-llm-d-slo-ttft-ms (any case) sets its bound; others are left alone. 400
// for one that begins so and is unknown, or whose value is no whole number in range.
std::optional<ApiError> read_slo_header(std::string_view name, std::string_view value, Slo& slo);

// The object {ttft_ms, tpot_ms, tbt_ms, e2el_ms}, each of them optional. 400 for anything else.
std::optional<ApiError> read_slo_field(const nlohmann::json& value, Slo& slo);

// What the server makes of what was asked, the body before the headers: its own bound where nothing was
// asked, and never one below `tightest`.
struct SloPolicy {
  Slo otherwise;
  Slo tightest;  // 0: any

  Slo resolve(const Slo& body, const Slo& headers) const;
};

}  // namespace kvasir
