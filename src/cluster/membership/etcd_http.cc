// The handlers of one client run on the thread that waits in EtcdLoop::run_one(); nothing else runs them.
#include "cluster/membership/etcd_http.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <optional>
#include <utility>

namespace kvasir {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

struct EtcdLoop::Impl {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::atomic<bool> cancelled{false};
};

namespace {

// A watch is silent for hours if no instance joins or leaves: so the kernel probes the other end.
constexpr int kProbeAfterS = 10;
constexpr int kProbeEveryS = 5;
constexpr int kProbes = 3;

// Beast reads as much at a time as the buffer holds.
constexpr size_t kReadBytes = 64 << 10;

Status transport_error(const error_code& ec) {
  if (ec == beast::error::timeout) return {ErrorCode::kUnavailable, "does not answer in time"};
  if (ec == asio::error::operation_aborted) return {ErrorCode::kUnavailable, "was not waited for"};
  if (ec == asio::error::connection_refused) return {ErrorCode::kUnavailable, "refuses connections"};
  if (ec == http::error::body_limit) return {ErrorCode::kCorrupt, "answers more than any etcd would"};
  if (ec == http::error::end_of_stream || ec == http::error::partial_message || ec == asio::error::eof ||
      ec == asio::error::connection_reset || ec == asio::error::broken_pipe) {
    return {ErrorCode::kUnavailable, "closes the connection"};
  }
  // What else Beast's parser says is about what was sent.
  static const auto& http_errors = make_error_code(http::error::bad_version).category();
  if (ec.category() == http_errors) return {ErrorCode::kCorrupt, "answers no HTTP"};
  return error(ErrorCode::kUnavailable, "cannot be reached: {}", ec.message());
}

// Starts an operation on the stream and waits for its end. The stream's own deadline bounds that where
// nothing comes; where more and more comes it is seen here.
template <typename Start>
error_code await_stream(EtcdLoop& loop, beast::tcp_stream& stream, EtcdLoop::Time deadline, Start start) {
  bool late = false;
  std::optional<error_code> result;
  stream.expires_at(deadline);
  start([&](error_code ec, size_t = 0) { result = ec; });
  while (!result.has_value()) {
    late = std::chrono::steady_clock::now() >= deadline;
    if (late || loop.cancelled()) stream.close();
    loop.impl().io.run_one();
  }
  return *result && late ? error_code(beast::error::timeout) : *result;
}

// The addresses of a host. A name that takes longer than the deadline is looked up to its end by a thread of
// Asio's.
Result<std::vector<tcp::endpoint>> resolve(EtcdLoop& loop, const HostPort& where, EtcdLoop::Time deadline) {
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(where.host, ec);
  if (!ec) return std::vector<tcp::endpoint>{{address, where.port}};
  struct Lookup {
    explicit Lookup(asio::io_context& io) : resolver(io) {}
    tcp::resolver resolver;
    bool done = false;
    error_code ec;
    std::vector<tcp::endpoint> found;
  };
  auto lookup = std::make_shared<Lookup>(loop.impl().io);
  lookup->resolver.async_resolve(where.host, std::to_string(where.port), tcp::resolver::numeric_service,
                                 [lookup](error_code result, const tcp::resolver::results_type& found) {
                                   lookup->done = true;
                                   lookup->ec = result;
                                   for (const auto& entry : found) lookup->found.push_back(entry.endpoint());
                                 });
  while (!lookup->done && !loop.cancelled() && std::chrono::steady_clock::now() < deadline) {
    loop.run_one(deadline);
  }
  if (!lookup->done) lookup->resolver.cancel();
  if (!lookup->done || lookup->ec || lookup->found.empty()) {
    return error(ErrorCode::kUnavailable, "is a name that cannot be looked up{}",
                 lookup->ec ? ": " + lookup->ec.message() : "");
  }
  return std::move(lookup->found);
}

Status connect(EtcdLoop& loop, const HostPort& where, EtcdLoop::Time deadline, beast::tcp_stream& stream) {
  auto endpoints = resolve(loop, where, deadline);
  KV_RETURN_IF_ERROR(endpoints.status());
  const error_code ec = await_stream(loop, stream, deadline, [&](auto handler) {
    stream.async_connect(*endpoints,
                         [handler](error_code result, const tcp::endpoint&) mutable { handler(result); });
  });
  if (ec) return transport_error(ec);
  error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);
  return {};
}

http::request<http::string_body> post_request(const HostPort& where, const std::string& path,
                                              const std::string& body) {
  http::request<http::string_body> request{http::verb::post, path, 11};
  request.set(http::field::host, where.to_string());
  request.set(http::field::content_type, "application/json");
  request.set(http::field::user_agent, "kvasir");
  request.body() = body;
  request.prepare_payload();
  return request;
}

}  // namespace

EtcdLoop::EtcdLoop() : impl_(std::make_unique<Impl>()) {}
EtcdLoop::~EtcdLoop() = default;

void EtcdLoop::run_one(Time until) {
  if (!cancelled()) impl_->io.run_one_until(until);
}
void EtcdLoop::wake() {
  asio::post(impl_->io, [] {});
}
void EtcdLoop::cancel() {
  impl_->cancelled = true;
  wake();
}
void EtcdLoop::resume() {
  impl_->cancelled = false;
}
bool EtcdLoop::cancelled() const {
  return impl_->cancelled;
}

struct EtcdConnection::Impl {
  Impl(EtcdLoop& l, HostPort w) : loop(l), where(std::move(w)) {}

