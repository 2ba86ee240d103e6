// The endpoints that answer at once. Internal to src/server.
#pragma once

#include <optional>
#include <string_view>

#include "server/http_message.h"
#include "server/router.h"
#include "server/server_context.h"

namespace kvasir {

// REQUIRES: the route is not kChat or kCompletions.
HttpResponse simple_answer(const ServerContext& context, const Route& route, std::string_view method,
                           std::string_view target);

// Why a request that generates cannot be taken now: loading or draining.
std::optional<ApiError> not_ready(const ServerContext& context);

// 404 unless `model` is empty or one of those that are served.
std::optional<ApiError> unknown_model(const ServerContext& context, const std::string& model);

}  // namespace kvasir
