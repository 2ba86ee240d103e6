// The handlers run on the thread that calls post() or get(), which waits for each operation in turn.
#include "server/http_caller.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace kvasir {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Time = std::chrono::steady_clock::time_point;

constexpr auto kAskEvery = std::chrono::milliseconds(100);
constexpr uint64_t kMostAnswerBytes = 64 * 1024;

Status unavailable_because(const error_code& ec) {
  if (ec == asio::error::connection_refused) return {ErrorCode::kUnavailable, "it refuses connections"};
  return error(ErrorCode::kUnavailable, "it cannot be reached: {}", ec.message());
}

}  // namespace

std::string HttpUrl::authority() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

Result<HttpUrl> parse_http_url(std::string_view text) {
  HttpUrl url;
  if (text.starts_with("https://")) {
    url.tls = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return error(ErrorCode::kInvalidArgument, "it must begin with http:// or https://");
  }
  if (std::any_of(text.begin(), text.end(), [](char c) { return c <= ' ' || c > '~'; }) ||
      text.find_first_of("@?#") != std::string_view::npos) {
    return error(ErrorCode::kInvalidArgument, "it may have only a host, a port and a path");
  }
  const size_t slash = std::min(text.find('/'), text.size());
  std::string_view where = text.substr(0, slash);
  url.path = slash < text.size() ? text.substr(slash) : "/";
  const size_t bracket = where.find(']');
  const size_t colon = where.find(':', bracket == std::string_view::npos ? 0 : bracket);
  url.port = url.tls ? "443" : "80";
  if (colon != std::string_view::npos) {
    uint16_t port = 0;
    const std::string_view digits = where.substr(colon + 1);
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (problem != std::errc() || end != digits.data() + digits.size() || port == 0) {
      return error(ErrorCode::kInvalidArgument, "its port must be a number from 1 to 65535");
    }
    url.port = digits;
    where = where.substr(0, colon);
  }
  if (where.starts_with('[') && where.ends_with(']')) where = where.substr(1, where.size() - 2);
  if (where.empty()) return error(ErrorCode::kInvalidArgument, "it names no host");
  url.host = where;
  return url;
}

struct HttpCaller::Impl {
  struct Ask {
    const std::string* body;  // null: a GET
    uint64_t most_bytes;      // of the answer's body
  };

  Impl(HttpUrl to, std::function<bool()> give_up) : url(std::move(to)), gives_up(std::move(give_up)) {}

  // Starts an operation on the socket and waits for its end. In time, or the socket is closed.
  template <typename Start>
  Status await(tcp::socket& socket, Time deadline, Start start) {
    std::optional<error_code> result;
    const char* closed = nullptr;
    start([&result](error_code ec) { result = ec; });
    io->restart();
    while (!result) {
      io->run_one_until(std::min(deadline, std::chrono::steady_clock::now() + kAskEvery));
      if (result || closed != nullptr) continue;
      if (gives_up()) closed = "it was not waited for";
      if (std::chrono::steady_clock::now() >= deadline) closed = "it does not answer in time";
      if (closed == nullptr) continue;
      error_code ignored;
      socket.close(ignored);
      deadline = Time::max();
    }
    if (closed != nullptr) return {ErrorCode::kUnavailable, closed};
    return *result ? unavailable_because(*result) : Status();
  }

  struct Lookup {
    std::mutex mutex;
    std::condition_variable ended;
    bool done = false;
    error_code ec;
    tcp::resolver::results_type found;
  };

