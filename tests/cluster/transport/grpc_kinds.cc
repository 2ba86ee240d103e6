#include "cluster/transport/grpc_transport.h"
#include "cluster/transport/transport_fixture.h"

namespace kvasir::test {

std::vector<TransportKind> transport_kinds() {
  return {{"Plain", &make_grpc_transport, false}, {"Tls", &make_grpc_transport, true}};
}

}  // namespace kvasir::test
