// From the grammar that a request asks for to constraints of its choices.
#pragma once

#include <atomic>
#include <optional>

#include "server/api_error.h"
#include "server/keys/key_usage.h"
#include "server/prompt.h"

namespace kvasir {

// Whether add_constraints() would compile a grammar, which takes up to seconds. Thread-safe.
bool must_compile(const ModelService& service, const PreparedRequest& prepared);

// Gives each generation a constraint of its own if the request has a grammar. The output then ends where the
// grammar does: with `ignore_eos` the model's end tokens come where nothing else may, and nowhere before.
// 400: the field that has the grammar, and what is wrong with it; 503: too many are being compiled.
// The log names the caller's request where a grammar fails later. `abandoned` as for prepare_request().
// Thread-safe.
std::optional<ApiError> add_constraints(const ModelService& service, PreparedRequest& prepared,
                                        const Caller& caller, const std::atomic<bool>* abandoned = nullptr);

}  // namespace kvasir
