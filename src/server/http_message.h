// Answers, and their bytes in HTTP/1.1.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace kvasir {

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::string_view static_body = {};         // what follows it: of a constant, and sent without a copy
  std::string allow;                         // with 405
  int retry_after_s = 0;                     // 0: none
  std::string content_security_policy = {};  // of a page; empty: none
  std::string more_headers = {};             // whole lines
  std::optional<ApiError> error = {};  // what the body says, so that an endpoint can say it in its own form
};

HttpResponse json_response(std::string body);
HttpResponse error_response(const ApiError& error);

// What the bytes of an answer depend on beside the answer.
struct ExchangeInfo {
  std::string request_id;  // visible ASCII
  bool keep_alive = false;
  bool head_only = false;         // a HEAD request: the answer has no body
  std::string more_headers = {};  // whole lines, for every answer
  bool chunked = true;            // false: an HTTP/1.0 client, whose stream ends with the connection
};

const char* reason_phrase(int status);
std::string format_response(const HttpResponse& response, const ExchangeInfo& info);
// The head of an event stream. The body follows, by format_chunk() if `chunked`.
std::string format_stream_head(const ExchangeInfo& info);
// One chunk of the chunked transfer encoding. REQUIRES: !data.empty(): an empty one ends the body.
std::string format_chunk(std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
// An event of a stream that has only data. REQUIRES: data has no line break.
std::string server_sent_event(std::string_view data);
// The same with a name. REQUIRES: neither has a line break.
std::string server_sent_event(std::string_view name, std::string_view data);

// `given` if it may stand in a header (visible ASCII, at most 128 bytes), else a new id.
std::string request_id_or_new(std::string_view given);
// 24 random hexadecimal digits. A client that knows many of them may foresee the next.
std::string random_hex_id();
// 32 hexadecimal digits from the system's random numbers: they cannot be guessed.
std::string secret_hex_id();

}  // namespace kvasir
