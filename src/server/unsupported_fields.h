// Fields that people send to OpenAI's interface, or to its well-known imitations, and that change the answer
// in a way that is not implemented here. Internal to src/server.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "server/api_error.h"
#include "server/api_request.h"

namespace kvasir {

// 400 naming the first field whose value asks for something that is not supported. Neutral values (null,
// empty, the default) pass, and so do fields that nobody knows, and tags that are the client's own business
// and change no answer: `metadata`, `user`.
std::optional<ApiError> find_unsupported_field(const nlohmann::json& body, ApiKind kind);

}  // namespace kvasir