  // `answered`: bytes of an answer came.
  Result<EtcdReply> attempt(const http::request<http::string_body>& request, EtcdLoop::Time deadline) {
    answered = false;
    if (!stream) {
      stream.emplace(loop.impl().io);
      KV_RETURN_IF_ERROR(connect(loop, where, deadline, *stream));
    }
    error_code ec = await_stream(loop, *stream, deadline,
                                 [&](auto handler) { http::async_write(*stream, request, handler); });
    if (ec) return transport_error(ec);
    beast::flat_buffer buffer;
    buffer.reserve(kReadBytes);
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxEtcdAnswerBytes);
    ec = await_stream(loop, *stream, deadline,
                      [&](auto handler) { http::async_read(*stream, buffer, parser, handler); });
    answered = parser.got_some() || buffer.size() > 0;
    if (ec) return transport_error(ec);
    // Bytes behind the answer would be taken for the next one.
    if (!parser.get().keep_alive() || buffer.size() > 0) stream.reset();
    return EtcdReply{static_cast<int>(parser.get().result_int()), std::move(parser.get().body())};
  }

  EtcdLoop& loop;
  const HostPort where;
  std::optional<beast::tcp_stream> stream;  // none: not connected
  bool answered = false;
};

EtcdConnection::EtcdConnection(EtcdLoop& loop, HostPort where)
    : impl_(std::make_unique<Impl>(loop, std::move(where))) {}
EtcdConnection::~EtcdConnection() = default;

Result<EtcdReply> EtcdConnection::post(const std::string& path, const std::string& body,
                                       EtcdLoop::Time deadline) {
  const http::request<http::string_body> request = post_request(impl_->where, path, body);
  const bool kept = impl_->stream.has_value();
  Result<EtcdReply> reply = impl_->attempt(request, deadline);
  if (reply.ok()) return reply;
  impl_->stream.reset();
  const bool in_time = std::chrono::steady_clock::now() < deadline && !impl_->loop.cancelled();
  if (!kept || impl_->answered || !in_time) return reply;
  reply = impl_->attempt(request, deadline);
  if (!reply.ok()) impl_->stream.reset();
  return reply;
}

struct EtcdStream::Impl : std::enable_shared_from_this<EtcdStream::Impl> {
  explicit Impl(EtcdLoop& loop) : stream(loop.impl().io) {
    buffer.reserve(kReadBytes);
    parser.body_limit(boost::none);  // the stream has no end; take_lines() bounds what is kept of it
  }

  void read() {
    http::async_read_some(stream, buffer, parser, [self = shared_from_this()](error_code ec, size_t) {
      self->take_lines();
      if (ec) {
        self->fail(transport_error(ec));
      } else if (self->parser.is_done()) {
        self->fail({ErrorCode::kUnavailable, "closes the connection"});
      }
      if (self->status.ok()) self->read();
    });
  }
  void take_lines() {
    size_t begin = 0, look = rest.size();
    rest += parser.get().body();
    parser.get().body().clear();
    for (size_t end; (end = rest.find('\n', look)) != std::string::npos; begin = look = end + 1) {
      lines.push_back(rest.substr(begin, end - begin));
      waiting_bytes += sizeof(std::string) + lines.back().size();
    }
    rest.erase(0, begin);
    if (rest.size() + waiting_bytes > kMaxEtcdAnswerBytes) {
      fail({ErrorCode::kCorrupt, "answers more than any etcd would"});
    }
  }
  void fail(Status why) {
    if (status.ok()) status = std::move(why);
    stream.close();
  }

  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  std::string rest;  // of a line that has not ended
  std::deque<std::string> lines;
  size_t waiting_bytes = 0;  // in lines
  Status status;
};

EtcdStream::EtcdStream(EtcdLoop& loop) : loop_(loop) {}
EtcdStream::~EtcdStream() {
  close();
}

Status EtcdStream::open(const HostPort& where, const std::string& path, const std::string& body,
                        EtcdLoop::Time deadline) {
  close();
  auto made = std::make_shared<Impl>(loop_);
  KV_RETURN_IF_ERROR(connect(loop_, where, deadline, made->stream));
  const int socket = made->stream.socket().native_handle();
  for (const auto& [level, name, value] : {std::tuple{SOL_SOCKET, SO_KEEPALIVE, 1},
                                           {IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS},
                                           {IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS},
                                           {IPPROTO_TCP, TCP_KEEPCNT, kProbes}}) {
    ::setsockopt(socket, level, name, &value, sizeof(value));
  }
  const http::request<http::string_body> request = post_request(where, path, body);
  error_code ec = await_stream(loop_, made->stream, deadline,
                               [&](auto handler) { http::async_write(made->stream, request, handler); });
  if (ec) return transport_error(ec);
  ec = await_stream(loop_, made->stream, deadline, [&](auto handler) {
    http::async_read_header(made->stream, made->buffer, made->parser, handler);
  });
  if (ec) return transport_error(ec);
  if (const int status = static_cast<int>(made->parser.get().result_int()); status != 200) {
    return error(ErrorCode::kUnavailable, "refuses the request (HTTP {})", status);
  }
  made->stream.expires_never();
  impl_ = std::move(made);
  if (impl_->parser.is_done()) {
    impl_->fail({ErrorCode::kUnavailable, "closes the connection"});
  } else {
    impl_->read();
  }
  return {};
}

void EtcdStream::close() {
  if (!impl_) return;
  impl_->fail({ErrorCode::kUnavailable, "was not waited for"});
  impl_.reset();
}

bool EtcdStream::is_open() const {
  return impl_ != nullptr;
}

bool EtcdStream::next(std::string& line) {
  if (!impl_ || impl_->lines.empty()) return false;
  line = std::move(impl_->lines.front());
  impl_->waiting_bytes -= sizeof(std::string) + line.size();
  impl_->lines.pop_front();
  return true;
}

Status EtcdStream::status() const {
  if (!impl_) return {ErrorCode::kUnavailable, "is not open"};
  return impl_->status;
}

}  // namespace kvasir
