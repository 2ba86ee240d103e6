// The flags of `kvasir serve` that say how HTTP is spoken: limits and timeouts, the admin port, TLS,
// browsers.
#pragma once

#include "server/server.h"

namespace CLI {
class App;
}

namespace kvasir {

void add_http_flags(CLI::App& app, ServerOptions& options);

// Every connection takes a descriptor. Raises the process's soft limit to the hard one, and lowers
// `max_connections`, with a warning, to what fits beside files and peers.
void fit_descriptors(uint32_t& max_connections);

}  // namespace kvasir
