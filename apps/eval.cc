#include "apps/eval.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "base/clock.h"
#include "base/random.h"
#include "runtime/device_limits.h"

namespace kvasir {
namespace {

// Waits for one request and remembers when its tokens came.
class Collector final : public OutputSink {
 public:
  void on_output(OutputEvent event) override {
    const Nanos now = clock_.now();
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < event.tokens.size(); ++i) times_.push_back(now);
    if (event.finish) {
      done_ = true;
      changed_.notify_all();
    }
  }
  std::vector<Nanos> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    return times_;
  }

 private:
  MonotonicClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Nanos> times_;
  bool done_ = false;
};

// The logits of every position of one piece of text, in order: [tokens][vocab].
struct Logits {
  std::vector<std::vector<float>> rows;
};

Result<std::vector<Nanos>> run_request(Runtime& runtime, std::vector<Token> prompt, uint32_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  auto collector = std::make_shared<Collector>();
  KV_RETURN_IF_ERROR(runtime.engine().submit(std::move(request), collector).status());
  return collector->wait();
}

// Sums over positions.
struct Agreement {
  uint64_t positions = 0;
  uint64_t same_top1 = 0;
  double kl = 0;
  double worst_kl = 0;
  double reference_nll = 0;  // of the text's next tokens
  double candidate_nll = 0;

  void add(const std::vector<float>& reference, const std::vector<float>& candidate, Token next) {
    auto log_sum = [](const std::vector<float>& x, float max) {
      double sum = 0;
      for (float v : x) sum += std::exp(static_cast<double>(v) - max);
      return max + std::log(sum);
    };
    const auto best_r = std::max_element(reference.begin(), reference.end());
    const auto best_c = std::max_element(candidate.begin(), candidate.end());
    const double norm_r = log_sum(reference, *best_r), norm_c = log_sum(candidate, *best_c);
    double divergence = 0;
    for (size_t i = 0; i < reference.size(); ++i) {
      const double p = reference[i] - norm_r;
      divergence += std::exp(p) * (p - (candidate[i] - norm_c));
    }
    ++positions;
    same_top1 += best_r - reference.begin() == best_c - candidate.begin();
    kl += divergence;
    worst_kl = std::max(worst_kl, divergence);
    reference_nll += norm_r - reference[static_cast<size_t>(next)];
    candidate_nll += norm_c - candidate[static_cast<size_t>(next)];
  }
};

RuntimeOptions with_tap(RuntimeOptions options, Logits& logits) {
  options.enable_prefix_caching = false;  // so that every position is computed
  options.tap_all_rows = true;
  options.tap = [&logits](SeqId, uint32_t position, std::span<const float> row) {
    logits.rows.resize(std::max<size_t>(logits.rows.size(), position + 1));
    logits.rows[position].assign(row.begin(), row.end());
  };
  return options;
}

Status compare_texts(const EvalOptions& options) {
  Logits reference_logits, candidate_logits;
  RuntimeOptions f32 = options.runtime;
  f32.activation_type = "f32";
  f32.kv_cache_dtype = "f32";
  KV_ASSIGN_OR_RETURN(auto reference, load_runtime(with_tap(f32, reference_logits)));
  KV_ASSIGN_OR_RETURN(auto candidate, load_runtime(with_tap(options.runtime, candidate_logits)));
  reference->engine().start();
  candidate->engine().start();
  Agreement total;
  for (const std::string& path : options.texts) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in || text.empty()) return error(ErrorCode::kIo, "{}: cannot be read, or is empty", path);
    const std::vector<Token> tokens = reference->tokenizer().encode(text, false);
    Agreement part;
    for (size_t begin = 0; begin + 1 < tokens.size(); begin += options.chunk_tokens) {
      const size_t end = std::min<size_t>(tokens.size(), begin + options.chunk_tokens);
      const std::vector<Token> piece(tokens.begin() + static_cast<ptrdiff_t>(begin),
                                     tokens.begin() + static_cast<ptrdiff_t>(end));
      KV_RETURN_IF_ERROR(run_request(*reference, piece, 1).status());
      KV_RETURN_IF_ERROR(run_request(*candidate, piece, 1).status());
      for (size_t i = 0; i + 1 < piece.size(); ++i) {
        part.add(reference_logits.rows[i], candidate_logits.rows[i], piece[i + 1]);
        total.add(reference_logits.rows[i], candidate_logits.rows[i], piece[i + 1]);
      }
    }
    fmt::print("{}: {} positions, top-1 agreement {:.2f} %\n", path, part.positions,
               100.0 * static_cast<double>(part.same_top1) / static_cast<double>(part.positions));
  }
  const auto n = static_cast<double>(total.positions);
  fmt::print(
      "positions={} top1_agreement={:.4f} mean_kl={:.2e} max_kl={:.2e} perplexity_f32={:.3f} "
      "perplexity={:.3f}\n",
      total.positions, static_cast<double>(total.same_top1) / n, total.kl / n, total.worst_kl,
      std::exp(total.reference_nll / n), std::exp(total.candidate_nll / n));
  return {};
}

