// Reading requests, and refusing them by their head or size.
#include "server/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <exception>
#include <new>
#include <utility>

#include "base/log.h"
#include "server/slo_fields.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kIdleReadBytes = 2 * 1024;  // all that a connection holds between two requests
constexpr size_t kReadBytes = 16 * 1024;
constexpr size_t kBodyReadBytes = 64 * 1024;
constexpr size_t kPipelineBytes = 64 * 1024;  // of later requests, while an answer is being made
constexpr uint64_t kStepBytes = 16 * 1024;    // a transfer that has come on by so much has got on

constexpr const char* kNoMemory = "the server has no memory for this request; try again later";
// The same as an answer that needs no memory.
constexpr std::string_view kNoMemoryAnswer =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 150\r\n"
    "Retry-After: 1\r\nConnection: close\r\n\r\n"
    R"({"error":{"code":"overloaded","message":"the server has no memory for this request; try again later",)"
    R"("param":null,"type":"service_unavailable_error"}})";

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, ServerContext* context, const TlsContext& tls)
    : stream_(std::move(socket), tls),
      context_(context),
      deadline_(stream_.socket().get_executor()),
      write_deadline_(stream_.socket().get_executor()),
      ping_timer_(stream_.socket().get_executor()),
      reserved_(context->counters, context->options.limits.max_bodies_bytes) {
  error_code ignored;
  peer_ = stream_.socket().remote_endpoint(ignored);
  context_->counters->connections.fetch_add(1, std::memory_order_relaxed);
}

void Connection::start() {
  error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  guarded([this] {
    if (!stream_.is_tls()) return on_handshake({});
    enter(Phase::kHandshake);
    set_deadline(context_->options.limits.header_timeout);
    stream_.async_handshake(
        [self = shared_from_this()](error_code ec) { self->guarded([&] { self->on_handshake(ec); }); });
  });
}

void Connection::on_handshake(error_code ec) {
  if (phase_ == Phase::kClosed) return;
  const bool plain_http = ec && SocketStream::is_plain_http(ec);
  if (ec && !plain_http) return close();
  reset_request();
  if (plain_http) {
    stream_.drop_tls();
    fail(400, "this port speaks TLS; use https://");
  }
  read_more();
}

void Connection::refuse(const ApiError& error) {
  if (stream_.is_tls()) return close();
  guarded([&] {
    reset_request();
    info_.request_id = request_id_or_new("");
    respond(error_response(error));
    read_more();
  });
}

void Connection::on_exception(const std::exception& what) {
  log_fault("a request failed unexpectedly", what, info_.request_id, request_.caller.name());
  record_.end = RequestEnd::kFailed;
  bool memory = dynamic_cast<const std::bad_alloc*>(&what) != nullptr;
  try {
    abandon_work();
    if (phase_ != Phase::kClosed && answer_ == Answer::kNone) {
      if (memory) return fail(unavailable(kNoMemory, "overloaded", 1));
      return fail(500, "the request failed unexpectedly");
    }
    stop_work(memory ? 503 : 500);
  } catch (const std::bad_alloc&) {
    // There is no memory for an answer, but for one that needs none.
    memory = true;
  } catch (const std::exception&) {
    // The connection ends without an answer.
  }
  if (phase_ == Phase::kClosed) return;
  if (answer_begun_) {
    record_.error = memory ? "overloaded" : "server_error";
    return finish_now();
  }
  if (memory && head_begun_) stream_.send_now(kNoMemoryAnswer);
  close();
}

void Connection::close_when_done() {
  closing_ = true;
  info_.keep_alive = false;
  end_endless();
  if (phase_ != Phase::kBusy) close();
}

void Connection::make_way() {
  if (phase_ == Phase::kBusy) return abandon_slow_reader();
  close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  // An answer without its end must not look as if it were whole.
  const bool cut_off = answer_begun_ && (answer_ == Answer::kStreaming || unsent_bytes() > 0);
  try {
    stop_work();
  } catch (const std::bad_alloc&) {
    // What could not be cancelled for want of memory runs to its end.
  }
  end_exchange();
  if (cut_off) {
    stream_.reset();
  } else {
    stream_.close();
  }
  deadline_.cancel();
  write_deadline_.cancel();
  ping_timer_.cancel();
  context_->counters->connections.fetch_sub(1, std::memory_order_relaxed);
  context_->forget(this);
}

// --- Reading ---

void Connection::enter(Phase phase) {
  using enum ServerContext::Waits;
  phase_ = phase;
  moved_ = phase == Phase::kBody ? 0 : kStepBytes;  // a complete answer is told of at once
  context_->set_waiting(this,
                        phase == Phase::kBusy   ? kNot
                        : phase == Phase::kBody ? kForBody
                                                : kForRequest,
                        /*kept_bytes=*/0);
}

