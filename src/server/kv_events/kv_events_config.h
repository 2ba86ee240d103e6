// The settings of --kv-events-config and --kv-events-endpoint: vLLM's names and defaults
// (vllm/config/kv_events.py, 0.29).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

struct KvEventsConfig {
  bool enabled = false;  // enable_kv_cache_events
  // Of the PUB socket. It binds if there is a "*" or "::" in it, or if it begins with ipc://, inproc:// or @
  // (which is ours, and is left out); else it connects to a subscriber that binds.
  std::string endpoint = "tcp://*:5557";
  std::string endpoint_setting = "--kv-events-config: 'endpoint'";  // for messages
  std::string replay_endpoint;        // of the ROUTER socket, which always binds; empty: there is none
  uint32_t buffer_steps = 10'000;     // batches that can be replayed
  uint32_t hwm = 100'000;             // batches that wait for one slow subscriber; further ones pass it by
  uint32_t max_queue_size = 100'000;  // events that wait for the publishing thread
  std::string topic;                  // the first frame of every message
};

// kInvalidArgument: not such an object; the message names the field.
Result<KvEventsConfig> parse_kv_events_config(std::string_view json);

// Events at an address that the socket binds, such as tcp://*:5557, and the defaults. kInvalidArgument: it is
// neither tcp:// nor ipc://.
Result<KvEventsConfig> kv_events_at(std::string_view endpoint);

}  // namespace kvasir
