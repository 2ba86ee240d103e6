// From a whole body to a generation, by way of a worker.
#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "server/connection.h"
#include "server/endpoints.h"
#include "server/request_parser.h"

namespace kvasir {

// Owned by the connection that waits for it, and by a worker only while it runs: a job whose client leaves
// while it waits is gone at once, its body with it, and the queue keeps an empty place.
struct Connection::Job {
  explicit Job(BodyReservation reservation) : held(std::move(reservation)) {}

  BodyReservation held;
  std::string body;
  std::atomic<bool> abandoned{false};
  std::optional<Outcome> outcome;  // the worker's until it is handed back; nothing: it failed unexpectedly
};

namespace {

ApiError priority_not_read() {
  ApiError e = bad_field("priority",
                         "'priority' is not read by this server's scheduling policy; leave it out, or serve "
                         "with --scheduling-policy priority");
  e.code = "unsupported_parameter";
  return e;
}

// On a worker's thread: of the context, only what never changes.
std::variant<PreparedRequest, ApiError> prepare(const ServerContext& context, const ModelService& service,
                                                ApiKind kind, std::string body, const Slo& header_slo,
                                                const std::atomic<bool>& abandoned) {
  auto parsed = parse_request(kind, body);
  body = {};
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  auto& request = std::get<ApiRequest>(parsed);
  if (auto e = unknown_model(context, request.model)) return *std::move(e);
  if (request.priority != 0 && !context.options.reads_priority) return priority_not_read();
  request.slo = context.options.slo.resolve(request.slo, header_slo);
  return prepare_request(service, std::move(request), &abandoned);
}

// Without this message its client would wait for ever, so where memory is short it is tried again.
template <typename F>
void hand_back(const ServerContext& context, const F& message) {
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

void Connection::dispatch() {
  phase_ = Phase::kBusy;
  deadline_.cancel();
  if (end_of_input_) return close();
  if (auto e = not_ready(*context_)) {
    context_->counters->requests_refused.fetch_add(1, std::memory_order_relaxed);
    return respond(error_response(*e));
  }
  generate();
}

void Connection::generate() {
  generating_ = true;
  context_->request_started();
  counted_ = true;
  job_ = std::make_shared<Job>(std::move(body_));
  job_->body = std::move(parser_->get().body());
  const ApiKind kind = route_.endpoint == Endpoint::kChat ? ApiKind::kChat : ApiKind::kCompletion;
  const uint64_t bytes = job_->body.size();
  const std::weak_ptr<Job> waiting = job_;
  context_->run_on_worker(bytes, [waiting, kind, slo = header_slo_, context = context_,
                                  service = context_->service, weak = weak_from_this()] {
    const std::shared_ptr<Job> job = waiting.lock();
    if (!job) return;
    try {
      job->outcome.emplace(prepare(*context, *service, kind, std::move(job->body), slo, job->abandoned));
    } catch (const std::exception& e) {
      log_error("a request could not be prepared: {}", e.what());
    }
    hand_back(*context, [weak, job] {
      const auto self = weak.lock();
      if (self) self->guarded([&] { self->on_prepared(*job); });
    });
  });
}

void Connection::on_prepared(Job& job) {
  if (phase_ != Phase::kBusy || job_.get() != &job) return;
  const std::shared_ptr<Job> done = std::exchange(job_, nullptr);
  // The worker is done with the body, but may take a moment to let go of the job.
  done->held.reset();
  if (!done->outcome) return fail(500, "the request failed unexpectedly");
  if (auto* e = std::get_if<ApiError>(&*done->outcome)) return respond(error_response(*e));
  auto& prepared = std::get<PreparedRequest>(*done->outcome);
  std::string model = prepared.api.model.empty() ? context_->options.model_names.front() : prepared.api.model;
  generation_ = std::make_shared<Generation>(*context_->service, std::move(prepared), std::move(model),
                                             context_->post, context_->options.limits.stream, this);
  // Kept alive here: it may end inside.
  const std::shared_ptr<Generation> generation = generation_;
  generation->start();
}

void Connection::drop_generation() {
  if (job_) job_->abandoned.store(true, std::memory_order_relaxed);
  job_.reset();
  if (auto generation = std::exchange(generation_, nullptr)) generation->abort();
  if (!generating_) return;
  generating_ = false;
  if (answer_ != Answer::kComplete) context_->counters->count(499);
}

// The exchange is over: its answer is with the client's machine, or the connection is closed.
void Connection::end_exchange() {
  if (std::exchange(counted_, false)) context_->request_ended();
  if (parser_) std::string().swap(parser_->get().body());
  body_.reset();
}

}  // namespace kvasir
