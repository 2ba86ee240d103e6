// Messages between instances by UCX: TCP, or shared memory between processes of one machine.
#pragma once

#include <memory>

#include "base/status.h"
#include "cluster/transport/cluster_transport.h"
#include "cluster/transport/transport_options.h"

namespace kvasir {

// Listens, and starts a thread. Messages under way when it is destroyed are dropped.
// kInvalidArgument: an option; kIo: UCX refuses the address, devices or transports.
Result<std::unique_ptr<ClusterTransport>> make_ucx_transport(TransportOptions options);

}  // namespace kvasir
