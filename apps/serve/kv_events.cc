#include "apps/serve/kv_events.h"

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

#include "apps/flags/command_line.h"
#include "base/log.h"

namespace kvasir {

void add_kv_event_flags(CLI::App& app, ServeOptions& options) {
  app.add_option(
         "--kv-events-config", options.kv_events_config,
         "Tells routers over ZeroMQ which blocks can be reused, as a JSON object such as "
         R"('{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "topic": "kv@POD@MODEL"}'; )"
         "the events contain the tokens of prompts (default: none)")
      ->type_name(kJsonType);
  app.add_option(
         "--kv-events-endpoint", options.kv_events_endpoint,
         "The same with vLLM's defaults, at an address such as tcp://*:5557, or ipc://PATH (default: none)")
      ->type_name(kUrlType);
}

Result<std::optional<KvEventsConfig>> kv_events_wanted(const ServeOptions& options) {
  std::optional<KvEventsConfig> config;
  const bool in_json = !options.kv_events_config.empty(), simple = !options.kv_events_endpoint.empty();
  if (in_json && simple) {
    return error(
        ErrorCode::kInvalidArgument,
        "--kv-events-config and --kv-events-endpoint: give one of them; 'endpoint' in the JSON is the "
        "same address");
  }
  if (!in_json && !simple) return config;
  KV_ASSIGN_OR_RETURN(config, simple ? kv_events_at(options.kv_events_endpoint)
                                     : parse_kv_events_config(options.kv_events_config));
  if (config->enabled && !options.runtime.enable_prefix_caching) {
    return error(ErrorCode::kInvalidArgument,
                 "{} and --no-enable-prefix-caching: there is nothing to tell; leave one out",
                 simple ? "--kv-events-endpoint" : "--kv-events-config");
  }
  return config;
}

Result<std::unique_ptr<KvEventPublisher>> start_kv_events(ServeOptions& options) {
  std::unique_ptr<KvEventPublisher> publisher;
  KV_ASSIGN_OR_RETURN(const std::optional<KvEventsConfig> config, kv_events_wanted(options));
  if (!config) return publisher;
  if (!config->enabled) {
    log_warning("--kv-events-config: no events without \"enable_kv_cache_events\": true");
    return publisher;
  }
  if (needs_key(options.server) && !options.server.share_prefixes) {
    log_warning(
        "KV events: blocks of requests with an API key are salted and not told; with --share-prefixes they "
        "are");
  }
  KV_ASSIGN_OR_RETURN(publisher, KvEventPublisher::start(*config, options.runtime.block_size));
  options.runtime.cache_events = &publisher->sink();
  if (publisher->endpoint().find("tcp://0.0.0.0:") == 0 || publisher->endpoint().find("tcp://*:") == 0) {
    log_warning("KV events on {}: anyone who reaches that port reads the tokens of prompts",
                publisher->endpoint());
  }
  log_info("KV events on {}{}{}", publisher->endpoint(),
           publisher->replay_endpoint().empty() ? "" : ", replays on ", publisher->replay_endpoint());
  return publisher;
}

void add_kv_event_metrics(const KvEventPublisher& publisher, ModelService& service) {
  service.outside_metrics = [&publisher, others = service.outside_metrics] {
    std::vector<OutsideMetric> metrics = others ? others() : std::vector<OutsideMetric>();
    const std::vector<OutsideMetric> more = publisher.metrics();
    metrics.insert(metrics.end(), more.begin(), more.end());
    return metrics;
  };
}

}  // namespace kvasir
