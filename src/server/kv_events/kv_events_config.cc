#include "server/kv_events/kv_events_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <variant>

#include "server/json_fields.h"

namespace kvasir {

Result<KvEventsConfig> parse_kv_events_config(std::string_view json) {
  constexpr const char* kFlag = "--kv-events-config";
  const auto parsed = parse_json_object(json);
  if (const ApiError* const e = std::get_if<ApiError>(&parsed)) {
    return error(ErrorCode::kInvalidArgument, "{}: {}", kFlag, e->message);
  }
  const nlohmann::json& object = *std::get<JsonTree>(parsed);
  constexpr std::array<std::string_view, 8> kKnown = {"enable_kv_cache_events", "publisher",    "endpoint",
                                                      "replay_endpoint",        "buffer_steps", "hwm",
                                                      "max_queue_size",         "topic"};
  for (const auto& [name, value] : object.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) continue;
    return error(ErrorCode::kInvalidArgument, "{}: there is no field '{}'", kFlag, clipped(name));
  }
  JsonFields fields(object);
  KvEventsConfig config;
  config.enabled = fields.boolean("enable_kv_cache_events", false);
  const std::string publisher = fields.string("publisher").value_or("zmq");
  if (publisher == "null") config.enabled = false;
  if (publisher != "zmq" && publisher != "null") {
    fields.fail("publisher", "'publisher' must be 'zmq' or 'null'");
  }
  const auto set = [&](const char* name, uint32_t& value, int64_t least) {
    value = static_cast<uint32_t>(fields.integer(name, least, 1'000'000'000).value_or(value));
  };
  config.endpoint = fields.string("endpoint").value_or(config.endpoint);
  config.replay_endpoint = fields.string("replay_endpoint").value_or("");
  set("buffer_steps", config.buffer_steps, 1);
  set("hwm", config.hwm, 1);
  set("max_queue_size", config.max_queue_size, 1);
  config.topic = fields.string("topic").value_or("");
  if (fields.error()) {
    return error(ErrorCode::kInvalidArgument, "{}: {}", kFlag, fields.error()->message);
  }
  return config;
}

Result<KvEventsConfig> kv_events_at(std::string_view endpoint) {
  if (!endpoint.starts_with("tcp://") && !endpoint.starts_with("ipc://")) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-events-endpoint: must be tcp://ADDRESS:PORT, as tcp://*:5557, or ipc://PATH, not '{}'",
                 clipped(endpoint));
  }
  KvEventsConfig config;
  config.enabled = true;
  config.endpoint = "@" + std::string(endpoint);
  config.endpoint_setting = "--kv-events-endpoint";
  return config;
}

}  // namespace kvasir
