#include "bench/load_runner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace kvasir {
namespace {

constexpr Nanos kProgressPeriod = 10 * kNanosPerSecond;

class Runner {
 public:
  explicit Runner(const LoadPlan& plan) : plan_(plan), loop_(plan.target) {
    out_.records.resize(plan.prompts.size());
    for (size_t i = 0; i < plan.prompts.size(); ++i) out_.records[i].prompt_words = plan.prompts[i].words;
  }

  Result<LoadOutcome> run() {
    KV_RETURN_IF_ERROR(loop_.resolve());
    out_.start = clock_.now();
    if (!out_.records.empty()) {
      loop_.on_interrupt([this] {
        out_.interrupted = true;
        loop_.stop();
      });
      loop_.call_at(out_.start + kProgressPeriod, [this] { report_progress(); });
      loop_.call_at(out_.start + plan_.arrivals.front(), [this] { arrive(); });
      loop_.run();
    }
    out_.duration = clock_.now() - out_.start;
    return std::move(out_);
  }

 private:
  class Follower;

  // The next request has arrived. One request a turn, so that when many arrive at once each begins to connect
  // before the next one's body is built.
  void arrive() {
    ++arrived_;
    start_next();
    if (arrived_ == plan_.prompts.size()) return;
    loop_.call_at(out_.start + plan_.arrivals[arrived_], [this] { arrive(); });
  }

  // Starts the first request that has arrived and not started, if there is one and the bound lets it.
  void start_next() {
    if (started_ == arrived_) return;
    if (plan_.max_concurrency > 0 && in_flight_ >= plan_.max_concurrency) return;
    send(started_++);
  }

  void send(size_t index);
  void ended();
  void report_progress();

  const LoadPlan& plan_;
  MonotonicClock clock_;
  LoadOutcome out_;
  size_t arrived_ = 0;
  size_t started_ = 0;
  size_t ended_ = 0;
  int64_t in_flight_ = 0;
  HttpLoop loop_;  // last: what it still holds at the end refers to the members above
};

class Runner::Follower final : public HttpHandler {
 public:
  Follower(Runner* runner, RequestRecord* record)
      : runner_(runner), stream_(record, runner->plan_.keep_text) {}

  void on_head(int status, std::string_view content_type) override { stream_.on_head(status, content_type); }
  bool on_body(std::string_view bytes) override { return stream_.on_body(bytes, runner_->clock_.now()); }
  void on_end(const Status& status) override {
    stream_.on_end(status);
    runner_->ended();
  }

 private:
  Runner* const runner_;
  CompletionStream stream_;
};

void Runner::send(size_t index) {
  RequestRecord& record = out_.records[index];
  HttpRequest request;
  request.method = "POST";
  request.path = plan_.path;
  request.body = completion_body(plan_.request, plan_.prompts[index]);
  request.api_key = plan_.api_key;
  request.timeout = plan_.timeout;
  auto follower = std::make_shared<Follower>(this, &record);
  ++in_flight_;
  out_.max_concurrent = std::max(out_.max_concurrent, in_flight_);
  record.state = RequestRecord::State::kSent;
  record.start = clock_.now();
  loop_.send(std::move(request), std::move(follower));
}

void Runner::ended() {
  --in_flight_;
  ++ended_;
  if (ended_ == plan_.prompts.size()) {
    loop_.stop();
    return;
  }
  start_next();
}

void Runner::report_progress() {
  log_info("{} of {} requests have ended, {} are in flight", ended_, plan_.prompts.size(), in_flight_);
  loop_.call_at(clock_.now() + kProgressPeriod, [this] { report_progress(); });
}

}  // namespace

Result<LoadOutcome> run_load(const LoadPlan& plan) {
  KV_CHECK(plan.prompts.size() == plan.arrivals.size(), "prompts={} arrivals={}", plan.prompts.size(),
           plan.arrivals.size());
  KV_CHECK(plan.timeout > 0, "timeout={}", plan.timeout);
  return Runner(plan).run();
}

}  // namespace kvasir
