// Makes the tables of endpoints.def.
#include "server/endpoints.h"

#include "server/handlers/anthropic.h"

namespace kvasir {

#define ENDPOINT(method, path, key, max_body_bytes, model, handler, ...) void handler(Exchange& exchange);
#define ADMIN_ENDPOINT ENDPOINT
#include "server/endpoints.def"
#undef ADMIN_ENDPOINT
#undef ENDPOINT

std::span<const Endpoint> all_endpoints() {
  using enum Endpoint::Key;
  using enum Endpoint::Model;
  constexpr uint64_t kNoBody = Endpoint::kNoBody;
  constexpr uint64_t kServerLimit = Endpoint::kServerLimit;
  static constexpr Endpoint kEndpoints[] = {
#define ENDPOINT(...) {__VA_ARGS__},
#define ADMIN_ENDPOINT(...)
#include "server/endpoints.def"
#undef ADMIN_ENDPOINT
#undef ENDPOINT
  };
  return kEndpoints;
}

std::vector<Endpoint> admin_endpoints() {
  using enum Endpoint::Key;
  using enum Endpoint::Model;
  constexpr uint64_t kNoBody = Endpoint::kNoBody;
  std::vector<Endpoint> table = {
#define ENDPOINT(...)
#define ADMIN_ENDPOINT(...) {__VA_ARGS__},
#include "server/endpoints.def"
#undef ADMIN_ENDPOINT
#undef ENDPOINT
  };
  for (const Endpoint& e : all_endpoints()) {
    if (e.key == kNoKey) table.push_back(e);
  }
  return table;
}

}  // namespace kvasir
