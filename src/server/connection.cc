// Reading requests, and refusing them by their head or size.
#include "server/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <exception>
#include <utility>

#include "base/log.h"
#include "server/auth.h"
#include "server/slo_fields.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = 16 * 1024;
constexpr size_t kBodyReadBytes = 64 * 1024;
constexpr size_t kPipelineBytes = 64 * 1024;  // of later requests, while an answer is being made

std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, ServerContext* context)
    : socket_(std::move(socket)),
      context_(context),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      ping_timer_(socket_.get_executor()),
      body_(context->counters, context->options.limits.max_bodies_bytes) {
  context_->counters->connections.fetch_add(1, std::memory_order_relaxed);
}

void Connection::start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  guarded([this] {
    reset_request();
    read_more();
  });
}

void Connection::refuse(const ApiError& error) {
  guarded([&] {
    reset_request();
    info_.request_id = request_id_or_new("");
    close_if_body_unread();
    respond(error_response(error));
    read_more();
  });
}

void Connection::on_exception(const char* what) {
  log_error("a request failed unexpectedly: {}", what);
  try {
    abandon_work();
    if (phase_ != Phase::kClosed && answer_ == Answer::kNone)
      return fail(500, "the request failed unexpectedly");
    stop_work(500);
  } catch (const std::exception&) {
    // There is no memory for an answer, so the connection is closed.
  }
  close();
}

void Connection::close_when_done() {
  closing_ = true;
  info_.keep_alive = false;
  if (phase_ != Phase::kBusy) close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  stop_work();
  end_exchange();
  error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
  write_deadline_.cancel();
  ping_timer_.cancel();
  context_->counters->connections.fetch_sub(1, std::memory_order_relaxed);
  context_->forget(this);
}

// --- Reading ---

void Connection::read_more() {
  if (reading_ || end_of_input_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kBusy && buffer_.size() >= kPipelineBytes) {
    if (working_) refuse_read_ahead();
    return;
  }
  reading_ = true;
  const size_t bytes = phase_ == Phase::kBody ? kBodyReadBytes : kReadBytes;
  socket_.async_read_some(buffer_.prepare(bytes), [self = shared_from_this()](error_code ec, size_t n) {
    self->guarded([&] { self->on_read(ec, n); });
  });
}

// The socket of an exchange that is being worked on must stay readable, so that a disconnect is noticed.
void Connection::refuse_read_ahead() {
  if (answer_ != Answer::kNone) return close();
  fail(400, fmt::format("more than {} bytes came before the answer; wait for it", kPipelineBytes));
}

void Connection::on_read(error_code ec, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (ec == asio::error::eof) return on_end_of_input();
  if (ec) return close();
  buffer_.commit(bytes);
  advance();
  read_more();
}

// A client that has only shut down its sending side looks the same as one that has disconnected. An answer
// that is ready is still sent. A request that is being worked on is taken to be abandoned.
void Connection::on_end_of_input() {
  end_of_input_ = true;
  if (phase_ != Phase::kBusy || working_) return close();
}

void Connection::advance() {
  bool more = true;
  while (more) {
    switch (phase_) {
      case Phase::kHead:
        more = parse_head();
        break;
      case Phase::kBody:
        more = parse_body();
        break;
      case Phase::kLinger:
        buffer_.consume(buffer_.size());
        more = false;
        break;
      case Phase::kBusy:
      case Phase::kClosed:
        more = false;
        break;
    }
  }
  if (end_of_input_ && (phase_ == Phase::kHead || phase_ == Phase::kBody)) close();
}

bool Connection::parse_head() {
  if (buffer_.size() == 0) return false;
  if (!head_begun_) {
    head_begun_ = true;
    set_deadline(context_->options.limits.header_timeout);
  }
  error_code ec;
  buffer_.consume(parser_->put(buffer_.data(), ec));
  if (ec == http::error::need_more) return false;
  if (ec) {
    fail_parse(ec);
  } else if (parser_->is_header_done()) {
    on_head();
  }
  return true;
}

bool Connection::parse_body() {
  error_code ec;
  while (!parser_->is_done()) {
    if (buffer_.size() == 0) return false;
    if (!reserve_arrived()) {
      context_->counters->requests_refused.fetch_add(1, std::memory_order_relaxed);
      info_.keep_alive = false;
      respond(error_response(unavailable("too many large requests at once; try again", "overloaded", 1)));
      return true;
    }
    const size_t used = parser_->put(buffer_.data(), ec);
    buffer_.consume(used);
    if (ec == http::error::need_more) return false;
    if (ec) {
      fail_parse(ec);
      return true;
    }
  }
  if (end_of_input_) {
    close();  // as in on_end_of_input()
  } else {
    run_handler();
  }
  return true;
}

// Reserves room for the bytes that are about to be added to the body. Only bytes that have arrived count, so
// an announced length takes no room from other requests.
bool Connection::reserve_arrived() {
  const uint64_t end = parser_->content_length().value_or(body_limit());
  const uint64_t bytes = std::min<uint64_t>(parser_->get().body().size() + buffer_.size(), end);
  return bytes <= context_->options.limits.small_body_bytes || body_.grow_to(bytes);
}

