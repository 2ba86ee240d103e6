// --kv-events-config of `kvasir serve`: events of the prefix cache, for routers.
#pragma once

#include <memory>

#include "apps/serve/serve.h"
#include "server/kv_events/kv_event_publisher.h"
#include "server/prompt.h"

namespace kvasir {

void add_kv_event_flags(CLI::App& app, ServeOptions& options);

// Opens the sockets, and has the engine of options.runtime tell its events. Null: none are wanted. The
// publisher outlives the runtime. An error names the flag.
Result<std::unique_ptr<KvEventPublisher>> start_kv_events(ServeOptions& options);

// Adds the publisher's counters to /metrics. It outlives the service.
void add_kv_event_metrics(const KvEventPublisher& publisher, ModelService& service);

}  // namespace kvasir
