// Makes the tables of endpoints.def.
#include "server/endpoints.h"

#include "server/handlers/anthropic.h"

namespace kvasir {

#define ENDPOINT(method, path, key, max_body_bytes, model, handler, ...) void handler(Exchange& exchange);
#define ADMIN_ENDPOINT ENDPOINT
#define PAGE_ENDPOINT(path, handler) void handler(Exchange& exchange);
#include "server/endpoints.def"
#undef PAGE_ENDPOINT
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
#define PAGE_ENDPOINT(path, handler) \
  {"GET", path, kNoKey, kNoBody, kNoModel, handler, error_json, /*page=*/true},
#include "server/endpoints.def"
#undef PAGE_ENDPOINT
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
#define PAGE_ENDPOINT(...)
#include "server/endpoints.def"
#undef PAGE_ENDPOINT
#undef ADMIN_ENDPOINT
#undef ENDPOINT
  };
  for (const Endpoint& e : all_endpoints()) {
    if (e.key == kNoKey && !e.page) table.push_back(e);
  }
  return table;
}

}  // namespace kvasir
