// An error as a client of the HTTP interface sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace kvasir {

struct ApiError {
  int status = 400;     // of HTTP
  std::string message;  // one line: what is wrong and what to do
  std::string param;    // the wrong field; empty: null
  std::string code;     // for programs; empty: null
  // Only where the prompt is too long for the model.
  std::optional<uint64_t> n_prompt_tokens;
  std::optional<uint64_t> n_ctx;
  int retry_after_s = 0;  // seconds; 0: no Retry-After header
};

// 400 with the field that is wrong.
inline ApiError bad_field(std::string param, std::string message) {
  ApiError e;
  e.message = std::move(message);
  e.param = std::move(param);
  return e;
}

// 503 with Retry-After.
inline ApiError unavailable(std::string message, std::string code, int retry_after_s) {
  ApiError e;
  e.status = 503;
  e.message = std::move(message);
  e.code = std::move(code);
  e.retry_after_s = retry_after_s;
  return e;
}

// An error of the engine or the template as HTTP expresses it. REQUIRES: !status.ok()
ApiError api_error(const Status& status);

// Its code, or else its type, for logs and traces.
std::string error_name(const ApiError& error);

// {"error": {...}}
std::string error_json(const ApiError& error);

// The beginning of what a client sent, short enough to be quoted in a message.
inline std::string_view clipped(std::string_view text) {
  return text.substr(0, 100);
}

}  // namespace kvasir
