// Checks of a request that need only what its connections share.
#include "server/server_context.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvasir {

std::vector<ApiKey> all_keys(const ServerOptions& options) {
  std::vector<ApiKey> keys = options.named_keys;
  for (size_t i = 0; i < options.api_keys.size(); ++i) {
    keys.push_back(plain_key(numbered_key_name(i + 1), options.api_keys[i]));
  }
  return keys;
}

namespace {

constexpr int kRetryAfter = 5;  // seconds

}  // namespace

std::optional<ApiError> ServerContext::not_ready() const {
  if (draining) return unavailable("the server is shutting down; try another one", "draining", kRetryAfter);
  if (!service) return unavailable("the model is still loading; try again soon", "loading", kRetryAfter);
  return failure();
}

std::optional<ApiError> ServerContext::failure() const {
  const std::string why = service && service->failure ? service->failure() : std::string();
  if (why.empty()) return std::nullopt;
  return unavailable(why, "not_alive", /*retry_after_s=*/0);
}

std::optional<ApiError> ServerContext::unready() const {
  if (auto refusal = not_ready()) return refusal;
  if (leaving)
    return unavailable("the server is about to shut down; use another one", "leaving", kRetryAfter);
  const std::string why = service->unready ? service->unready() : std::string();
  if (!why.empty()) return unavailable(why, "not_ready", kRetryAfter);
  return std::nullopt;
}

std::optional<ApiError> ServerContext::unknown_model(const std::string& model) const {
  const auto& names = options.model_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return std::nullopt;
  ApiError e = bad_field("model", fmt::format("the model '{}' does not exist here; this server has '{}'",
                                              clipped(model), names.front()));
  e.status = 404;
  e.code = "model_not_found";
  return e;
}

}  // namespace kvasir
