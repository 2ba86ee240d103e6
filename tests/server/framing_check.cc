// Pieces, and Beast's parser as a second opinion.
#include "server/framing_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <variant>

#include "base/check.h"
#include "server/request_body.h"
#include "server/request_head.h"

namespace kvasir::test {
namespace {

namespace http = boost::beast::http;

constexpr uint64_t kMostBytes = 1 << 20;

struct OneRequest {
  RequestHead head;
  std::string head_text;
  std::string body;
  size_t bytes = 0;  // with all in front of it; 0: it is not whole
  std::string end;   // of the connection, if it is not whole
};

RequestBody body_of(const RequestHead& head) {
  return head.chunked ? RequestBody::of_chunks(kMostBytes)
                      : RequestBody::of_length(head.content_length.value_or(0));
}

void read_one(std::string_view bytes, size_t piece, OneRequest& out) {
  HeadScanner scanner;
  HeadScanner::Verdict verdict = HeadScanner::Verdict::kMore;
  size_t arrived = 0;
  while (verdict == HeadScanner::Verdict::kMore && arrived < bytes.size()) {
    arrived += std::min(piece, bytes.size() - arrived);
    verdict = scanner.scan(bytes.substr(0, arrived));
  }
  if (verdict != HeadScanner::Verdict::kComplete) {
    out.end = verdict == HeadScanner::Verdict::kMore ? "in a head" : "error 400";
    return;
  }
  out.head_text = scanner.head(bytes);
  auto read = read_head(out.head_text);
  if (const auto* wrong = std::get_if<ApiError>(&read)) {
    KV_CHECK(
        !wrong->message.empty() && (wrong->status == 400 || wrong->status == 501 || wrong->status == 505),
        "an error of status {}", wrong->status);
    out.end = fmt::format("error {}", wrong->status);
    return;
  }
  out.head = std::get<RequestHead>(std::move(read));
  KV_CHECK(!out.head.chunked || !out.head.content_length, "a body with two lengths");
  RequestBody body = body_of(out.head);
  size_t used = scanner.end();
  while (!body.done()) {
    if (used == bytes.size()) {
      out.end = "in a body";
      return;
    }
    used += body.take(bytes.substr(used, piece), out.body);
    if (body.fault() == RequestBody::Fault::kNone) continue;
    out.end = body.fault() == RequestBody::Fault::kTooLarge ? "error 413" : "error 400";
    return;
  }
  KV_CHECK(!out.head.chunked || out.body.size() <= kMostBytes, "a body of {} bytes", out.body.size());
  out.bytes = used;
}

void ask_beast(std::string_view bytes, const OneRequest& ours) {
  http::request_parser<http::string_body> beast;
  beast.header_limit(std::numeric_limits<uint32_t>::max());
  beast.body_limit(boost::none);
  beast.eager(true);
  // It takes no empty line in front.
  const bool empty_line = bytes.starts_with("\r\n");
  const std::string_view request = bytes.substr(0, ours.bytes).substr(empty_line ? 2 : 0);
  boost::system::error_code ec;
  size_t used = 0;
  while (!ec && !beast.is_done() && used < request.size()) {
    used += beast.put(boost::asio::buffer(request.data() + used, request.size() - used), ec);
  }
  if (ec && ec != http::error::need_more) return;
  KV_CHECK(beast.is_done() && used == request.size(), "Beast has read {} of {} bytes", used, request.size());
  const auto& theirs = beast.get();
  const std::string_view method(theirs.method_string().data(), theirs.method_string().size());
  KV_CHECK(method == ours.head.method, "method {}", method);
  KV_CHECK(beast.chunked() == ours.head.chunked, "chunked {}", beast.chunked());
  KV_CHECK(theirs.body() == ours.body, "a body of {} bytes", theirs.body().size());
  KV_CHECK(theirs.version() == 10u + static_cast<unsigned>(ours.head.minor_version), "version {}",
           theirs.version());
}

}  // namespace

std::string read_requests(std::string_view bytes, size_t piece) {
  std::string out;
  while (!bytes.empty()) {
    OneRequest one;
    read_one(bytes, piece, one);
    if (one.bytes == 0) return out + one.end;
    out += fmt::format("{} {} {} {} {}\n", one.head.method, one.head.target, one.head.authority,
                       one.head.keep_alive, one.body);
    for (const auto& [name, value] : one.head.headers) out += fmt::format("{}={}\n", name, value);
    if (!one.head.keep_alive) return out;
    bytes.remove_prefix(one.bytes);
  }
  return out;
}

void check_framing(std::string_view bytes) {
  const std::string whole = read_requests(bytes, std::max<size_t>(1, bytes.size()));
  for (const size_t piece : {1, 2, 3, 7}) {
    const std::string pieces = read_requests(bytes, piece);
    KV_CHECK(pieces == whole, "pieces of {} bytes give '{}', not '{}'", piece, pieces, whole);
  }
  OneRequest first;
  read_one(bytes, std::max<size_t>(1, bytes.size()), first);
  if (first.bytes > 0) ask_beast(bytes, first);
}

}  // namespace kvasir::test
