// Finds the endpoint of a request by its method and path.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/endpoints.h"
#include "server/http_message.h"

namespace kvasir {

struct Route {
  const Endpoint* endpoint = nullptr;  // in the table; null: `refusal` is the answer
  std::string parameter;               // for Request::parameter
  HttpResponse refusal;                // 404, 405 with Allow, or 501 for what other servers offer
  bool needs_key = false;              // also for the refusal
};

// `target` may have a query, which is ignored. Pure. REQUIRES: the table outlives the route.
Route find_route(std::span<const Endpoint> table, std::string_view method, std::string_view target);

}  // namespace kvasir