void Connection::count_moved(uint64_t bytes) {
  moved_ += bytes;
  if (moved_ < kStepBytes) return;
  moved_ = 0;
  using enum ServerContext::Waits;
  try {
    context_->set_waiting(this, phase_ == Phase::kBody ? kForBody : kForReader,
                          out_.size() + in_flight_.size());
  } catch (const std::bad_alloc&) {
    moved_ = kStepBytes;  // it is told the next time
  }
}

void Connection::read_more() {
  if (reading_ || end_of_input_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kBusy && arrived().size() >= kPipelineBytes) {
    if (working_) refuse_read_ahead();
    return;
  }
  reading_ = true;
  // This read may still be there when the connection waits for its next request.
  const bool idle = phase_ == Phase::kBusy || (phase_ == Phase::kHead && !head_begun_);
  const size_t bytes = phase_ == Phase::kBody ? kBodyReadBytes : idle ? kIdleReadBytes : kReadBytes;
  if (buffer_.size() == 0 && buffer_.capacity() > bytes) buffer_.shrink_to_fit();
  stream_.async_read_some(buffer_.prepare(bytes), [self = shared_from_this()](error_code ec, size_t n) {
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
  take(0);
  if (phase_ == Phase::kBody) count_moved(bytes);
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
        take(arrived().size());
        more = false;
        break;
      case Phase::kHandshake:
      case Phase::kBusy:
      case Phase::kClosed:
        more = false;
        break;
    }
  }
  if (end_of_input_ && (phase_ == Phase::kHead || phase_ == Phase::kBody)) close();
}

