// Errors as JSON, and errors of the engine as those of HTTP.
#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "server/json_fields.h"

namespace kvasir {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 501:
      return "not_implemented_error";
    case 503:
      return "service_unavailable_error";
    default:
      return "invalid_request_error";
  }
}

}  // namespace

ApiError api_error(const Status& status) {
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
    case ErrorCode::kOverShare:
      e.status = 429;
      e.code = "rate_limit_exceeded";
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

std::string error_name(const ApiError& error) {
  return error.code.empty() ? error_type(error.status) : error.code;
}

std::string error_json(const ApiError& error) {
  nlohmann::json body = {
      {"message", error.message}, {"type", error_type(error.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!error.param.empty()) body["param"] = error.param;
  if (!error.code.empty()) body["code"] = error.code;
  if (error.n_prompt_tokens) body["n_prompt_tokens"] = *error.n_prompt_tokens;
  if (error.n_ctx) body["n_ctx"] = *error.n_ctx;
  return dump_json({{"error", std::move(body)}});
}

}  // namespace kvasir
