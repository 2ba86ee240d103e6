#include "bench/dataset.h"

#include <numeric>
#include <utility>

#include "base/random.h"
#include "bench/arrivals.h"
#include "bench/sharegpt_file.h"

namespace kvasir {
namespace {

constexpr int64_t kDefaultPrompts = 1000;
constexpr int64_t kFirstWarmup = int64_t{1} << 32;  // random prompts from here on are never measured
constexpr int64_t kMaxPromptWords = 400'000'000;    // of all prompts together: about 2 GB of text
constexpr uint64_t kWordStream = (uint64_t{1} << 42);
constexpr uint64_t kShuffleStream = (uint64_t{1} << 42) + 1;

// A permutation of 0 to count - 1 that depends on the seed alone.
std::vector<size_t> shuffled(size_t count, uint64_t seed) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = count; i > 1; --i) {
    std::swap(order[i - 1], order[random_bits(seed, kShuffleStream, i) % i]);
  }
  return order;
}

// The words of the first rate are those that random_prompts draws from the seed itself.
uint64_t word_key(const RunKey& run) {
  return run.point == 0 ? run.seed : random_bits(run.seed, kWordStream, static_cast<uint64_t>(run.point));
}

}  // namespace

Result<Dataset> Dataset::open(const BenchOptions& options) {
  Dataset dataset(options);
  KV_RETURN_IF_ERROR(dataset.read_file());
  const size_t in_file = dataset.texts_.size() + dataset.trace_.size();
  dataset.num_prompts_ = options.num_prompts;
  if (options.num_prompts == 0) {
    const bool whole = options.dataset_name == "custom" || options.dataset_name == "trace";
    dataset.num_prompts_ = whole ? static_cast<int64_t>(in_file) : kDefaultPrompts;
  }
  if (!dataset.trace_.empty() && dataset.num_prompts_ > static_cast<int64_t>(in_file)) {
    return error(ErrorCode::kInvalidArgument, "--num-prompts {}: the trace has {} requests",
                 dataset.num_prompts_, in_file);
  }
  KV_RETURN_IF_ERROR(dataset.check_size());
  return dataset;
}

Status Dataset::read_file() {
  const BenchOptions& o = options_;
  if (o.dataset_path.empty()) return Status();
  if (o.dataset_name == "trace") {
    KV_ASSIGN_OR_RETURN(trace_, load_trace(o.dataset_path));
  } else if (o.dataset_name == "sharegpt") {
    KV_ASSIGN_OR_RETURN(texts_, load_sharegpt(o.dataset_path));
  } else {
    KV_ASSIGN_OR_RETURN(texts_, load_custom_prompts(o.dataset_path, o.custom_output_len));
  }
  return Status();
}

Status Dataset::check_size() const {
  if (has_texts()) return Status();
  int64_t words = 0;
  for (int64_t i = 0; i < num_prompts_ && words <= kMaxPromptWords; ++i) {
    words +=
        options_.dataset_name == "random" ? options_.random_input_len : lengths_of(options_.seed, i).prompt;
  }
  if (words <= kMaxPromptWords) return Status();
  return error(ErrorCode::kInvalidArgument,
               "--num-prompts {}: the prompts together are above {} words; take fewer or shorter ones",
               num_prompts_, kMaxPromptWords);
}

Lengths Dataset::lengths_of(uint64_t seed, int64_t number) const {
  const Lengths l = trace_.empty() ? sharegpt_lengths(seed, number)
                                   : trace_[static_cast<size_t>(number) % trace_.size()].lengths;
  return {scale_length(l.prompt, options_.length_scale), scale_length(l.output, options_.length_scale)};
}

std::vector<Prompt> Dataset::prompts(const RunKey& run) const {
  const BenchOptions& o = options_;
  if (o.dataset_name == "random") {
    return random_prompts(
        {o.random_input_len, o.random_output_len, o.random_range_ratio, run.seed, word_key(run)}, 0,
        num_prompts_);
  }
  std::vector<Prompt> prompts;
  prompts.reserve(static_cast<size_t>(num_prompts_));
  std::vector<size_t> order;
  if (o.dataset_name == "sharegpt" && has_texts()) order = shuffled(texts_.size(), run.seed);
  for (int64_t i = 0; i < num_prompts_; ++i) {
    if (has_texts()) {
      const size_t line = static_cast<size_t>(i) % texts_.size();
      prompts.push_back(texts_[order.empty() ? line : order[line]]);
      continue;
    }
    const Lengths l = lengths_of(run.seed, i);
    prompts.push_back({random_words(word_key(run), static_cast<uint64_t>(i), l.prompt), l.prompt, l.output});
  }
  return prompts;
}

std::vector<Nanos> Dataset::arrivals(const RunKey& run) const {
  if (trace_.empty()) return draw_arrivals(num_prompts_, run.rate, options_.burstiness, run.seed);
  std::vector<double> seconds;
  for (int64_t i = 0; i < num_prompts_; ++i) seconds.push_back(trace_[static_cast<size_t>(i)].arrival_s);
  return stretch_arrivals(seconds, run.rate);
}

std::vector<Prompt> Dataset::warmups() const {
  const BenchOptions& o = options_;
  if (o.dataset_name == "random") {
    return random_prompts({o.random_input_len, o.random_output_len, o.random_range_ratio, o.seed, o.seed},
                          kFirstWarmup, o.num_warmups);
  }
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < o.num_warmups; ++i) {
    if (has_texts()) {
      prompts.push_back(texts_[static_cast<size_t>(i) % texts_.size()]);
      continue;
    }
    const int64_t number = kFirstWarmup + i;
    const Lengths l = lengths_of(o.seed, number);
    prompts.push_back({random_words(o.seed, static_cast<uint64_t>(number), l.prompt), l.prompt, l.output});
  }
  return prompts;
}

}  // namespace kvasir
