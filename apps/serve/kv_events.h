// --kv-events-config of `kvasir serve`: events of the prefix cache, for routers.
#pragma once

#include <memory>
#include <optional>

#include "apps/serve/serve.h"
#include "server/kv_events/kv_event_publisher.h"
#include "server/kv_events/kv_events_config.h"
#include "server/prompt.h"

namespace kvasir {

void add_kv_event_flags(CLI::App& app, ServeOptions& options);

// What --kv-events-config or --kv-events-endpoint says; nothing: neither is given. An error names the flag.
Result<std::optional<KvEventsConfig>> kv_events_wanted(const ServeOptions& options);

// Opens the sockets, and has the engine of options.runtime tell its events. Null: none are wanted. The
// publisher outlives the runtime. An error names the flag.
Result<std::unique_ptr<KvEventPublisher>> start_kv_events(ServeOptions& options);

// Adds the publisher's counters to /metrics. It outlives the service.
void add_kv_event_metrics(const KvEventPublisher& publisher, ModelService& service);

}  // namespace kvasir
