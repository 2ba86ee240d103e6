// A backend that generates by script.
#include "server/fake_backend.h"

#include <algorithm>
#include <chrono>

namespace kvasir::test {

FakeBackend::FakeBackend(Script script, uint32_t max_model_len)
    : script_(std::move(script)), max_model_len_(max_model_len), thread_([this] { run(); }) {}

FakeBackend::~FakeBackend() {
  end_all(FinishReason::kAbort, "");
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<RequestId> FakeBackend::submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) {
  const std::lock_guard lock(mutex_);
  if (refusal_ && submitted_.size() >= refuse_after_) return *refusal_;
  submitted_.push_back(request);
  const uint64_t id = next_id_++;
  live_.emplace(id, Live{std::move(request), std::move(sink), 0, {}});
  wake_.notify_all();
  return static_cast<RequestId>(id);
}

Result<std::unique_ptr<QueuePlaces>> FakeBackend::reserve(std::span<const GenerationRequest> requests) {
  const std::lock_guard lock(mutex_);
  if (refusal_ && submitted_.size() + requests.size() > refuse_after_) return *refusal_;
  auto places = std::make_unique<QueuePlaces>([](uint64_t, uint64_t) {});
  places->got(requests.size(), 0);
  return places;
}

Result<RequestId> FakeBackend::submit_in(QueuePlaces& places, GenerationRequest request,
                                         std::shared_ptr<OutputSink> sink) {
  places.used(0);
  return submit(std::move(request), std::move(sink));
}

void FakeBackend::cancel(RequestId id, FinishReason reason) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(raw(id));
  const auto it = live_.find(raw(id));
  if (it != live_.end()) it->second.cancelled = reason;
  wake_.notify_all();
}

void FakeBackend::hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
  wake_.notify_all();
}

void FakeBackend::set_round_time(Nanos time) {
  const std::lock_guard lock(mutex_);
  round_time_ = time;
}

void FakeBackend::refuse(Status status, size_t after) {
  const std::lock_guard lock(mutex_);
  refusal_.reset();
  if (!status.ok()) refusal_ = std::move(status);
  refuse_after_ = after;
}

void FakeBackend::end_all(FinishReason reason, const std::string& error) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, live] : live_) {
    OutputEvent event;
    event.finish = reason;
    event.error = error;
    count_finish(reason);
    live.sink->on_output(std::move(event));
  }
  live_.clear();
}

std::vector<GenerationRequest> FakeBackend::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

std::vector<uint64_t> FakeBackend::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

uint64_t FakeBackend::tokens_emitted() const {
  const std::lock_guard lock(mutex_);
  return tokens_emitted_;
}

size_t FakeBackend::live() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}

bool FakeBackend::wait_for(const std::function<bool(const FakeBackend&)>& condition) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition(*this)) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool FakeBackend::advance(Live& live) {
  OutputEvent event;
  if (live.cancelled) {
    event.finish = live.cancelled;
  } else {
    const GenerationRequest& r = live.request;
    OutputToken token;
    token.id = script_(r, live.emitted);
    token.logprob = -0.5f;
    for (int32_t i = 0; i < r.sampling.logprobs; ++i) {
      token.top.push_back({token.id + i, -0.5f - static_cast<float>(i)});
    }
    if (live.emitted == 0 && r.pooling != Pooling::kNone) {
      event.embedding = {static_cast<float>(r.prompt.at(0)), static_cast<float>(r.prompt.size())};
    }
    ++live.emitted;
    ++tokens_emitted_;
    event.cached_prompt_tokens = static_cast<uint32_t>(r.prompt.size() / 2);
    if (std::find(r.stop_tokens.begin(), r.stop_tokens.end(), token.id) != r.stop_tokens.end()) {
      event.finish = FinishReason::kStop;
    } else if (live.emitted >= r.max_tokens) {
      event.finish = FinishReason::kLength;
    }
    event.tokens.push_back(std::move(token));
  }
  const bool ended = event.finish.has_value();
  if (ended) count_finish(*event.finish);
  live.sink->on_output(std::move(event));
  return ended;
}

void FakeBackend::run() {
  std::unique_lock lock(mutex_);
  const auto has_work = [this] {
    return stopping_ || std::any_of(live_.begin(), live_.end(), [this](const auto& entry) {
             return !held_ || entry.second.cancelled.has_value();
           });
  };
  for (;;) {
    wake_.wait(lock, has_work);
    if (stopping_) return;
    for (auto it = live_.begin(); it != live_.end();) {
      const bool runs = !held_ || it->second.cancelled.has_value();
      it = runs && advance(it->second) ? live_.erase(it) : std::next(it);
    }
    const Nanos pause = round_time_;
    lock.unlock();
    if (pause > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
    lock.lock();
  }
}

}  // namespace kvasir::test
