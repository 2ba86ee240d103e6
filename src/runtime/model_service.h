// What the HTTP server needs of a model, from a runtime.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "runtime/runtime.h"
#include "server/prompt.h"

namespace kvasir {

// `runtime` and `backend` outlive what is returned. Requests are sampled as the model's files say, and where
// these say nothing at all, by the server's defaults.
ModelService make_service(Runtime& runtime, Backend& backend);

// Sets the defaults of requests that the JSON object of --override-generation-config has.
// kInvalidArgument: it is no such object; the message names the field.
Status override_sampling(std::string_view json, ModelService& service);

// --pooling: how embeddings are made: none, last or mean; auto: as the model's files say.
void override_pooling(std::string_view name, ModelService& service);

// What requests have that say nothing, for people: "temperature 0.7, min_p 0.05".
std::string sampling_text(const ModelService& service);

}  // namespace kvasir
