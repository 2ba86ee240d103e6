// The exchange of a connection: runs the handler of its request, and work on the worker threads.
#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/connection.h"

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

// Posts to the I/O thread. Without this message the client would wait for ever, so it is tried again while
// there is no memory for it.
template <typename F>
void post_back(const ServerContext& context, const F& message) {
  constexpr int kTries = 1000;
  constexpr auto kPause = std::chrono::milliseconds(10);
  for (int i = 0; i < kTries; ++i) {
    try {
      return context.post(message);
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace

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
  context_->run_on_worker(kind, [waiting, context = context_, weak = weak_from_this()] {
    const std::shared_ptr<Job> job = waiting.lock();
    if (!job) return;
    try {
      job->then = std::exchange(job->work, nullptr)(std::move(job->body), job->abandoned);
    } catch (const std::exception& e) {
      log_error("a request could not be prepared: {}", e.what());
    }
    post_back(*context, [weak, job] {
      const auto self = weak.lock();
      if (self) self->guarded([&] { self->on_work_done(*job); });
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

void Connection::abandon_work() {
  if (job_) job_->abandoned.store(true, std::memory_order_relaxed);
  job_.reset();
  if (auto activity = std::exchange(activity_, nullptr)) activity->abort();
}

void Connection::stop_work(int status) {
  abandon_work();
  if (std::exchange(working_, false) && answer_ != Answer::kComplete) context_->counters->count(status);
}

void Connection::end_exchange() {
  if (std::exchange(counted_, false)) context_->request_ended();
  std::string().swap(request_.body);
  reserved_.reset();
}

}  // namespace kvasir
