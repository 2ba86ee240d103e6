#include "cluster/transport/transport_fixture.h"
#include "cluster/transport/ucx_transport.h"

namespace kvasir::test {

std::vector<TransportKind> transport_kinds() {
  return {{"UcxTcp", &make_ucx_transport, "tcp"}, {"UcxShm", &make_ucx_transport, "shm,tcp"}};
}

}  // namespace kvasir::test
