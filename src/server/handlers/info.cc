// The endpoints that need no body: models, health, metrics, version, and what is not offered.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/json_fields.h"
#include "server/metrics_text.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

nlohmann::json model_object(const ServerContext& server, const std::string& name) {
  nlohmann::json model = {
      {"id", name}, {"object", "model"}, {"created", server.created}, {"owned_by", "kvasir"}};
  const uint32_t max_model_len = server.service ? server.service->backend->max_model_len() : 0;
  if (max_model_len > 0) model["max_model_len"] = max_model_len;
  return model;
}

}  // namespace

void handle_models(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& name : server.options.model_names) list.push_back(model_object(server, name));
  exchange.respond(json_response(dump_json({{"object", "list"}, {"data", std::move(list)}})));
}

void handle_model(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  const std::string& name = exchange.request().parameter;
  if (auto e = server.unknown_model(name)) return exchange.respond(error_response(*e));
  exchange.respond(json_response(dump_json(model_object(server, name))));
}

void handle_health(Exchange& exchange) {
  if (auto e = exchange.server().not_ready()) return exchange.respond(error_response(*e));
  exchange.respond(json_response(R"({"status":"ok"})"));
}

void handle_metrics(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  const ModelService* service = server.service.get();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_text(
      service ? &service->backend->metrics() : nullptr, *server.counters, server.options.model_names.front(),
      service ? service->backend->cache_config() : std::vector<std::pair<std::string, std::string>>(),
      service && service->outside_metrics ? service->outside_metrics() : std::vector<OutsideMetric>());
  exchange.respond(response);
}

void handle_embeddings(Exchange& exchange) {
  ApiError e;
  e.status = 501;
  e.message =
      "this model is no embedding model: the server runs models that generate text, and gives their text "
      "only";
  e.code = "not_implemented";
  exchange.respond(error_response(e));
}

void handle_version(Exchange& exchange) {
  exchange.respond(json_response(dump_json({{"version", exchange.server().options.version}})));
}

}  // namespace kvasir
