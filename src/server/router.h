// Which endpoint a request is for.
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

enum class Endpoint {
  kChat,         // POST /v1/chat/completions
  kCompletions,  // POST /v1/completions
  kModels,       // GET /v1/models
  kModel,        // GET /v1/models/{id}
  kHealth,       // GET /health
  kMetrics,      // GET /metrics
  kVersion,      // GET /version
  kWrongMethod,  // 405
  kOff,          // 501: known elsewhere, not here
  kUnknown,      // 404
};

struct Route {
  Endpoint endpoint = Endpoint::kUnknown;
  std::string model_id;    // kModel: as in the path, percent-decoded
  const char* allow = "";  // kWrongMethod: the methods that are allowed
  bool needs_key = false;  // under /v1
};

// `target` may have a query, which is ignored. Pure.
Route route(std::string_view method, std::string_view target);

}  // namespace kvasir
