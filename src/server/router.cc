// Matches paths and methods.
#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/http_syntax.h"

namespace kvasir {
namespace {

// Paths that other servers with this interface have, and this one has not.
constexpr std::string_view kOffPaths[] = {
    "/v1/audio",   "/v1/images", "/v1/moderations", "/v1/files",      "/v1/batches",
    "/v1/uploads", "/v1/rerank", "/v1/fine_tuning", "/v1/assistants", "/v1/threads",
    "/v1/score",   "/v1/evals",  "/v1/videos",      "/v1/realtime",   "/v1/vector_stores",
};

bool is_under(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// What stands for the '*' of the pattern, empty if it has none; nothing if the path does not match.
std::optional<std::string_view> match(std::string_view path, std::string_view pattern) {
  if (!pattern.ends_with('*')) return path == pattern ? std::optional(std::string_view()) : std::nullopt;
  pattern.remove_suffix(1);
  if (path.size() <= pattern.size() || !path.starts_with(pattern)) return std::nullopt;
  return path.substr(pattern.size());
}

bool allows(const Endpoint& endpoint, std::string_view method) {
  return method == endpoint.method || (method == "HEAD" && endpoint.method == "GET");
}

// The exact paths of the table, in its order, where several methods of a path stand together.
std::string paths_of(std::span<const Endpoint> table) {
  std::vector<std::string_view> paths;
  for (const Endpoint& endpoint : table) {
    if (!endpoint.path.ends_with('*')) paths.push_back(endpoint.path);
  }
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return fmt::format("{}", fmt::join(paths, ", "));
}

HttpResponse refuse(int status, std::string message, std::string code) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  e.code = std::move(code);
  return error_response(e);
}

}  // namespace

Route find_route(std::span<const Endpoint> table, std::string_view method, std::string_view target) {
  const std::string_view path = target.substr(0, target.find_first_of("?#"));
  Route route;
  std::string allowed;
  for (const Endpoint& endpoint : table) {
    const std::optional<std::string_view> parameter = match(path, endpoint.path);
    if (!parameter) continue;
    route.needs_key = endpoint.key == Endpoint::Key::kNeedsKey;
    if (allows(endpoint, method)) {
      route.endpoint = &endpoint;
      route.parameter = percent_decode(*parameter);
      return route;
    }
    if (!allowed.empty()) allowed += ", ";
    allowed += endpoint.method == "GET" ? "GET, HEAD" : endpoint.method;
  }
  const std::string_view shown = clipped(target);
  if (!allowed.empty()) {
    route.refusal =
        refuse(405, fmt::format("{} is not allowed for {}; use {}", clipped(method), shown, allowed),
               "method_not_allowed");
    route.refusal.allow = std::move(allowed);
    return route;
  }
  // The admin port asks for no keys, so a path that it does not have needs none.
  const bool asks_for_keys = std::any_of(table.begin(), table.end(), [](const Endpoint& endpoint) {
    return endpoint.key == Endpoint::Key::kNeedsKey;
  });
  route.needs_key = asks_for_keys && is_under(path, "/v1");
  for (const std::string_view off : kOffPaths) {
    if (!is_under(path, off)) continue;
    route.refusal = refuse(501, fmt::format("{} is not offered by this server", shown), "not_implemented");
    return route;
  }
  route.refusal = refuse(
      404, fmt::format("there is nothing at {}; the endpoints are {}", shown, paths_of(table)), "not_found");
  return route;
}

}  // namespace kvasir
