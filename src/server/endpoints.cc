// Models, health, metrics, version, and everything that is refused by its path or method.
#include "server/endpoints.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "server/metrics_text.h"
#include "server/response_writer.h"

namespace kvasir {
namespace {

constexpr int kRetryWhenNotReady = 5;  // seconds

HttpResponse health(const ServerContext& context) {
  if (auto e = not_ready(context)) return error_response(*e);
  return json_response(R"({"status":"ok"})");
}

HttpResponse metrics(const ServerContext& context) {
  const ModelService* service = context.service.get();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_text(
      service ? &service->backend->metrics() : nullptr, *context.counters,
      context.options.model_names.front(),
      service ? service->backend->cache_config() : std::vector<std::pair<std::string, std::string>>(),
      service && service->outside_metrics ? service->outside_metrics() : std::vector<OutsideMetric>());
  return response;
}

// What a client sent, short enough to be quoted back.
std::string_view clipped(std::string_view text) {
  return text.substr(0, 100);
}

HttpResponse refused(int status, std::string message, std::string code) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  e.code = std::move(code);
  return error_response(e);
}

}  // namespace

std::optional<ApiError> not_ready(const ServerContext& context) {
  if (context.draining) {
    return unavailable("the server is shutting down; try another one", "draining", kRetryWhenNotReady);
  }
  if (!context.service) {
    return unavailable("the model is still loading; try again soon", "loading", kRetryWhenNotReady);
  }
  return std::nullopt;
}

std::optional<ApiError> unknown_model(const ServerContext& context, const std::string& model) {
  const auto& names = context.options.model_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return std::nullopt;
  ApiError e = bad_field("model", fmt::format("the model '{}' does not exist here; this server has '{}'",
                                              clipped(model), names.front()));
  e.status = 404;
  e.code = "model_not_found";
  return e;
}

HttpResponse simple_answer(const ServerContext& context, const Route& route, std::string_view method,
                           std::string_view target) {
  const uint32_t max_model_len = context.service ? context.service->backend->max_model_len() : 0;
  switch (route.endpoint) {
    case Endpoint::kModels:
      return json_response(models_json(context.options.model_names, context.created, max_model_len));
    case Endpoint::kModel:
      if (auto e = unknown_model(context, route.model_id)) return error_response(*e);
      return json_response(model_json(route.model_id, context.created, max_model_len));
    case Endpoint::kHealth:
      return health(context);
    case Endpoint::kMetrics:
      return metrics(context);
    case Endpoint::kVersion:
      return json_response(version_json(context.options.version));
    case Endpoint::kWrongMethod: {
      HttpResponse response = refused(
          405, fmt::format("{} is not allowed for {}; use {}", clipped(method), clipped(target), route.allow),
          "method_not_allowed");
      response.allow = route.allow;
      return response;
    }
    case Endpoint::kOff:
      return refused(501, fmt::format("{} is not offered by this server", clipped(target)),
                     "not_implemented");
    case Endpoint::kUnknown:
      return refused(404,
                     fmt::format("there is nothing at {}; see /v1/chat/completions, /v1/completions, "
                                 "/v1/models, /health and /metrics",
                                 clipped(target)),
                     "not_found");
    case Endpoint::kChat:
    case Endpoint::kCompletions:
      break;
  }
  KV_CHECK(false, "endpoint {} generates", static_cast<int>(route.endpoint));
  return {};
}

}  // namespace kvasir