void Connection::on_head() {
  const auto& head = parser_->get();
  info_.request_id = request_id_or_new(view(head["X-Request-Id"]));
  info_.keep_alive = head.keep_alive() && !context_->draining;
  info_.head_only = head.method() == http::verb::head;
  info_.chunked = head.version() >= 11;
  phase_ = Phase::kBody;
  if (head.version() != 10 && head.version() != 11) return fail(505, "use HTTP/1.1");
  request_.method = view(head.method_string());
  request_.target = view(head.target());
  for (const auto& header : head) {
    request_.headers.emplace_back(view(header.name_string()), view(header.value()));
  }
  Route route = find_route(context_->endpoints, request_.method, request_.target);
  request_.parameter = std::move(route.parameter);
  endpoint_ = route.endpoint;
  if (const std::optional<HttpResponse> refusal = refusal_by_head(route)) {
    close_if_body_unread();
    return respond(*refusal);
  }
  if (endpoint_->max_body_bytes == Endpoint::kNoBody) {
    close_if_body_unread();
    return run_handler();
  }
  expect_body();
}

// What the head alone decides, so that a client does not send a body in vain.
std::optional<HttpResponse> Connection::refusal_by_head(const Route& route) {
  if (route.needs_key && !is_authorized(request_.header("Authorization"), request_.header("x-api-key"),
                                        context_->options.api_keys)) {
    ApiError e;
    e.status = 401;
    e.message = "a valid API key is needed: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
    e.code = "invalid_api_key";
    return error_response(e);
  }
  if (route.endpoint == nullptr) return route.refusal;
  if (endpoint_->model == Endpoint::Model::kNoModel) return std::nullopt;
  if (auto e = refusal_if_not_ready()) return error_response(*e);
  for (const auto& [name, value] : request_.headers) {
    if (auto wrong = read_slo_header(name, value, request_.slo)) return error_response(*wrong);
  }
  return std::nullopt;
}

// After a body that was not read the connection cannot be used for another request.
void Connection::close_if_body_unread() {
  if (!parser_->is_header_done() || parser_->chunked() || parser_->content_length().value_or(0) > 0) {
    info_.keep_alive = false;
  }
}

void Connection::expect_body() {
  if (parser_->content_length().value_or(0) > body_limit()) return fail_parse(http::error::body_limit);
  parser_->body_limit(body_limit());
  const auto expect = parser_->get()[http::field::expect];
  if (!expect.empty() && !parser_->is_done()) {
    if (!boost::beast::iequals(expect, "100-continue")) {
      return fail(417, "the only expectation that is met is 100-continue");
    }
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  parser_->eager(true);
  body_ends_ =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(context_->options.limits.body_timeout);
  body_seen_ = 0;
  arm_body_deadline();
}

// Until the endpoint is known, the server's limit.
uint64_t Connection::body_limit() const {
  const uint64_t most = context_->options.limits.max_body_bytes;
  return endpoint_ == nullptr ? most : std::min(most, endpoint_->max_body_bytes);
}

void Connection::fail_parse(error_code ec) {
  const HttpLimits& limits = context_->options.limits;
  if (parser_->is_header_done()) info_.request_id = request_id_or_new(view(parser_->get()["X-Request-Id"]));
  if (ec == http::error::body_limit) {
    return fail(413, fmt::format("the body is larger than {} bytes", body_limit()));
  }
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return fail(431, fmt::format("the header is larger than {} bytes", limits.max_header_bytes));
  }
  if (ec == http::error::bad_version) return fail(505, "use HTTP/1.1");
  fail(400, "this is not a valid HTTP/1.1 request");
}

// REQUIRES: no answer has begun.
void Connection::fail(int status, std::string message) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  info_.keep_alive = false;
  if (info_.request_id.empty()) info_.request_id = request_id_or_new("");
  respond(error_response(e));
}

void Connection::reset_request() {
  parser_.emplace();
  parser_->header_limit(context_->options.limits.max_header_bytes);
  parser_->body_limit(boost::none);  // expect_body() sets the endpoint's
  head_begun_ = false;
  info_ = {};
  request_ = {};
  endpoint_ = nullptr;
  answer_ = Answer::kNone;
  phase_ = Phase::kHead;
  set_deadline(context_->options.limits.idle_timeout);
}

void Connection::next_request() {
  end_exchange();
  reset_request();
  advance();
  read_more();
}

void Connection::set_deadline(Nanos timeout) {
  deadline_.expires_after(std::chrono::nanoseconds(timeout));
  deadline_.async_wait([self = shared_from_this()](error_code ec) {
    if (ec || self->deadline_.expiry() > std::chrono::steady_clock::now()) return;
    self->guarded([&] { self->on_deadline(); });
  });
}

// Until the body's deadline, or the next check of its rate.
void Connection::arm_body_deadline() {
  const HttpLimits& limits = context_->options.limits;
  const Nanos left = std::chrono::nanoseconds(body_ends_ - std::chrono::steady_clock::now()).count();
  const bool rated = limits.min_body_bytes_per_s > 0 && limits.body_grace > 0;
  set_deadline(std::max<Nanos>(0, rated ? std::min(left, limits.body_grace) : left));
}

void Connection::on_body_deadline() {
  const HttpLimits& limits = context_->options.limits;
  if (std::chrono::steady_clock::now() >= body_ends_) return fail(408, "the request took too long to arrive");
  const uint64_t arrived = parser_->get().body().size();
  const double rate = static_cast<double>(arrived - body_seen_) / to_seconds(limits.body_grace);
  if (rate < static_cast<double>(limits.min_body_bytes_per_s)) {
    return fail(408, fmt::format("the body came with fewer than {} bytes per second; send it faster",
                                 limits.min_body_bytes_per_s));
  }
  body_seen_ = arrived;
  arm_body_deadline();
}

void Connection::on_deadline() {
  if (phase_ == Phase::kBody) return on_body_deadline();
  if (phase_ == Phase::kHead && head_begun_) return fail(408, "the request took too long to arrive");
  if (phase_ == Phase::kHead || phase_ == Phase::kLinger) close();
}

}  // namespace kvasir