std::string_view Connection::arrived() const {
  const std::string_view all(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  return all.substr(taken_);
}

// A read that is under way writes behind what the buffer has, so the buffer is only emptied when none is.
void Connection::take(size_t bytes) {
  taken_ += bytes;
  if (!reading_) buffer_.consume(std::exchange(taken_, 0));
}

bool Connection::parse_head() {
  if (arrived().empty()) return false;
  if (!head_begun_) {
    head_begun_ = true;
    record_.begin = context_->clock.now();
    set_deadline(context_->options.limits.header_timeout);
  }
  return take_head();
}

// False: more of it must come.
bool Connection::take_head() {
  const size_t most = context_->options.limits.max_header_bytes;
  const HeadScanner::Verdict verdict = scanner_.scan(arrived());
  if (verdict == HeadScanner::Verdict::kBadByte) {
    fail(400, "this is not a valid HTTP/1.1 request: lines end with CR LF, and have no control characters");
    return true;
  }
  const bool complete = verdict == HeadScanner::Verdict::kComplete;
  if ((complete ? scanner_.end() : arrived().size()) > most) {
    // RFC 9112, section 3.
    const bool long_target = !scanner_.line_ends_within(arrived(), most);
    fail(long_target ? 414 : 431,
         fmt::format("the {} is larger than {} bytes", long_target ? "target" : "header", most));
    return true;
  }
  if (!complete) return false;
  head_text_ = scanner_.head(arrived());
  take(scanner_.end());
  auto read = read_head(head_text_);
  if (const auto* wrong = std::get_if<ApiError>(&read)) {
    fail(wrong->status, wrong->message);
  } else {
    head_ = std::get<RequestHead>(std::move(read));
    on_head();
  }
  return true;
}

bool Connection::parse_body() {
  while (!arriving_.done()) {
    if (arrived().empty()) return false;
    if (!reserve_arrived()) {
      context_->counters->requests_refused.fetch_add(1, std::memory_order_relaxed);
      info_.keep_alive = false;
      respond(error_response(unavailable("too many large requests at once; try again", "overloaded", 1)));
      return true;
    }
    take(arriving_.take(arrived(), request_.body));
    if (arriving_.fault() != RequestBody::Fault::kNone) {
      fail_body();
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
  const uint64_t end = head_.content_length.value_or(body_limit());
  const uint64_t bytes = std::min<uint64_t>(request_.body.size() + arrived().size(), end);
  return bytes <= context_->options.limits.small_body_bytes || reserved_.grow_to(bytes);
}

void Connection::on_head() {
  info_.request_id = request_id_or_new(head_.header("X-Request-Id"));
  // After a body that was not read the connection cannot be used for another request.
  info_.keep_alive = head_.keep_alive && !context_->ends() && !has_body();
  info_.head_only = head_.method == "HEAD";
  info_.chunked = head_.minor_version > 0;
  enter(Phase::kBody);
  request_.method = head_.method;
  request_.target = head_.target;
  if (answer_browser()) return;
  request_.headers = std::move(head_.headers);
  Route route = find_route(context_->endpoints, request_.method, request_.target);
  request_.parameter = std::move(route.parameter);
  endpoint_ = route.endpoint;
  begin_record();
  if (const std::optional<HttpResponse> refusal = refusal_by_head(route)) return respond(*refusal);
  if (endpoint_->max_body_bytes == Endpoint::kNoBody) return run_handler();
  info_.keep_alive = head_.keep_alive && !context_->ends();
  expect_body();
}

// Answers what pages may not ask, and whether they may ask; false if neither is the case.
bool Connection::answer_browser() {
  const BrowserRules& rules = context_->browsers;
  info_.more_headers = rules.answer_headers(head_);
  if (const std::optional<ApiError> refusal = rules.refusal(head_)) {
    respond(error_response(*refusal));
    return true;
  }
  const std::optional<std::string> allowed = rules.preflight(head_);
  if (!allowed) return false;
  info_.more_headers += *allowed;
  HttpResponse empty;
  empty.status = 204;
  respond(empty);
  return true;
}

// What the head alone decides, so that a client does not send a body in vain.
std::optional<HttpResponse> Connection::refusal_by_head(const Route& route) {
  std::optional<Caller> caller =
      route.needs_key ? context_->keys->find(request_.header("Authorization"), request_.header("x-api-key"))
                      : Caller();
  if (!caller) {
    ApiError e;
    e.status = 401;
    e.message = "a valid API key is needed: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
    e.code = "invalid_api_key";
    return error_response(e);
  }
  request_.caller = *std::move(caller);
  request_.caller.request_id = info_.request_id;
  if (route.endpoint == nullptr) return route.refusal;
  if (endpoint_->model == Endpoint::Model::kNoModel) return std::nullopt;
  if (auto e = refusal_if_not_ready()) return error_response(*e);
  for (const auto& [name, value] : request_.headers) {
    if (auto wrong = read_slo_header(name, value, request_.slo)) return error_response(*wrong);
  }
  if (auto e = begin_request(request_.caller, context_->clock.now())) return error_response(*e);
  key_lease_ = KeyLease(request_.caller.usage, 1);
  return std::nullopt;
}

void Connection::expect_body() {
  if (head_.content_length.value_or(0) > body_limit()) return fail_too_large();
  arriving_ = head_.chunked ? RequestBody::of_chunks(body_limit())
                            : RequestBody::of_length(head_.content_length.value_or(0));
  const std::string_view expect = request_.header("Expect");
  if (!expect.empty() && head_.minor_version > 0 && !arriving_.done()) {
    if (!equal_ignoring_case(expect, "100-continue")) {
      return fail(417, "the only expectation that is met is 100-continue");
    }
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  body_ends_ =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(context_->options.limits.body_timeout);
  body_seen_ = 0;
  arm_body_deadline();
}

// REQUIRES: the endpoint is known.
uint64_t Connection::body_limit() const {
  return std::min(context_->options.limits.max_body_bytes, endpoint_->max_body_bytes);
}

void Connection::fail_too_large() {
  fail(413, fmt::format("the body is larger than {} bytes", body_limit()));
}

void Connection::fail_body() {
  if (arriving_.fault() == RequestBody::Fault::kTooLarge) return fail_too_large();
  fail(400, fmt::format("the chunks of the body are malformed, or their extensions and trailers have more "
                        "than {} bytes",
                        RequestBody::kMaxExtraBytes));
}

// REQUIRES: no answer has begun.
void Connection::fail(int status, std::string message) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  fail(e);
}

void Connection::fail(const ApiError& e) {
  info_.keep_alive = false;
  if (info_.request_id.empty()) info_.request_id = request_id_or_new("");
  respond(error_response(e));
}

void Connection::reset_request() {
  info_ = {};
  record_ = {};
  told_ = false;
  request_ = {};
  scanner_ = {};
  head_ = {};
  std::string().swap(head_text_);
  arriving_ = {};
  head_begun_ = false;
  endpoint_ = nullptr;
  answer_ = Answer::kNone;
  answer_begun_ = false;
  enter(Phase::kHead);
  set_deadline(context_->options.limits.idle_timeout);
}

void Connection::next_request() {
  end_exchange();
  // All was sent, and an idle connection keeps nothing of it.
  in_flight_.clear();
  for (std::string* const bytes : {&out_, &in_flight_}) {
    if (bytes->capacity() > kIdleReadBytes) std::string().swap(*bytes);
  }
  in_flight_sent_ = 0;
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
  const uint64_t taken = request_.body.size();
  const double rate = static_cast<double>(taken - body_seen_) / to_seconds(limits.body_grace);
  if (rate < static_cast<double>(limits.min_body_bytes_per_s)) {
    return fail(408, fmt::format("the body came with fewer than {} bytes per second; send it faster",
                                 limits.min_body_bytes_per_s));
  }
  body_seen_ = taken;
  arm_body_deadline();
}

void Connection::on_deadline() {
  if (phase_ == Phase::kBody) return on_body_deadline();
  if (phase_ == Phase::kHead && head_begun_) return fail(408, "the request took too long to arrive");
  if (phase_ != Phase::kBusy && phase_ != Phase::kClosed) close();
}

}  // namespace kvasir
