// Latency objectives in a request: its headers, or the field 'slo' of its body. Internal to src/server.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "contract/slo.h"
#include "server/api_error.h"

namespace kvasir {

// Sets the bound of a header such as x-slo-ttft-ms or x-llm-d-slo-ttft-ms, in upper or lower case. Ignores
// headers with another prefix. 400 for an unknown name with this prefix, and for a value that is not a whole
// number in range.
std::optional<ApiError> read_slo_header(std::string_view name, std::string_view value, Slo& slo);

// Reads the object {ttft_ms, tpot_ms, tbt_ms, e2el_ms}, each optional. 400 for anything else.
std::optional<ApiError> read_slo_field(const nlohmann::json& value, Slo& slo);

// How the server resolves a bound: the body's, else the headers', else its own; but not below `tightest`.
struct SloPolicy {
  Slo otherwise;
  Slo tightest;  // 0: no limit

  Slo resolve(const Slo& body, const Slo& headers) const;
};

}  // namespace kvasir
