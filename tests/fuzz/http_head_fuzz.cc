// The bytes of a connection, read as requests: in pieces of any size the same, and as Beast's parser reads
// them.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/framing_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvasir::test::check_framing({reinterpret_cast<const char*>(data), size});
  return 0;
}
