#include "server/embedding_job.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/base64.h"
#include "base/patiently.h"
#include "server/json_fields.h"

namespace kvasir {
std::string embedding_json(std::vector<float> vector, bool base64) {
  double squares = 0;
  for (const float v : vector) squares += double{v} * double{v};
  if (!std::isfinite(squares)) return {};
  const double length = squares > 0 ? std::sqrt(squares) : 1;
  for (float& v : vector) v = static_cast<float>(double{v} / length);
  static_assert(std::endian::native == std::endian::little);
  const auto* bytes = reinterpret_cast<const char*>(vector.data());
  if (base64) return '"' + to_base64({bytes, vector.size() * sizeof(float)}) + '"';
  return fmt::format("[{}]", fmt::join(vector, ","));
}

// Used on the engine's thread; posts every event to the I/O thread.
class EmbeddingJob::Sink final : public OutputSink {
 public:
  Sink(std::weak_ptr<EmbeddingJob> job, size_t input, PostToIo post)
      : job_(std::move(job)), input_(input), post_(std::move(post)) {}

  void on_output(OutputEvent event) override {
    const auto kept = patiently([&] { return std::make_shared<OutputEvent>(std::move(event)); });
    patiently([&] {
      post_([job = job_, input = input_, kept] {
        if (auto alive = job.lock()) alive->receive(input, std::move(*kept));
      });
    });
  }

 private:
  const std::weak_ptr<EmbeddingJob> job_;
  const size_t input_;
  const PostToIo post_;
};

EmbeddingJob::EmbeddingJob(const ModelService& service, PreparedEmbeddings request, PostToIo post,
                           ResponseChannel* channel, KeyLease lease)
    : service_(service),
      request_(std::move(request)),
      post_(std::move(post)),
      channel_(channel),
      inputs_(request_.inputs.size()),
      lease_(std::move(lease)) {
  for (const GenerationRequest& input : request_.inputs) prompt_tokens_ += input.prompt.size();
}

void EmbeddingJob::start() {
  GenerationRecord& record = channel_->record().generation;
  record.operation = "embeddings";
  record.model = request_.model;
  record.choices = inputs_.size();
  record.prompt_tokens = prompt_tokens_;
  submit_more();
}

void EmbeddingJob::submit_more() {
  for (; next_ < inputs_.size() && running_ < kAtOnce; ++next_) {
    channel_->record().add_timeline(request_.inputs[next_], next_);
    // A copy, since what is refused may be submitted again.
    Result<RequestId> id = service_.backend->submit(request_.inputs[next_],
                                                    std::make_shared<Sink>(weak_from_this(), next_, post_));
    // A full queue: the next one has its turn when one of ours has ended.
    const bool over_share = !id.ok() && id.status().code() == ErrorCode::kOverShare;
    const bool full = !id.ok() && id.status().code() == ErrorCode::kExhausted;
    if ((full || over_share) && running_ > 0) return;
    if (over_share) lease_.over_share();
    if (!id.ok()) return fail(api_error(id.status()));
    lease_.prompt(request_.inputs[next_].prompt.size(), MonotonicClock().now());
    request_.inputs[next_] = {};
    inputs_[next_].state = State::kRuns;
    inputs_[next_].id = *id;
    ++running_;
  }
}

// Called from the queue of the I/O thread, where an exception could not be traced to its exchange.
void EmbeddingJob::receive(size_t index, OutputEvent event) {
  ResponseChannel* channel = channel_;
  try {
    on_event(index, event);
  } catch (const std::exception& e) {
    if (channel != nullptr) channel->on_failure(e);
    abort();
  }
}

void EmbeddingJob::on_event(size_t index, OutputEvent& event) {
  Input& input = inputs_[index];
  if (channel_ == nullptr || input.state != State::kRuns) return;
  if (!event.embedding.empty()) {
    input.embedding = embedding_json(std::move(event.embedding), request_.base64);
  }
  if (!event.finish) return;
  input.state = State::kDone;
  --running_;
  if (const auto e = failure_of(event)) return fail(*e);
  if (input.embedding.empty()) {
    ApiError e;
    e.status = 500;
    e.message = "the model gave no finite embedding of this input";
    return fail(e);
  }
  submit_more();
  if (channel_ != nullptr && running_ == 0 && next_ == inputs_.size()) answer();
}

void EmbeddingJob::fail(const ApiError& error) {
  ResponseChannel* channel = channel_;
  abort();
  channel->respond(error_response(error));
}

void EmbeddingJob::answer() {
  std::string list;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    fmt::format_to(std::back_inserter(list), R"({}{{"object":"embedding","index":{},"embedding":{}}})",
                   i == 0 ? "" : ",", i, std::exchange(inputs_[i].embedding, {}));
  }
  ResponseChannel* channel = channel_;
  abort();
  channel->respond(json_response(fmt::format(
      R"({{"object":"list","data":[{}],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})", list,
      dump_json(request_.model), prompt_tokens_, prompt_tokens_)));
}

void EmbeddingJob::abort() {
  if (channel_ == nullptr) return;
  channel_ = nullptr;
  lease_ = {};
  for (const Input& input : inputs_) {
    if (input.state == State::kRuns) service_.backend->cancel(input.id, FinishReason::kAbort);
  }
}

}  // namespace kvasir
