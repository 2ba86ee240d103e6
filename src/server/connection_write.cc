// Writing answers, with bounds on clients that do not read.
#include <boost/asio/buffer.hpp>
#include <exception>
#include <string>
#include <utility>

#include "server/connection.h"

namespace kvasir {

using boost::system::error_code;

void Connection::respond(const HttpResponse& response) {
  if (phase_ == Phase::kClosed) return;
  enter(Phase::kBusy);
  answer_ = Answer::kComplete;
  if (response.status == 503 && working_) {
    context_->counters->requests_refused.fetch_add(1, std::memory_order_relaxed);
  }
  context_->counters->count(response.status);
  record_.status = response.status;
  if (response.error) record_.error = error_name(*response.error);
  if (context_->ends()) info_.keep_alive = false;
  deadline_.cancel();
  stop_work();
  info_.more_headers += rate_limit_headers(request_.caller, context_->clock.now());
  if (!info_.head_only) static_body_ = response.static_body;
  if (!response.error || endpoint_ == nullptr) return send(format_response(response, info_));
  HttpResponse in_form = response;
  in_form.body = endpoint_->error_body(*response.error);
  send(format_response(in_form, info_));
}

void Connection::begin_stream(std::string_view last_words) {
  if (context_->ends() || !info_.chunked) info_.keep_alive = false;
  answer_ = Answer::kStreaming;
  pinged_ = false;
  last_words_ = info_.chunked ? format_chunk(last_words) + std::string(kLastChunk) : std::string(last_words);
  info_.more_headers += rate_limit_headers(request_.caller, context_->clock.now());
  last_stream_write_ = std::chrono::steady_clock::now();
  send(format_stream_head(info_));
  arm_ping();
}

void Connection::stream(std::string_view bytes) {
  // `vllm bench serve` strips each read, so that the end of a ping is lost, and the next event with it. The
  // end of a comment that comes with that event stays.
  if (std::exchange(pinged_, false)) return stream(":\n\n" + std::string(bytes));
  last_stream_write_ = std::chrono::steady_clock::now();
  if (info_.chunked) {
    send(format_chunk(bytes));
  } else {
    send(bytes);
  }
}

void Connection::end_stream() {
  ping_timer_.cancel();
  answer_ = Answer::kComplete;
  context_->counters->count(200);
  record_.status = 200;
  stop_work();
  if (info_.chunked) {
    send(kLastChunk);
  } else if (!writing_) {
    on_sent_all();
  } else {
    count_moved(0);
  }
}

void Connection::abandon_slow_reader() {
  context_->counters->slow_readers.fetch_add(1, std::memory_order_relaxed);
  record_.end = RequestEnd::kSlowReader;
  close();
}

void Connection::send(std::string_view bytes) {
  if (phase_ == Phase::kClosed) return;
  out_.append(bytes);
  if (!writing_) {
    rate_since_ = std::chrono::steady_clock::now();
    rate_bytes_ = 0;
    start_write();
  }
  if (answer_ == Answer::kComplete) count_moved(0);
}

bool Connection::reads_too_slowly(size_t bytes) {
  const HttpLimits& limits = context_->options.limits;
  rate_bytes_ += bytes;
  const auto now = std::chrono::steady_clock::now();
  const Nanos time = std::chrono::nanoseconds(now - rate_since_).count();
  if (time < limits.write_timeout) return false;
  if (time >= 2 * limits.write_timeout) {  // this process stood still: its timer would have come before
    rate_since_ = now;
    rate_bytes_ = 0;
    return false;
  }
  const double rate = static_cast<double>(std::exchange(rate_bytes_, 0)) / to_seconds(time);
  rate_since_ = now;
  return rate < static_cast<double>(limits.min_send_bytes_per_s);
}

void Connection::start_write() {
  if (in_flight_sent_ == in_flight_.size()) {
    in_flight_.clear();
    in_flight_.swap(out_);
    in_flight_sent_ = 0;
  }
  write_deadline_.expires_after(std::chrono::nanoseconds(context_->options.limits.write_timeout));
  // A timer that has fired cannot be cancelled, and the write may end before its handler runs.
  write_deadline_.async_wait([self = shared_from_this(), write = ++writes_](error_code ec) {
    if (ec || self->writes_ != write) return;
    self->guarded([&] { self->abandon_slow_reader(); });
  });
  const std::string_view rest =
      in_flight_.empty() ? static_body_ : std::string_view(in_flight_).substr(in_flight_sent_);
  stream_.async_write_some(boost::asio::buffer(rest),
                           [self = shared_from_this()](error_code ec, size_t n) { self->on_written(ec, n); });
  writing_ = true;
  answer_begun_ = answer_ != Answer::kNone;
}

void Connection::on_written(error_code ec, size_t bytes) {
  writing_ = false;
  ++writes_;
  write_deadline_.cancel();
  if (phase_ == Phase::kClosed) return;
  if (ec) return close();
  if (in_flight_.empty()) {
    static_body_.remove_prefix(bytes);
  } else {
    in_flight_sent_ += bytes;
  }
  record_.sent_bytes += bytes;
  if (finishing_) return finish_now();
  try {
    if (unsent_bytes() > 0) {
      if (reads_too_slowly(bytes)) return abandon_slow_reader();
      if (answer_ == Answer::kComplete) count_moved(bytes);
      return start_write();
    }
    on_sent_all();
  } catch (const std::exception& e) {
    on_exception(e);
  }
}

void Connection::on_sent_all() {
  if (phase_ != Phase::kBusy) return;
  if (const std::shared_ptr<Activity> activity = activity_) activity->on_drained();
  if (phase_ != Phase::kBusy || answer_ != Answer::kComplete || unsent_bytes() > 0) return;
  if (info_.keep_alive) {
    next_request();
  } else {
    linger();
  }
}

void Connection::finish_now() {
  finishing_ = true;
  info_.keep_alive = false;
  ping_timer_.cancel();
  // Only its end says how much of it the socket has taken. It has a deadline.
  if (writing_) return;
  write_deadline_.cancel();
  ++writes_;
  const std::string_view rest = std::string_view(in_flight_).substr(in_flight_sent_);
  const std::string_view end = answer_ == Answer::kStreaming ? last_words_ : std::string_view();
  for (const std::string_view bytes : {rest, std::string_view(out_), static_body_, end}) {
    if (!stream_.send_now(bytes)) return close();
    record_.sent_bytes += bytes.size();
  }
  in_flight_sent_ = in_flight_.size();
  out_.clear();
  static_body_ = {};
  answer_ = Answer::kComplete;
  try {
    linger();
  } catch (const std::exception&) {
    close();
  }
}

// Shuts down the sending side, and reads what the client still sends. If the socket were closed at once, the
// kernel would discard the part of the answer that the client has not read.
void Connection::linger() {
  end_exchange();
  if (end_of_input_ || closing_) return close();
  enter(Phase::kLinger);
  stream_.shutdown_send(shared_from_this());
  take(arrived().size());
  set_deadline(context_->options.limits.linger_timeout);
  read_more();
}

void Connection::arm_ping() {
  ping_timer_.expires_at(last_stream_write_ +
                         std::chrono::nanoseconds(context_->options.limits.ping_interval));
  ping_timer_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec) self->guarded([&] { self->ping(); });
  });
}

void Connection::ping() {
  if (phase_ != Phase::kBusy || answer_ != Answer::kStreaming || finishing_) return;
  const auto interval = std::chrono::nanoseconds(context_->options.limits.ping_interval);
  const auto now = std::chrono::steady_clock::now();
  if (now - last_stream_write_ >= interval) {
    last_stream_write_ = now;
    // A client that has not read the last bytes needs no ping.
    if (unsent_bytes() == 0) {
      stream(": ping\n\n");
      pinged_ = true;
    }
  }
  arm_ping();
}

}  // namespace kvasir
