// The exchange of a connection: runs the handler of its request, and work on the worker threads.
#include <atomic>
#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/patiently.h"
#include "server/access_log.h"
#include "server/connection.h"
#include "server/traces/request_spans.h"
#include "server/traces/span_exporter.h"

namespace kvasir {

// The connection that waits for a job owns it; the worker shares it only while it runs. So a job whose client
// disconnects before it begins is destroyed at once, together with its body.
struct Connection::Job {
  Job(BodyReservation reservation, std::string bytes, Work to_do)
      : held(std::move(reservation)), body(std::move(bytes)), work(std::move(to_do)) {}

  BodyReservation held;
  std::string body;
  Work work;
  std::atomic<bool> abandoned{false};
  Then then;  // written by the worker before it posts the job back; empty: the work threw
};

namespace {

constexpr int kClientGone = 499;

std::string name_of(const boost::asio::ip::tcp::endpoint& peer) {
  boost::asio::ip::address address = peer.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
  }
  return address.is_v6() ? fmt::format("[{}]:{}", address.to_string(), peer.port())
                         : fmt::format("{}:{}", address.to_string(), peer.port());
}

}  // namespace

void Connection::log_fault(std::string_view what, const std::exception& fault, std::string_view id,
                           std::string_view key) {
  try {
    log_line(LogLevel::kError, fmt::format("{}: {}", what, fault.what()), {{"request_id", id}, {"key", key}});
  } catch (const std::bad_alloc&) {
    return;  // a line for which there is no memory is lost
  }
}

void Connection::run_handler() {
  enter(Phase::kBusy);
  deadline_.cancel();
  if (auto e = refusal_if_not_ready()) return respond(error_response(*e));
  endpoint_->handler(*this);
}

std::optional<ApiError> Connection::refusal_if_not_ready() const {
  if (endpoint_->model != Endpoint::Model::kNeedsModel) return std::nullopt;
  std::optional<ApiError> refusal = context_->not_ready();
  if (refusal) context_->counters->requests_refused.fetch_add(1, std::memory_order_relaxed);
  return refusal;
}

void Connection::begin_work() {
  if (std::exchange(working_, true) || counted_) return;
  context_->request_started();
  counted_ = true;
}

void Connection::run_on_worker(Work work, bool takes_long) {
  KV_CHECK(!job_, "a request has two jobs at once");
  begin_work();
  job_ = std::make_shared<Job>(std::move(reserved_), std::move(request_.body), std::move(work));
  const auto kind = takes_long ? ServerContext::Work::kTakesLong
                    : job_->body.size() >= context_->options.limits.long_body_bytes
                        ? ServerContext::Work::kLongBody
                        : ServerContext::Work::kShort;
  const std::weak_ptr<Job> waiting = job_;
  context_->run_on_worker(kind, [waiting, context = context_, weak = weak_from_this(), id = info_.request_id,
                                 key = std::string(request_.caller.name())] {
    const std::shared_ptr<Job> job = waiting.lock();
    if (!job) return;
    try {
      job->then = std::exchange(job->work, nullptr)(std::move(job->body), job->abandoned);
    } catch (const std::exception& e) {
      log_fault("a request could not be prepared", e, id, key);
    }
    // Without this message the client would wait for ever.
    patiently([&] {
      context->post([weak, job] {
        const auto self = weak.lock();
        if (self) self->guarded([&] { self->on_work_done(*job); });
      });
    });
  });
}

void Connection::on_work_done(Job& job) {
  if (phase_ != Phase::kBusy || job_.get() != &job) return;
  const std::shared_ptr<Job> done = std::exchange(job_, nullptr);
  // The body is gone, though the worker may keep the job for another moment.
  done->held.reset();
  if (done->then) return done->then(*this);
  if (answer_ == Answer::kNone) return fail(500, "the request failed unexpectedly");
  stop_work(500);
  close();
}

void Connection::attach(std::shared_ptr<Activity> activity) {
  KV_CHECK(!activity_, "a request has two activities at once");
  begin_work();
  activity_ = std::move(activity);
}

void Connection::end_endless() {
  guarded([this] {
    if (const std::shared_ptr<Activity> activity = activity_) activity->on_server_drains();
  });
}

void Connection::abandon_work() {
  if (job_) job_->abandoned.store(true, std::memory_order_relaxed);
  job_.reset();
  if (auto activity = std::exchange(activity_, nullptr)) activity->abort();
}

void Connection::stop_work(int status) {
  abandon_work();
  key_lease_ = {};
  if (!std::exchange(working_, false) || answer_ == Answer::kComplete) return;
  context_->counters->count(status);
  record_.status = status;
  if (status != kClientGone) record_.end = RequestEnd::kFailed;
}

void Connection::end_exchange() {
  tell_end();
  if (std::exchange(counted_, false)) context_->request_ended();
  std::string().swap(request_.body);
  reserved_.reset();
}

// --- What is told of it ---

// REQUIRES: the headers were read, and the endpoint was looked for.
void Connection::begin_record() {
  TraceContext& trace = record_.trace;
  trace = read_trace_context(request_.headers);
  // The spans of probes would hide those of requests.
  const bool exported =
      context_->options.spans && endpoint_ != nullptr && endpoint_->model == Endpoint::Model::kNeedsModel;
  if (exported && !trace.on()) trace = new_trace_context();
  if (!trace.on()) return;
  record_.wants_times = exported && trace.sampled;
  // The flag says that this server records the span, too.
  TraceContext answered = trace;
  answered.sampled = record_.wants_times;
  info_.more_headers += "traceresponse: " + trace_header(answered) + "\r\n";
}

void Connection::tell_end() {
  // Without an id there was no request.
  if (info_.request_id.empty() || std::exchange(told_, true)) return;
  const ServerOptions& options = context_->options;
  const Nanos now = context_->clock.now();
  if (record_.begin == 0) record_.begin = now;
  if (record_.status == 0) {
    record_.status = kClientGone;
    context_->counters->count(kClientGone);
  }
  const bool whole = answer_ == Answer::kComplete && unsent_bytes() == 0;
  if (record_.end == RequestEnd::kComplete && !whole) {
    record_.end = closing_ ? RequestEnd::kStopped : RequestEnd::kClientGone;
  }
  if (record_.end == RequestEnd::kComplete && record_.status == 200)
    context_->counters->count_generation(record_.generation);
  try {
    const std::string peer = name_of(peer_);
    const EndedRequest ended = {record_,
                                now,
                                info_.request_id,
                                request_.caller.name(),
                                peer,
                                request_.method,
                                request_.target.substr(0, request_.target.find_first_of("?#")),
                                endpoint_ == nullptr ? std::string_view() : endpoint_->path};
    if (options.access_log) options.access_log->add(ended);
    if (record_.wants_times) options.spans->add(request_spans(ended, unix_time_ns()));
  } catch (const std::exception&) {
    // There is no memory for it, and the request has ended all the same.
    if (record_.wants_times) options.spans->count_dropped(1);
  }
}

}  // namespace kvasir
