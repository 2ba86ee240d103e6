// Makes the table of endpoints.def.
#include "server/endpoints.h"

#include "server/handlers/anthropic.h"

namespace kvasir {

#define ENDPOINT(method, path, key, max_body_bytes, model, handler, ...) void handler(Exchange& exchange);
#include "server/endpoints.def"
#undef ENDPOINT

std::span<const Endpoint> all_endpoints() {
  using enum Endpoint::Key;
  using enum Endpoint::Model;
  constexpr uint64_t kNoBody = Endpoint::kNoBody;
  constexpr uint64_t kServerLimit = Endpoint::kServerLimit;
  static constexpr Endpoint kEndpoints[] = {
#define ENDPOINT(...) {__VA_ARGS__},
#include "server/endpoints.def"
#undef ENDPOINT
  };
  return kEndpoints;
}

}  // namespace kvasir
