// Messages between instances by gRPC streams.
#pragma once

#include <memory>

#include "base/status.h"
#include "cluster/transport/cluster_transport.h"
#include "cluster/transport/transport_options.h"

namespace kvasir {

// Listens, and starts a thread beside gRPC's own. Messages under way when it is destroyed are dropped.
// kInvalidArgument: an option; kIo: the address cannot be listened on.
Result<std::unique_ptr<ClusterTransport>> make_grpc_transport(TransportOptions options);

}  // namespace kvasir
