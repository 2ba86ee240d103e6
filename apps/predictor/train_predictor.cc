// Runs each request on the model for its hidden row, and for its answer if the trace has none. Then trains,
// and reports.
#include "apps/predictor/train_predictor.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <span>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/predictor/length_trace.h"
#include "apps/predictor/predictor_study.h"
#include "base/file.h"
#include "base/random.h"
#include "runtime/beliefs.h"
#include "runtime/model_service.h"
#include "server/prompt.h"

namespace kvasir {
namespace {

constexpr size_t kFewestRequests = 100;
constexpr uint32_t kAtOnce = 256;
constexpr uint32_t kNoLimit = 1'000'000;  // where nothing was cut
constexpr uint64_t kAnswerStream = uint64_t{1} << 40;

// Predicts nothing, and keeps the hidden rows. A request's output_tokens_hint is its number, from 1 on.
class RowKeeper final : public LengthPredictor {
 public:
  explicit RowKeeper(std::vector<LengthExample>& examples) : examples_(examples) {}
  LengthPrediction predict(const PromptFeatures& features) override {
    const size_t number = features.output_tokens_hint;
    if (number >= 1 && number <= examples_.size() && !features.hidden.empty()) {
      examples_[number - 1].hidden.assign(features.hidden.begin(), features.hidden.end());
    }
    return {};
  }
  bool reads_hidden() const override { return true; }
  void learn(const PromptFeatures&, const LengthPrediction&, uint32_t) override {}
  const std::vector<LengthClass>& classes() const override { return classes_; }

 private:
  std::vector<LengthExample>& examples_;
  std::vector<LengthClass> classes_;
};

struct Answer {
  uint32_t tokens = 0;
  FinishReason reason = FinishReason::kError;
  std::string error;
};

// Counts the requests that are under way, for the thread that submits.
class UnderWay {
 public:
  void enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return count_ < kAtOnce; });
    ++count_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --count_;
    changed_.notify_all();
  }
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t count_ = 0;
};

class AnswerSink final : public OutputSink {
 public:
  AnswerSink(UnderWay& under_way, Answer& answer) : under_way_(under_way), answer_(answer) {}
  void on_output(OutputEvent event) override {
    answer_.tokens += static_cast<uint32_t>(event.tokens.size());
    if (!event.finish) return;
    answer_.reason = *event.finish;
    answer_.error = std::move(event.error);
    under_way_.leave();
  }

 private:
  UnderWay& under_way_;
  Answer& answer_;
};

class Trainer {
 public:
  explicit Trainer(const TrainPredictorOptions& options) : options_(options) {}

  Status run() {
    KV_ASSIGN_OR_RETURN(trace_, load_length_trace(options_.trace));
    if (trace_.size() < kFewestRequests) {
      return error(ErrorCode::kInvalidArgument, "{}: {} requests say too little; give {} at the least",
                   options_.trace, trace_.size(), kFewestRequests);
    }
    examples_.resize(trace_.size());
    RowKeeper keeper(examples_);
    const Status answered = answer_all(keeper);
    // Also after a failure, with the answers until then.
    if (!options_.save_trace.empty()) {
      const std::string text = length_trace_text(trace_);
      KV_RETURN_IF_ERROR(replace_file(options_.save_trace, std::as_bytes(std::span(text))));
    }
    KV_RETURN_IF_ERROR(answered);
    uint32_t limit = 0;
    for (size_t i = 0; i < trace_.size(); ++i) {
      LengthExample& e = examples_[i];
      if (e.hidden.empty()) return failed(ErrorCode::kUnavailable, i, "the executor gave no hidden row");
      e.temperature = static_cast<float>(trace_[i].temperature);
      e.top_p = static_cast<float>(trace_[i].top_p);
      e.output_tokens = trace_[i].output_tokens;
      e.cut = trace_[i].cut;
      e.again = trace_[i].again;
      if (e.cut) limit = std::max(limit, e.output_tokens);
    }
    fmt::print("{}", predictor_report(examples_, limit > 0 ? limit : kNoLimit));
    return keep();
  }

