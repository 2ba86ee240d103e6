// From the body of a POST to a checked ApiRequest.
#pragma once

#include <string_view>
#include <variant>

#include "server/api_error.h"
#include "server/api_request.h"

namespace kvasir {

// Every field that is known is checked for type and range; one that is known and not supported is an error
// that names it; one that nobody knows is ignored. Pure, thread-safe, throws nothing but bad_alloc.
std::variant<ApiRequest, ApiError> parse_request(ApiKind kind, std::string_view body);

}  // namespace kvasir
