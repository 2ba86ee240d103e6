// The endpoints that need no body: models, health, metrics, version.
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/access_log.h"
#include "server/json_fields.h"
#include "server/metrics_text.h"
#include "server/server_context.h"
#include "server/traces/span_exporter.h"

namespace kvasir {
namespace {

nlohmann::json model_object(const ServerContext& server, const std::string& name) {
  // `root` and `parent` are vLLM's, whose `bench serve` needs the former.
  nlohmann::json model = {{"id", name},           {"object", "model"}, {"created", server.created},
                          {"owned_by", "kvasir"}, {"root", name},      {"parent", nullptr}};
  const uint32_t max_model_len = server.service ? server.service->backend->max_model_len() : 0;
  if (max_model_len > 0) model["max_model_len"] = max_model_len;
  return model;
}

std::vector<OutsideMetric> outside_metrics(const ServerContext& server) {
  const ModelService* service = server.service.get();
  std::vector<OutsideMetric> metrics =
      service && service->outside_metrics ? service->outside_metrics() : std::vector<OutsideMetric>();
  const auto add = [&](const auto& source) {
    if (!source) return;
    const std::vector<OutsideMetric> more = source->metrics();
    metrics.insert(metrics.end(), more.begin(), more.end());
  };
  metrics.push_back({"log_lines_dropped_total", "counter", static_cast<double>(log_lines_dropped()),
                     "Lines on standard error that were not written, because its reader was too slow."});
  add(server.options.access_log);
  add(server.options.spans);
  return metrics;
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

// Nothing here waits for the engine's thread: that it may hang is the point.
void handle_livez(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  if (auto e = server.failure()) return exchange.respond(error_response(*e));
  const ModelService* service = server.service.get();
  const Nanos silent = service && service->backend ? service->backend->silent_for() : 0;
  if (silent > server.options.liveness_timeout) {
    return exchange.respond(error_response(unavailable(
        fmt::format("the engine has shown no sign of life for {:.0f} s; the process should be restarted",
                    to_seconds(silent)),
        "not_alive", /*retry_after_s=*/0)));
  }
  exchange.respond(json_response(R"({"status":"ok"})"));
}

void handle_readyz(Exchange& exchange) {
  if (auto e = exchange.server().unready()) return exchange.respond(error_response(*e));
  exchange.respond(json_response(R"({"status":"ok"})"));
}

void handle_metrics(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  const ModelService* service = server.service.get();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  const Backend* backend = service ? service->backend : nullptr;
  response.body = metrics_text(
      backend ? &backend->metrics() : nullptr, *server.counters, server.options.model_names.front(),
      backend ? backend->cache_config() : std::vector<std::pair<std::string, std::string>>(),
      outside_metrics(server), server.keys.get(), server.options.metrics_prefix);
  exchange.respond(response);
}

// On a worker: what it is made of is copied under a lock that the engine's turns take, too.
void handle_cluster_status(Exchange& exchange) {
  const std::shared_ptr<const ModelService> service = exchange.server().service;
  if (!service) return exchange.respond(error_response(*exchange.server().not_ready()));
  if (!service->cluster_status) {
    ApiError e;
    e.status = 404;
    e.message = "this instance is in no cluster";
    e.code = "not_found";
    return exchange.respond(error_response(e));
  }
  exchange.run_on_worker([service](const std::string&, const std::atomic<bool>&) -> Exchange::Then {
    return [text = service->cluster_status()](Exchange& x) { x.respond(json_response(text)); };
  });
}

// From now on the server takes no new requests, as after SIGTERM, but goes on running. It may be asked again,
// to see how many requests are left.
void handle_drain(Exchange& exchange) {
  const size_t running = exchange.server().begin_drain();
  exchange.respond(json_response(dump_json({{"status", "draining"}, {"running_requests", running}})));
}

void handle_version(Exchange& exchange) {
  exchange.respond(json_response(dump_json({{"version", exchange.server().options.version}})));
}

}  // namespace kvasir
