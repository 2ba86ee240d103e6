#include "cluster/transport/grpc_transport.h"
#include "cluster/transport/transport_fixture.h"

namespace kvasir::test {

std::vector<TransportKind> transport_kinds() {
  return {{"Grpc", &make_grpc_transport}};
}

}  // namespace kvasir::test
