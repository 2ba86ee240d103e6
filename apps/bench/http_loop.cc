#include "apps/bench/http_loop.h"

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <exception>
#include <optional>
#include <utility>

namespace kvasir {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr size_t kReadBytes = 64 << 10;
constexpr uint64_t kMaxAnswerBytes = uint64_t{1} << 30;

// One request on its way. Held by its coroutine, so that every buffer outlives the operation that uses it.
struct Exchange {
  Exchange(asio::io_context& io, HttpTarget t, tcp::resolver::results_type r, HttpRequest q,
           std::shared_ptr<HttpHandler> h)
      : stream(io),
        target(std::move(t)),
        addresses(std::move(r)),
        request(std::move(q)),
        handler(std::move(h)) {}

  beast::tcp_stream stream;
  const HttpTarget target;
  const tcp::resolver::results_type addresses;
  HttpRequest request;
  const std::shared_ptr<HttpHandler> handler;
  http::request<http::string_body> message;
  http::response_parser<http::buffer_body> parser;
  beast::flat_buffer buffer;
  std::array<char, kReadBytes> piece;
};

Status describe(const Exchange& x, const char* what, const beast::error_code& ec) {
  if (ec == beast::error::timeout) {
    return error(ErrorCode::kExhausted, "timed out after {:.3g} s", to_seconds(x.request.timeout));
  }
  if (ec.category() == http::make_error_code(http::error::end_of_stream).category() &&
      ec != http::error::end_of_stream && ec != http::error::partial_message) {
    return error(ErrorCode::kCorrupt, "{}: the answer is not HTTP ({})", what, ec.message());
  }
  if (ec == http::error::end_of_stream || ec == http::error::partial_message) {
    return error(ErrorCode::kUnavailable, "{}: the server closed the connection before the end", what);
  }
  return error(ErrorCode::kUnavailable, "{}: {}", what, ec.message());
}

void write_message(Exchange* x) {
  auto& message = x->message;
  message.method_string(x->request.method);
  message.target(x->target.prefix + x->request.path);
  message.version(11);
  message.set(http::field::host, x->target.authority());
  message.set(http::field::user_agent, "kvasir-bench");
  message.set(http::field::connection, "close");
  if (!x->request.api_key.empty()) message.set(http::field::authorization, "Bearer " + x->request.api_key);
  if (x->request.method == "POST") {
    message.set(http::field::content_type, "application/json");
    message.set(http::field::accept, "text/event-stream");
  }
  message.body() = std::move(x->request.body);
  message.prepare_payload();
}

// Connects, sends, reads the head. Returns how it went.
asio::awaitable<Status> open_exchange(std::shared_ptr<Exchange> x) {
  beast::error_code ec;
  co_await x->stream.async_connect(x->addresses, asio::redirect_error(asio::use_awaitable, ec));
  if (ec) co_return describe(*x, ("connect to " + x->target.authority()).c_str(), ec);
  beast::error_code ignored;
  x->stream.socket().set_option(tcp::no_delay(true), ignored);
  co_await http::async_write(x->stream, x->message, asio::redirect_error(asio::use_awaitable, ec));
  // A server may refuse before it has read all of the request; its answer is then waiting.
  if (ec && ec != asio::error::broken_pipe && ec != asio::error::connection_reset) {
    co_return describe(*x, "send", ec);
  }
  co_await http::async_read_header(x->stream, x->buffer, x->parser,
                                   asio::redirect_error(asio::use_awaitable, ec));
  if (ec) co_return describe(*x, "receive", ec);
  co_return Status();
}

asio::awaitable<Status> read_body(std::shared_ptr<Exchange> x) {
  while (!x->parser.is_done()) {
    auto& body = x->parser.get().body();
    body.data = x->piece.data();
    body.size = x->piece.size();
    beast::error_code ec;
    co_await http::async_read_some(x->stream, x->buffer, x->parser,
                                   asio::redirect_error(asio::use_awaitable, ec));
    const size_t got = x->piece.size() - body.size;
    if (got > 0 && !x->handler->on_body(std::string_view(x->piece.data(), got))) co_return Status();
    if (ec && ec != http::error::need_buffer) co_return describe(*x, "receive", ec);
  }
  co_return Status();
}

asio::awaitable<void> exchange(std::shared_ptr<Exchange> x) {
  write_message(x.get());
  x->parser.body_limit(kMaxAnswerBytes);
  x->stream.expires_after(std::chrono::nanoseconds(x->request.timeout));
  Status status = co_await open_exchange(x);
  if (status.ok()) {
    const auto& head = x->parser.get();
    const auto type = head[http::field::content_type];
    x->handler->on_head(static_cast<int>(head.result_int()), std::string_view(type.data(), type.size()));
    status = co_await read_body(x);
  }
  beast::error_code ignored;
  x->stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
  x->stream.close();
  x->handler->on_end(status);
}

bool is_port(std::string_view text) {
  if (text.empty() || text.size() > 5) return false;
  int value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + (c - '0');
  }
  return value >= 1 && value <= 65535;
}