  // On a thread of its own, since a look-up cannot be broken off. One at a time: if the name service hangs,
  // the next request waits for the look-up of the one before.
  Result<tcp::resolver::results_type> look_up(Time deadline) {
    if (!lookup_in_flight) start_look_up();
    const std::shared_ptr<Lookup> lookup = lookup_in_flight;
    std::unique_lock lock(lookup->mutex);
    while (!lookup->done && !gives_up() && std::chrono::steady_clock::now() < deadline) {
      lookup->ended.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kAskEvery));
    }
    if (lookup->done) lookup_in_flight.reset();
    if (!lookup->done || lookup->ec) {
      return error(ErrorCode::kUnavailable, "its name cannot be looked up{}",
                   lookup->ec ? ": " + lookup->ec.message() : "");
    }
    return std::move(lookup->found);
  }

  void start_look_up() {
    const auto lookup = std::make_shared<Lookup>();
    std::thread([lookup, host = url.host, port = url.port] {
      error_code ec;
      tcp::resolver::results_type found;
      try {
        asio::io_context own;
        found = tcp::resolver(own).resolve(host, port, ec);
      } catch (const std::exception&) {
        ec = asio::error::no_memory;
      }
      const std::lock_guard lock(lookup->mutex);
      lookup->done = true;
      lookup->ec = ec;
      lookup->found = std::move(found);
      lookup->ended.notify_all();
    }).detach();
    lookup_in_flight = lookup;
  }

  template <typename Stream>
  Result<HttpCallerReply> exchange(Stream& stream, tcp::socket& socket, const Ask& ask, Time deadline) {
    http::request<http::string_body> request{ask.body ? http::verb::post : http::verb::get, url.path, 11};
    request.set(http::field::host, url.authority());
    request.set(http::field::user_agent, "kvasir");
    request.set(http::field::connection, "close");
    if (ask.body) {
      request.set(http::field::content_type, "application/json");
      request.body() = *ask.body;
    }
    request.prepare_payload();
    KV_RETURN_IF_ERROR(await(socket, deadline, [&](auto done) {
      http::async_write(stream, request, [done](error_code ec, size_t) { done(ec); });
    }));
    boost::beast::flat_buffer buffer;
    http::response_parser<http::empty_body> head;
    head.body_limit(boost::none);
    KV_RETURN_IF_ERROR(await(socket, deadline, [&](auto done) {
      http::async_read_header(stream, buffer, head, [done](error_code ec, size_t) { done(ec); });
    }));
    HttpCallerReply answer;
    answer.status = static_cast<int>(head.get().result_int());
    const auto after = head.get()[http::field::retry_after];
    int seconds = 0;
    if (std::from_chars(after.data(), after.data() + after.size(), seconds).ec == std::errc()) {
      answer.retry_after_s = std::max(0, seconds);
    }
    if (ask.body && head.content_length().value_or(0) > ask.most_bytes) return answer;
    http::response_parser<http::string_body> parser(std::move(head));
    parser.body_limit(ask.most_bytes);
    const Status whole = await(socket, deadline, [&](auto done) {
      http::async_read(stream, buffer, parser, [done](error_code ec, size_t) { done(ec); });
    });
    if (!ask.body) KV_RETURN_IF_ERROR(whole);
    if (whole.ok()) answer.body = std::move(parser.get().body());
    return answer;
  }

  Result<HttpCallerReply> send(const Ask& ask, Time deadline) {
    KV_ASSIGN_OR_RETURN(const tcp::resolver::results_type addresses, look_up(deadline));
    tcp::socket socket(io.emplace(1));
    Status status(ErrorCode::kUnavailable, "its name has no address");
    for (const auto& address : addresses) {
      error_code ignored;
      socket.close(ignored);
      status = await(socket, deadline,
                     [&](auto done) { socket.async_connect(address.endpoint(), std::move(done)); });
      if (status.ok() || gives_up()) break;
    }
    KV_RETURN_IF_ERROR(status);
    if (!tls) return exchange(socket, socket, ask, deadline);
    asio::ssl::stream<tcp::socket&> stream(socket, *tls);
    // An address is no name of a server (RFC 6066, section 3).
    error_code no_address;
    asio::ip::make_address(url.host, no_address);
    if (no_address) SSL_set_tlsext_host_name(stream.native_handle(), url.host.c_str());
    stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
    KV_RETURN_IF_ERROR(await(socket, deadline, [&](auto done) {
      stream.async_handshake(asio::ssl::stream_base::client, std::move(done));
    }));
    return exchange(stream, socket, ask, deadline);
  }

  const HttpUrl url;
  const std::function<bool()> gives_up;
  std::shared_ptr<Lookup> lookup_in_flight;  // null: there is none
  // Of one request: what an exception has left behind in it runs in none of the next ones.
  std::optional<asio::io_context> io;
  std::optional<asio::ssl::context> tls;  // with https
};

HttpCaller::HttpCaller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpCaller::~HttpCaller() = default;

Result<std::unique_ptr<HttpCaller>> HttpCaller::create(HttpUrl url, std::function<bool()> gives_up,
                                                       const HttpCallerTls& files) {
  const bool tls = url.tls;
  auto impl = std::make_unique<Impl>(std::move(url), std::move(gives_up));
  if (tls) {
    error_code ec;
    impl->tls.emplace(asio::ssl::context::tls_client);
    impl->tls->set_default_verify_paths(ec);
    if (!ec && !files.ca_certs.empty()) impl->tls->load_verify_file(files.ca_certs, ec);
    if (!ec && !files.certfile.empty()) impl->tls->use_certificate_chain_file(files.certfile, ec);
    if (!ec && !files.keyfile.empty()) {
      impl->tls->use_private_key_file(files.keyfile, asio::ssl::context::pem, ec);
    }
    if (ec) return error(ErrorCode::kInvalidArgument, "TLS cannot be set up: {}", ec.message());
    impl->tls->set_verify_mode(asio::ssl::verify_peer);
  }
  return std::unique_ptr<HttpCaller>(new HttpCaller(std::move(impl)));
}

Result<HttpCallerReply> HttpCaller::post(const std::string& body, Nanos timeout) {
  return impl_->send({&body, kMostAnswerBytes},
                     std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout));
}

Result<HttpCallerReply> HttpCaller::get(Nanos timeout, uint64_t most_bytes) {
  return impl_->send({nullptr, most_bytes},
                     std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout));
}

}  // namespace kvasir
