// Messages between instances by gRPC streams: slower than UCX, for networks where only HTTP/2 goes through.
#pragma once

#include <memory>

#include "base/status.h"
#include "cluster/transport/cluster_transport.h"
#include "cluster/transport/transport_options.h"

namespace kvasir {

// Listens, and begins a thread beside gRPC's own. What is under way when it is destroyed is dropped.
// kInvalidArgument: an option; kIo: the address cannot be listened on.
Result<std::unique_ptr<ClusterTransport>> make_grpc_transport(TransportOptions options);

}  // namespace kvasir