// Keeps the answer to a blocking GET.
class Collector final : public HttpHandler {
 public:
  explicit Collector(size_t max_bytes) : max_bytes_(max_bytes) {}
  void on_head(int code, std::string_view) override { reply.status = code; }
  bool on_body(std::string_view bytes) override {
    reply.body.append(bytes.substr(0, max_bytes_ - reply.body.size()));
    return reply.body.size() < max_bytes_;
  }
  void on_end(const Status& s) override { status = s; }

  HttpReply reply;
  Status status;

 private:
  const size_t max_bytes_;
};

}  // namespace

std::string HttpTarget::authority() const {
  return host.find(':') == std::string::npos ? host + ":" + port : "[" + host + "]:" + port;
}

Result<HttpTarget> parse_base_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const Status malformed =
      error(ErrorCode::kInvalidArgument,
            "--base-url {}: expected http://host:port, with a path after it if need be", url);
  for (unsigned char c : url) {
    if (c <= 0x20 || c == 0x7f) {
      return error(ErrorCode::kInvalidArgument,
                   "--base-url: holds a space or a control character; remove it");
    }
  }
  if (url.starts_with("https://")) {
    return error(ErrorCode::kUnsupported, "--base-url {}: https is not supported; measure the server by http",
                 url);
  }
  if (!url.starts_with(kScheme) || url.find_first_of("?#@") != std::string_view::npos) return malformed;
  url.remove_prefix(kScheme.size());
  HttpTarget target;
  target.port = "80";
  const size_t slash = url.find('/');
  std::string_view authority = url.substr(0, slash);
  if (slash != std::string_view::npos) target.prefix = url.substr(slash);
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  std::string_view rest;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return malformed;
    target.host = authority.substr(1, end - 1);
    rest = authority.substr(end + 1);
  } else {
    const size_t colon = authority.find(':');
    target.host = authority.substr(0, colon);
    if (colon != std::string_view::npos) rest = authority.substr(colon);
  }
  if (target.host.empty()) return malformed;
  if (rest.empty()) return target;
  if (rest.front() != ':' || !is_port(rest.substr(1))) return malformed;
  target.port = rest.substr(1);
  return target;
}

struct HttpLoop::State {
  explicit State(HttpTarget t) : target(std::move(t)), io(1) {}
  const HttpTarget target;
  asio::io_context io;
  tcp::resolver::results_type addresses;
  std::optional<asio::signal_set> signals;
};

HttpLoop::HttpLoop(HttpTarget target) : state_(std::make_unique<State>(std::move(target))) {}
HttpLoop::~HttpLoop() = default;

Status HttpLoop::resolve() {
  tcp::resolver resolver(state_->io);
  beast::error_code ec;
  state_->addresses = resolver.resolve(state_->target.host, state_->target.port, ec);
  if (ec) {
    return error(ErrorCode::kUnavailable, "{}: the name has no address ({})", state_->target.host,
                 ec.message());
  }
  return Status();
}

void HttpLoop::send(HttpRequest request, std::shared_ptr<HttpHandler> handler) {
  KV_CHECK(!state_->addresses.empty(), "resolve() comes before send()");
  auto x = std::make_shared<Exchange>(state_->io, state_->target, state_->addresses, std::move(request),
                                      std::move(handler));
  asio::co_spawn(state_->io, exchange(x), [x](std::exception_ptr thrown) {
    // Only the libraries throw, when memory or a header's bound is exhausted.
    if (thrown) x->handler->on_end(error(ErrorCode::kExhausted, "the request could not be made"));
  });
}

void HttpLoop::call_at(Nanos when, std::function<void()> f) {
  const Nanos delay = when - MonotonicClock().now();
  if (delay <= 0) {
    asio::post(state_->io, std::move(f));
    return;
  }
  auto timer = std::make_shared<asio::steady_timer>(state_->io, std::chrono::nanoseconds(delay));
  timer->async_wait([timer, f = std::move(f)](const beast::error_code& ec) {
    if (!ec) f();
  });
}

void HttpLoop::on_interrupt(std::function<void()> f) {
  KV_CHECK(!state_->signals.has_value(), "on_interrupt() was called before");
  state_->signals.emplace(state_->io, SIGINT, SIGTERM);
  state_->signals->async_wait([f = std::move(f)](const beast::error_code& ec, int) {
    if (!ec) f();
  });
}

void HttpLoop::run() {
  state_->io.run();
}

void HttpLoop::stop() {
  state_->io.stop();
}

Result<HttpReply> http_get(const HttpTarget& target, const std::string& path, const std::string& api_key,
                           Nanos timeout, size_t max_bytes) {
  HttpLoop loop(target);
  KV_RETURN_IF_ERROR(loop.resolve());
  auto collector = std::make_shared<Collector>(max_bytes);
  HttpRequest request{.method = "GET", .path = path, .body = "", .api_key = api_key, .timeout = timeout};
  loop.send(std::move(request), collector);
  loop.run();
  KV_RETURN_IF_ERROR(collector->status);
  return std::move(collector->reply);
}

}  // namespace kvasir
