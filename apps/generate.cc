// Runs one request through the engine, as the server would, and prints its output as it comes.
#include "apps/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "base/clock.h"
#include "runtime/model_service.h"
#include "server/choice_stream.h"

namespace kvasir {
namespace {

// Hands the engine's events to the thread that prints.
class EventQueue final : public OutputSink {
 public:
  void on_output(OutputEvent event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_one();
  }
  OutputEvent wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !events_.empty(); });
    OutputEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OutputEvent> events_;
};

ApiRequest to_api_request(const GenerateOptions& options, const ApiRequest& defaults) {
  ApiRequest api = defaults;
  api.stream = true;  // printed as it comes
  if (options.chat && !options.system.empty()) api.messages.push_back({"system", options.system});
  if (options.chat) api.messages.push_back({"user", options.prompt});
  if (!options.chat) api.prompts.push_back(options.prompt);
  SamplingParams& sampling = api.sampling;
  sampling.temperature = options.temperature.value_or(sampling.temperature);
  sampling.top_p = options.top_p.value_or(sampling.top_p);
  sampling.top_k = options.top_k.value_or(sampling.top_k);
  sampling.logprobs = options.logprobs;
  api.seed = options.seed;
  api.max_tokens = options.max_tokens;
  api.max_tokens_field = "--max-tokens";
  api.stop = options.stop;
  api.ignore_eos = options.ignore_eos;
  // A prompt on the command line is the user's own, control tokens included; a message is text.
  api.parse_special = !options.chat;
  return api;
}

std::string shown(const Tokenizer& tokenizer, Token id) {
  std::string out;
  for (const char c : tokenizer.token_text(id)) out += c == '\n' || c == '\t' ? ' ' : c;
  return out;
}

void print_delta(const TextDelta& delta, const Tokenizer& tokenizer, bool logprobs) {
  if (!logprobs) {
    fmt::print("{}", delta.text);
  } else {
    for (const LogprobEntry& entry : delta.logprobs) {
      fmt::print("{:.6f}\t{}\t{}", entry.logprob.value_or(0), entry.id, shown(tokenizer, entry.id));
      for (const TokenLogprob& top : entry.top) {
        fmt::print("\t{:.6f} {} {}", top.logprob, top.token, shown(tokenizer, top.token));
      }
      fmt::print("\n");
    }
  }
  std::fflush(stdout);
}

Status generate(const GenerateOptions& options) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, load_runtime(options.runtime));
  const std::unique_ptr<Backend> backend = make_engine_backend(runtime->engine());
  const ModelService service = make_service(*runtime, *backend);
  auto outcome = prepare_request(service, to_api_request(options, service.defaults));
  if (const auto* e = std::get_if<ApiError>(&outcome)) {
    return Status(ErrorCode::kInvalidArgument, e->message);
  }
  GenerationRequest request = std::move(std::get<PreparedRequest>(outcome).generations.front());
  const size_t prompt_tokens = request.prompt.size();
  const bool logprobs = options.logprobs >= 0;
  KV_ASSIGN_OR_RETURN(ChoiceStream text, ChoiceStream::create(&runtime->tokenizer(), options.stop,
                                                              request.stop_tokens, logprobs));
  const auto queue = std::make_shared<EventQueue>();
  const MonotonicClock clock;
  const Nanos begin = clock.now();
  runtime->engine().start();
  KV_ASSIGN_OR_RETURN(const RequestId id, backend->submit(std::move(request), queue));
  OutputEvent event;
  do {
    event = queue->wait();
    TextDelta delta;
    for (const OutputToken& token : event.tokens) KV_RETURN_IF_ERROR(text.push(token, delta));
    if (text.stopped_by_string()) backend->cancel(id, FinishReason::kStop);
    if (event.finish) text.finish(delta);
    print_delta(delta, runtime->tokenizer(), logprobs);
  } while (!event.finish);
  if (!logprobs) fmt::print("\n");
  const double seconds = to_seconds(clock.now() - begin);
  fmt::print(stderr, "[{} prompt tokens, {} generated, {:.2f} s, {:.1f} generated tokens per second]\n",
             prompt_tokens, text.completion_tokens(), seconds, text.completion_tokens() / seconds);
  runtime->engine().stop();
  if (event.finish == FinishReason::kError) return Status(ErrorCode::kUnavailable, event.error);
  return {};
}

}  // namespace

void add_generate_flags(CLI::App& app, GenerateOptions& o) {
  app.add_option("-p,--prompt", o.prompt,
                 "The text to continue, in which control tokens such as <|im_end|> are recognised; with "
                 "--chat the user's message, in which they are ordinary text")
      ->required();
  app.add_flag("--chat", o.chat, "Put the prompt into the model's chat template (default: off)");
  app.add_option("--system", o.system, "System message, with --chat (default: none)");
  app.add_option("--max-tokens", o.max_tokens, "Most tokens to generate")->capture_default_str();
  app.add_option("--temperature", o.temperature,
                 "0: always the most likely token (default, as of the next two: the model's, else 0.7 with a "
                 "min_p of 0.05)")
      ->check(between(0.0, 2.0));
  app.add_option("--top-p", o.top_p, "Draw from the most likely tokens that together have this probability")
      ->check(between(1e-6, 1.0));
  app.add_option("--top-k", o.top_k, "Draw from this many of the most likely tokens; 0: all");
  app.add_option("--seed", o.seed, "Seed of the random choices (default: another one each time)");
  app.add_option("--stop", o.stop, "Text that ends the output; may be given again")->allow_extra_args(false);
  app.add_flag("--ignore-eos", o.ignore_eos, "Continue after the model's end token (default: off)");
  app.add_option(
         "--logprobs", o.logprobs,
         "Print, in place of the text, a line per token: log-probability, id, token, and this many of the "
         "most likely ones (default: off)")
      ->check(between(0, 20));
  add_runtime_flags(app, o.runtime);
}

int run_generate(const GenerateOptions& options) {
  const Status status = generate(options);
  return status.ok() ? 0 : report_failure("generate", status.message());
}

}  // namespace kvasir