 private:
  Status answer_all(RowKeeper& keeper) {
    RuntimeOptions runtime_options = options_.runtime;
    runtime_options.beliefs.used = true;
    runtime_options.beliefs.given = &keeper;
    runtime_options.max_num_queued_reqs = kAtOnce;
    runtime_options.max_num_queued_tokens = 0;
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, load_runtime(runtime_options));
    subject_ = learnt_of(HiddenPredictor(), runtime->tokenizer(), runtime->model_id());
    const std::unique_ptr<Backend> backend = make_engine_backend(runtime->engine());
    const ModelService service = make_service(*runtime, *backend);
    runtime->engine().start();
    const Status status = submit_all(service);
    under_way_.wait_for_all();
    runtime->engine().stop();
    const Status taken = take_answers();
    return status.ok() ? taken : status;
  }

  Status failed(ErrorCode code, size_t i, std::string_view why) const {
    return error(code, "{}: request {}: {}", options_.trace, i + 1, why);
  }

  // Prepares all requests first, so that a mistake in one is found before the first is answered.
  Status prepare_all(const ModelService& service) {
    for (size_t i = 0; i < trace_.size(); ++i) {
      KV_ASSIGN_OR_RETURN(GenerationRequest request, prepare(service, i, 0, options_.max_tokens));
      examples_[i].prompt = std::move(request.prompt);
    }
    return {};
  }

  Status submit_all(const ModelService& service) {
    KV_RETURN_IF_ERROR(prepare_all(service));
    const auto first_of_test = static_cast<size_t>(kTrainingShare * static_cast<double>(trace_.size()));
    answers_.resize(trace_.size() * (1 + options_.resample));
    for (size_t i = 0; i < trace_.size(); ++i) {
      const bool known = trace_[i].output_tokens > 0;
      KV_RETURN_IF_ERROR(submit(service, i, 0, known ? 1 : options_.max_tokens));
      const bool again =
          i >= first_of_test && i - first_of_test < options_.resampled && trace_[i].again.empty();
      for (uint32_t k = 0; again && k < options_.resample; ++k) {
        KV_RETURN_IF_ERROR(submit(service, i, 1 + k, options_.max_tokens));
      }
    }
    return {};
  }

  // For answer `which` to request i.
  Result<GenerationRequest> prepare(const ModelService& service, size_t i, uint32_t which,
                                    uint32_t max_tokens) const {
    const TracedRequest& traced = trace_[i];
    ApiRequest api;
    for (const auto& [role, content] : traced.messages) api.messages.push_back({role, content});
    if (traced.messages.empty()) api.prompts.emplace_back(traced.prompt);
    api.sampling.temperature = static_cast<float>(traced.temperature);
    api.sampling.top_p = static_cast<float>(traced.top_p);
    api.seed = random_bits(options_.seed, kAnswerStream + which, i);
    api.max_tokens = max_tokens;
    api.output_tokens_hint = which == 0 ? static_cast<uint32_t>(i + 1) : 0;
    auto outcome = prepare_request(service, std::move(api));
    if (const auto* e = std::get_if<ApiError>(&outcome)) {
      return failed(ErrorCode::kInvalidArgument, i, e->message);
    }
    return std::move(std::get<PreparedRequest>(outcome).generations.front());
  }

  Status submit(const ModelService& service, size_t i, uint32_t which, uint32_t max_tokens) {
    KV_ASSIGN_OR_RETURN(GenerationRequest request, prepare(service, i, which, max_tokens));
    under_way_.enter();
    const Result<RequestId> id = service.backend->submit(
        std::move(request), std::make_shared<AnswerSink>(under_way_, answer_of(i, which)));
    if (!id.ok()) under_way_.leave();
    return id.status();
  }

  Answer& answer_of(size_t i, uint32_t which) { return answers_[i * (1 + options_.resample) + which]; }

  // Takes the answers that ended by themselves or by their limit. The first other one is an error.
  Status take_answers() {
    Status status;
    const auto whole = [](const Answer& a) {
      return a.tokens > 0 && (a.reason == FinishReason::kStop || a.reason == FinishReason::kLength);
    };
    for (size_t i = 0; i < answers_.size() / (1 + options_.resample); ++i) {
      TracedRequest& r = trace_[i];
      const Answer& first = answer_of(i, 0);
      if (!whole(first)) {
        if (status.ok())
          status = failed(ErrorCode::kUnavailable, i, first.error.empty() ? "no answer" : first.error);
        continue;
      }
      if (r.output_tokens == 0) {
        r.output_tokens = first.tokens;
        r.cut = first.reason == FinishReason::kLength;
      }
      for (uint32_t k = 0; k < options_.resample; ++k) {
        if (whole(answer_of(i, 1 + k))) r.again.push_back(answer_of(i, 1 + k).tokens);
      }
    }
    return status;
  }

  // Trains on all requests, also those of the test.
  Status keep() const {
    if (options_.output.empty()) return {};
    HiddenPredictor predictor;
    train_in_two_steps(predictor, examples_);
    KV_RETURN_IF_ERROR(write_predictor(predictor, subject_, options_.output));
    fmt::print(
        "\nwritten to {}; `kvasir serve --length-predictor hidden --length-predictor-file {}` begins with "
        "it\n",
        options_.output, options_.output);
    return {};
  }

  const TrainPredictorOptions& options_;
  std::vector<TracedRequest> trace_;
  std::vector<LengthExample> examples_;
  std::vector<Answer> answers_;
  UnderWay under_way_;
  std::string subject_;
};

}  // namespace

void add_train_predictor_flags(CLI::App& app, TrainPredictorOptions& o) {
  app.add_option("--trace", o.trace,
                 "JSON lines of requests in the order of their arrival: {\"messages\": [...]} or "
                 "{\"prompt\": ...}, with \"temperature\", \"output_tokens\" and \"finish_reason\". A "
                 "request without output_tokens is answered first")
      ->type_name(kFileType)
      ->required();
  app.add_option("--output", o.output, "File for serve's --length-predictor-file (default: only the report)")
      ->type_name(kFileType);
  app.add_option("--save-trace", o.save_trace,
                 "File for the requests with the lengths of their answers (default: none)")
      ->type_name(kFileType);
  app.add_option("--max-tokens", o.max_tokens, "Most tokens of an answer that the trace lacks")
      ->capture_default_str()
      ->check(between(1, 100'000));
  app.add_option("--resample", o.resample,
                 "Further answers to each of some requests of the test, which show how much of a length no "
                 "predictor can know")
      ->capture_default_str()
      ->check(between(0, 100));
  app.add_option("--resampled", o.resampled, "How many requests of the test get further answers")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Seed of the answers")->capture_default_str();
  add_runtime_flags(app, o.runtime);
}

int run_train_predictor(const TrainPredictorOptions& options) {
  const Status status = Trainer(options).run();
  return status.ok() ? 0 : report_failure("train-predictor", status.message());
}

}  // namespace kvasir
