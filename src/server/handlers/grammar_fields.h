// The fields of a request that say what its output must be. Internal to src/server and its tests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "server/api_request.h"
#include "server/json_fields.h"

namespace kvasir {

// Setters of the table of fields (request_fields.h). They check types; the grammar itself is checked when it
// is compiled. A request has one grammar at most.
void set_response_format(ApiRequest& request, const nlohmann::json& value, JsonFields& errors);
void set_structured_outputs(ApiRequest& request, const nlohmann::json& value, JsonFields& errors);
void set_guided_json(ApiRequest& request, const nlohmann::json& value, JsonFields& errors);
void set_guided_regex(ApiRequest& request, const nlohmann::json& value, JsonFields& errors);
void set_guided_choice(ApiRequest& request, const nlohmann::json& value, JsonFields& errors);
void set_guided_grammar(ApiRequest& request, const nlohmann::json& value, JsonFields& errors);

// An output has its properties in the order of the schema, which parsed objects do not keep: takes the schema
// from the body once more. REQUIRES: the request was read from this body.
void keep_schema_order(std::string_view body, ApiRequest& request);

}  // namespace kvasir
