// POST /v1/embeddings, as OpenAI has it. Internal to src/server and its tests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <variant>

#include "server/api_request.h"
#include "server/json_fields.h"

namespace kvasir {

// Pure, thread-safe; throws nothing but bad_alloc.
std::variant<ApiRequest, ApiError> parse_embeddings_request(std::string_view body,
                                                            const ApiRequest& defaults = {});

// Setters of the table of fields; null counts as a wrong value.
void set_embedding_input(ApiRequest& request, const nlohmann::json& input, JsonFields& errors);
void set_encoding_format(ApiRequest& request, const nlohmann::json& format, JsonFields& errors);

}  // namespace kvasir
