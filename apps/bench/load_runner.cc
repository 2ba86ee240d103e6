#include "apps/bench/load_runner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

class Runner {
 public:
  explicit Runner(const LoadPlan& plan) : plan_(plan), loop_(plan.target) {
    out_.records.resize(plan.prompts.size());
    for (size_t i = 0; i < plan.prompts.size(); ++i) {
      out_.records[i].arrival = plan.arrivals[i];
      out_.records[i].prompt_words = plan.prompts[i].words;
      out_.records[i].wanted_tokens = plan.prompts[i].max_tokens;
      out_.records[i].own = plan.prompts[i].own;
    }
  }

  Result<LoadOutcome> run() {
    KV_RETURN_IF_ERROR(loop_.resolve());
    out_.start = clock_.now();
    if (!out_.records.empty()) {
      loop_.on_interrupt([this] {
        out_.interrupted = true;
        loop_.stop();
      });
      if (plan_.progress_period > 0) {
        loop_.call_at(out_.start + plan_.progress_period, [this] { report_progress(); });
      }
      loop_.call_at(out_.start + plan_.arrivals.front(), [this] { arrive(); });
      if (plan_.drain_timeout.has_value()) {
        loop_.call_at(out_.start + plan_.arrivals.back() + *plan_.drain_timeout, [this] { give_up(); });
      }
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
    out_.records[arrived_].state = RequestRecord::State::kHeld;
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
  void ended(RequestRecord* record);
  void report_progress();
  // Every request has arrived, or arrives in this turn of the loop.
  void give_up() {
    for (; arrived_ < out_.records.size(); ++arrived_) {
      out_.records[arrived_].state = RequestRecord::State::kHeld;
    }
    out_.drained_out = true;
    loop_.stop();
  }

  const LoadPlan& plan_;
  MonotonicClock clock_;
  LoadOutcome out_;
  size_t arrived_ = 0;
  size_t started_ = 0;
  size_t ended_ = 0;
  int64_t in_flight_ = 0;
  int64_t failed_ = 0;
  int64_t chunks_ = 0;
  HttpLoop loop_;  // last: what it still holds at the end refers to the members above
};

class Runner::Follower final : public HttpHandler {
 public:
  Follower(Runner* runner, RequestRecord* record)
      : runner_(runner), record_(record), stream_(record, runner->plan_.keep_text) {}

  void on_head(int status, std::string_view content_type) override { stream_.on_head(status, content_type); }
  bool on_body(std::string_view bytes) override {
    const int64_t before = record_->content_chunks;
    const bool more = stream_.on_body(bytes, runner_->clock_.now());
    runner_->chunks_ += record_->content_chunks - before;
    return more;
  }
  void on_end(const Status& status) override {
    stream_.on_end(status);
    runner_->ended(record_);
  }

 private:
  Runner* const runner_;
  RequestRecord* const record_;
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

void Runner::ended(RequestRecord* record) {
  record->end = clock_.now();
  if (record->state == RequestRecord::State::kFailed) ++failed_;
  --in_flight_;
  ++ended_;
  if (ended_ == plan_.prompts.size()) {
    loop_.stop();
    return;
  }
  start_next();
}

void Runner::report_progress() {
  const Nanos now = clock_.now();
  plan_.progress({static_cast<int64_t>(plan_.prompts.size()), static_cast<int64_t>(ended_), in_flight_,
                  failed_, chunks_, now - out_.start});
  loop_.call_at(now + plan_.progress_period, [this] { report_progress(); });
}

}  // namespace

Result<LoadOutcome> run_load(const LoadPlan& plan) {
  KV_CHECK(plan.prompts.size() == plan.arrivals.size(), "prompts={} arrivals={}", plan.prompts.size(),
           plan.arrivals.size());
  KV_CHECK(plan.timeout > 0, "timeout={}", plan.timeout);
  KV_CHECK(plan.progress_period == 0 || plan.progress, "a period without what to call");
  return Runner(plan).run();
}

}  // namespace kvasir
