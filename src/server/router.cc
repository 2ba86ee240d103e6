// Paths and methods.
#include "server/router.h"

namespace kvasir {
namespace {

constexpr std::string_view kOffPaths[] = {
    "/v1/embeddings", "/v1/responses",  "/v1/audio",   "/v1/images", "/v1/moderations",
    "/v1/files",      "/v1/batches",    "/v1/uploads", "/v1/rerank", "/v1/fine_tuning",
    "/v1/messages",   "/v1/assistants", "/v1/threads", "/v1/score",  "/v1/vector_stores",
    "/tokenize",      "/detokenize",    "/v1/evals",   "/v1/videos", "/v1/realtime",
};

bool is_under(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

Route route(std::string_view method, std::string_view target) {
  const std::string_view path = target.substr(0, target.find_first_of("?#"));
  Route found;
  found.needs_key = is_under(path, "/v1");
  const auto get = [&](Endpoint endpoint) {
    const bool allowed = method == "GET" || method == "HEAD";
    found.endpoint = allowed ? endpoint : Endpoint::kWrongMethod;
    found.allow = "GET, HEAD";
  };
  const auto post = [&](Endpoint endpoint) {
    found.endpoint = method == "POST" ? endpoint : Endpoint::kWrongMethod;
    found.allow = "POST";
  };
  constexpr std::string_view kModelPrefix = "/v1/models/";
  if (path == "/v1/chat/completions") {
    post(Endpoint::kChat);
  } else if (path == "/v1/completions") {
    post(Endpoint::kCompletions);
  } else if (path == "/v1/models") {
    get(Endpoint::kModels);
  } else if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    found.model_id = percent_decode(path.substr(kModelPrefix.size()));
    get(Endpoint::kModel);
  } else if (path == "/health") {
    get(Endpoint::kHealth);
  } else if (path == "/metrics") {
    get(Endpoint::kMetrics);
  } else if (path == "/version") {
    get(Endpoint::kVersion);
  } else {
    for (const std::string_view off : kOffPaths) {
      if (is_under(path, off)) found.endpoint = Endpoint::kOff;
    }
  }
  return found;
}

}  // namespace kvasir
