// The endpoints that the server has. endpoints.def is the table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/exchange.h"

namespace kvasir {

struct Endpoint {
  enum class Key { kNoKey, kNeedsKey };
  enum class Model { kNoModel, kNeedsModel };
  // Limits of a body. Without a body the handler runs as soon as the head is complete; a body that comes all
  // the same is not read, and the connection closes.
  static constexpr uint64_t kNoBody = 0;
  static constexpr uint64_t kServerLimit = UINT64_MAX;  // HttpLimits::max_body_bytes, the most for any

  std::string_view method;  // "GET" takes HEAD as well
  std::string_view path;    // exact; a '*' at its end stands for one or more characters
  Key key = Key::kNeedsKey;
  uint64_t max_body_bytes = kNoBody;
  // kNeedsModel: 503 while the model loads or the server drains, and 400 for a wrong x-slo-* header, both
  // before the body is read.
  Model model = Model::kNoModel;
  void (*handler)(Exchange& exchange) = nullptr;
  // The body of an error, whichever part of the server it comes from.
  std::string (*error_body)(const ApiError& error) = error_json;
  bool page = false;  // for browsers: of the public port, unless ServerOptions::web is off
};

// All of endpoints.def, in its order, but those of the admin port alone.
std::span<const Endpoint> all_endpoints();
// Those of the admin port: of the others the ones that need no key and are no pages, and its own.
std::vector<Endpoint> admin_endpoints();

}  // namespace kvasir
