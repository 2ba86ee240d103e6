// An error as a client of the HTTP interface sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"

namespace kvasir {

struct ApiError {
  int status = 400;     // of HTTP
  std::string message;  // one line: what is wrong and what to do
  std::string param;    // the field at fault; empty: null
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

// What the engine or the template said, as HTTP says it. REQUIRES: !status.ok()
inline ApiError api_error(const Status& status) {
  ApiError e;
  e.message = status.message();
  switch (status.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      e.status = 400;
      break;
    case ErrorCode::kNotFound:
      e.status = 404;
      break;
    case ErrorCode::kExhausted:
      e.status = 503;
      e.code = "overloaded";
      e.retry_after_s = 1;
      break;
    case ErrorCode::kUnavailable:
      e.status = 503;
      e.code = "unavailable";
      e.retry_after_s = 5;
      break;
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
      e.status = 500;
      break;
  }
  return e;
}

}  // namespace kvasir