Status measure_speed(const EvalOptions& options) {
  RuntimeOptions alone = options.runtime;
  alone.enable_prefix_caching = false;
  KV_ASSIGN_OR_RETURN(auto runtime, load_runtime(alone));
  runtime->engine().start();
  const MonotonicClock clock;
  Random random(1);
  auto prompt = [&](uint32_t tokens) {
    std::vector<Token> out(tokens);
    for (Token& t : out) {
      t = static_cast<Token>(random.below(static_cast<uint64_t>(runtime->tokenizer().vocab_size())));
    }
    return out;
  };
  std::vector<double> prefill, decode;
  for (int i = 0; i <= options.repetitions; ++i) {
    const Nanos start = clock.now();
    KV_ASSIGN_OR_RETURN(auto first, run_request(*runtime, prompt(options.prefill_tokens), 1));
    KV_ASSIGN_OR_RETURN(auto times,
                        run_request(*runtime, prompt(options.context_tokens), options.decode_tokens + 1));
    if (i == 0) continue;  // the first touches the memory
    prefill.push_back(options.prefill_tokens / to_seconds(first.back() - start));
    decode.push_back(static_cast<double>(times.size() - 1) / to_seconds(times.back() - times.front()));
  }
  auto median = [](std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
  };
  fmt::print("prefill_tok_s={:.1f} decode_tok_s={:.1f}\n", median(prefill), median(decode));
  return {};
}

}  // namespace

void add_eval_flags(CLI::App& app, EvalOptions& options) {
  RuntimeOptions& r = options.runtime;
  app.add_option("model,-m,--model", r.model_path, "A GGUF file, or a folder of Hugging Face")
      ->type_name(kPathType)
      ->required();
  app.add_option("--text", options.texts,
                 "Text files on which the configuration is compared with f32 arithmetic")
      ->type_name(kFileType);
  app.add_option("--chunk-tokens", options.chunk_tokens, "Tokens of a text that run together (default: 512)")
      ->check(between(1, 1'000'000'000));
  add_device_flags(app, r);
  app.add_option("--kv-cache-dtype", r.kv_cache_dtype, "How keys and values are stored (default: bf16)")
      ->check(suggests({"bf16", "f32", "q8_0"}));
  app.add_option("--activation-type", r.activation_type,
                 "auto (int8 for quantised weights, bf16 for BF16 ones) or f32 (default: auto)")
      ->check(suggests({"auto", "f32"}));
  app.add_option(
      "-t,--threads", r.threads,
      "Compute threads (default: one per core, except that with more than two cores one is left out)");
  add_pinning_flag(app, r.pinning);
  app.add_option("--max-num-batched-tokens", r.max_num_batched_tokens,
                 "Most tokens of one step (default: 512)");
  app.add_flag("--speed", options.speed,
               "Measure the prefill and decode of one request alone, in tokens per second");
  app.add_option("--prefill-tokens", options.prefill_tokens, "Prompt length for --speed (default: 512)")
      ->check(between(1, 1'000'000'000));
  app.add_option("--decode-tokens", options.decode_tokens, "Tokens decoded for --speed (default: 128)")
      ->check(between(1, 1'000'000'000));
  app.add_option("--context-tokens", options.context_tokens,
                 "Length of the random prompt before the decoded tokens of --speed; its own time does not "
                 "count (default: 16)")
      ->check(between(1, 1'000'000'000));
  app.add_option("--repetitions", options.repetitions,
                 "Runs for --speed, of which the median is printed (default: 3)")
      ->check(between(1, 1'000'000'000));
  r.kv_cache_memory_bytes = 512 * 1024 * 1024;
}

int run_eval(const EvalOptions& options) {
  Status status;
  if (options.texts.empty() && !options.speed) {
    status = error(ErrorCode::kInvalidArgument, "nothing to do: give --text FILE, --speed, or both");
  }
  // Before the speed is measured, which takes long.
  if (status.ok() && !options.texts.empty()) {
    Logits unused;
    status = check_device(with_tap(options.runtime, unused));
  }
  if (status.ok() && options.speed) status = measure_speed(options);
  if (status.ok() && !options.texts.empty()) status = compare_texts(options);
  return status.ok() ? 0 : report_failure("eval", status.message());
}

}  // namespace kvasir
