#include "cluster/transport/transport_fixture.h"
#include "cluster/transport/ucx_transport.h"

namespace kvasir::test {

std::vector<TransportKind> transport_kinds() {
  return {{"UcxTcp", &make_ucx_transport, "tcp"}, {"UcxShm", &make_ucx_transport, "shm,tcp"}};
}

}  // namespace kvasir::test

#if defined(KVASIR_SANITIZED)
// UCX 1.13 loses the hash of a peer's segments (100 bytes, uct_mm_ep) where the peer has gone before its
// shared memory is attached. The library has no symbols, so the whole of it is excused; endpoints that we do
// not give back still show in libucp, which is not.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libuct.so";
}
#endif
