// Messages between instances by UCX: TCP, or shared memory between processes of one machine.
#pragma once

#include <memory>

#include "base/status.h"
#include "cluster/transport/cluster_transport.h"
#include "cluster/transport/transport_options.h"

namespace kvasir {

// Listens, and begins a thread. What is under way when it is destroyed is dropped.
// kInvalidArgument: an option; kIo: what UCX says of the address, devices or transports.
Result<std::unique_ptr<ClusterTransport>> make_ucx_transport(TransportOptions options);

}  // namespace kvasir
