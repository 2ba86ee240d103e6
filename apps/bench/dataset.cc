#include "apps/bench/dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "apps/bench/arrivals.h"
#include "apps/bench/config.h"
#include "apps/bench/sharegpt_file.h"
#include "base/random.h"

namespace kvasir {
namespace {

constexpr int64_t kDefaultPrompts = 1000;
constexpr int64_t kFirstWarmup = int64_t{1} << 32;  // random prompts from here on are never measured
constexpr int64_t kMaxPromptWords = 400'000'000;    // of all prompts together: about 2 GB of text
constexpr uint64_t kWordStream = (uint64_t{1} << 42);
constexpr uint64_t kShuffleStream = (uint64_t{1} << 42) + 1;
constexpr uint64_t kPrefixStream = (uint64_t{1} << 42) + 2;
constexpr uint64_t kFirstPrefix = uint64_t{1} << 40;  // streams of words from here on are shared prefixes

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

Prompt random_prompt(const RequestSpec& spec, uint64_t key, int64_t number) {
  const Lengths& lengths = spec.lengths;
  std::string text;
  if (spec.prefix_len > 0) text = random_words(key, kFirstPrefix + spec.prefix, spec.prefix_len) + ' ';
  text += random_words(key, static_cast<uint64_t>(number), lengths.prompt - spec.prefix_len);
  return {std::move(text), lengths.prompt, lengths.output, {}};
}

}  // namespace

Result<Dataset> Dataset::open(const BenchOptions& options, Use use) {
  Dataset dataset(options);
  KV_RETURN_IF_ERROR(dataset.read_file());
  KV_RETURN_IF_ERROR(dataset.read_slos());
  dataset.num_prompts_ = options.num_prompts;
  if (options.num_prompts == 0) {
    const bool whole = options.dataset_name == "custom" || options.dataset_name == "trace";
    dataset.num_prompts_ = whole ? static_cast<int64_t>(dataset.in_file()) : kDefaultPrompts;
  }
  if (dataset.trace_.has_arrivals && dataset.num_prompts_ > static_cast<int64_t>(dataset.in_file())) {
    return error(ErrorCode::kInvalidArgument, "--num-prompts {}: the trace has {} requests",
                 dataset.num_prompts_, dataset.in_file());
  }
  if (use == Use::kTexts) KV_RETURN_IF_ERROR(dataset.check_size());
  return dataset;
}

Status Dataset::read_file() {
  const BenchOptions& o = options_;
  if (o.dataset_path.empty()) {
    if (o.dataset_name == "random") return Status();
    KV_ASSIGN_OR_RETURN(workload_, find_workload(o.dataset_name));
  } else if (o.dataset_name == "trace") {
    KV_ASSIGN_OR_RETURN(trace_, load_trace(o.dataset_path));
    if (!trace_.has_arrivals && o.request_rate.empty()) {
      return error(ErrorCode::kInvalidArgument,
                   "{}:1: no column 'arrival' (or 'arrival_s'); without it --request-rate must say when "
                   "requests come",
                   o.dataset_path);
    }
  } else if (o.dataset_name == "sharegpt") {
    KV_ASSIGN_OR_RETURN(texts_, load_sharegpt(o.dataset_path));
  } else {
    KV_ASSIGN_OR_RETURN(texts_, load_custom_prompts(o.dataset_path, o.custom_output_len));
  }
  return Status();
}

Status Dataset::read_slos() {
  const BenchOptions& o = options_;
  if (!o.relative_slo.empty()) {
    KV_ASSIGN_OR_RETURN(relative_, parse_relative_slo(o.relative_slo));
    if (!o.slo_reference.empty()) {
      KV_ASSIGN_OR_RETURN(reference_, parse_slo_reference(o.slo_reference));
    }
  }
  KV_ASSIGN_OR_RETURN(classes_, parse_slo_classes(o.slo_classes));
  return classes_.empty() ? Status() : match_classes();
}

// The rows' classes become indices into classes_.
Status Dataset::match_classes() {
  if (trace_.classes.empty()) {
    if (classes_.front().share.has_value()) return Status();
    return error(ErrorCode::kInvalidArgument,
                 "--slo-class {}: needs a share, as {}:0.5, or a trace with the column 'class'",
                 classes_.front().name, classes_.front().name);
  }
  std::vector<uint32_t> index;
  for (const Trace::Class& named : trace_.classes) {
    const auto found = std::find_if(classes_.begin(), classes_.end(),
                                    [&](const SloClass& known) { return known.name == named.name; });
    if (found == classes_.end()) {
      return error(ErrorCode::kInvalidArgument, "{}:{}: the class '{}' is none of --slo-class",
                   options_.dataset_path, named.line, named.name);
    }
    index.push_back(static_cast<uint32_t>(found - classes_.begin()));
  }
  for (TraceRow& row : trace_.rows) row.slo_class = index[row.slo_class];
  return Status();
}

Status Dataset::check_size() const {
  if (has_texts()) return Status();
  int64_t words = 0;
  for (int64_t i = 0; i < num_prompts_ && words <= kMaxPromptWords; ++i) {
    words += options_.shared_prefix_len;
    words += options_.dataset_name == "random" ? options_.random_input_len
             : has_trace() ? scale_lengths(trace_.rows[static_cast<size_t>(i) % trace_.rows.size()].lengths,
                                           options_.length_scale)
                                 .prompt
                           : drawn_lengths(options_.seed, i).prompt;
  }
  if (words <= kMaxPromptWords) return Status();
  return error(ErrorCode::kInvalidArgument,
               "--num-prompts {}: the prompts together are above {} words; take fewer or shorter ones",
               num_prompts_, kMaxPromptWords);
}

// Which entry of the file is the n-th request, for n below in_file(): what has no order of its own is
// shuffled by the seed.
std::vector<size_t> Dataset::order(uint64_t seed) const {
  const bool unordered = has_trace() ? !trace_.has_arrivals : options_.dataset_name == "sharegpt";
  if (unordered) return shuffled(in_file(), seed);
  std::vector<size_t> order(in_file());
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// REQUIRES: the lengths are of no file
Lengths Dataset::drawn_lengths(uint64_t seed, int64_t number) const {
  const BenchOptions& o = options_;
  if (workload_.has_value()) return scale_lengths(workload_->draw(seed, number), o.length_scale);
  return random_lengths({o.random_input_len, o.random_output_len, o.random_range_ratio, seed, std::nullopt},
                        number);
}

std::vector<RequestSpec> Dataset::requests(const RunKey& run) const {
  const std::vector<size_t> entry_of = order(run.seed);
  const std::vector<Nanos> times = arrivals(run);
  std::vector<RequestSpec> requests(static_cast<size_t>(num_prompts_));
  for (size_t i = 0; i < requests.size(); ++i) {
    RequestSpec& r = requests[i];
    const auto number = static_cast<int64_t>(i);
    const size_t entry = entry_of.empty() ? 0 : entry_of[i % entry_of.size()];
    r.arrival = times[i];
    if (has_texts()) {
      r.lengths = {texts_[entry].words, texts_[entry].max_tokens};
    } else if (has_trace()) {
      r.lengths = scale_lengths(trace_.rows[entry].lengths, options_.length_scale);
    } else {
      r.lengths = drawn_lengths(run.seed, number);
    }
    if (options_.shared_prefix_len > 0) {
      r.prefix_len = options_.shared_prefix_len;
      r.prefix =
          random_bits(run.seed, kPrefixStream, i) % static_cast<uint64_t>(options_.num_shared_prefixes);
      r.lengths.prompt += r.prefix_len;
    }
    if (relative_.has_value() && reference_.has_value()) {
      const int64_t tokens = std::max<int64_t>(1, r.lengths.prompt);
      r.own = relative_goals(*relative_, *reference_, tokens, run.seed, number);
    } else if (!classes_.empty()) {
      r.slo_class =
          trace_.classes.empty() ? draw_slo_class(classes_, run.seed, number) : trace_.rows[entry].slo_class;
      r.own = classes_[r.slo_class].goals;
      r.priority = classes_[r.slo_class].priority;
    }
  }
  return requests;
}

std::vector<Prompt> Dataset::prompts(const RunKey& run) const {
  const std::vector<size_t> entry_of = order(run.seed);
  std::vector<RequestSpec> specs = requests(run);
  std::vector<Prompt> prompts;
  prompts.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    prompts.push_back(has_texts() ? texts_[entry_of[i % entry_of.size()]]
                                  : random_prompt(specs[i], word_key(run), static_cast<int64_t>(i)));
    prompts.back().own = std::move(specs[i].own);
    prompts.back().priority = specs[i].priority;
  }
  return prompts;
}

std::vector<Nanos> Dataset::arrivals(const RunKey& run) const {
  if (!trace_.has_arrivals) {
    return draw_arrivals(num_prompts_, run.rate, arrival_shape(options_), run.seed);
  }
  std::vector<double> seconds;
  for (int64_t i = 0; i < num_prompts_; ++i) seconds.push_back(trace_.rows[static_cast<size_t>(i)].arrival_s);
  return stretch_arrivals(seconds, run.rate);
}

std::vector<Prompt> Dataset::warmups() const {
  const uint64_t seed = options_.seed;
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < options_.num_warmups; ++i) {
    if (has_texts()) {
      prompts.push_back(texts_[static_cast<size_t>(i) % texts_.size()]);
      continue;
    }
    RequestSpec warmup;
    warmup.lengths = has_trace()
                         ? scale_lengths(trace_.rows[static_cast<size_t>(i) % trace_.rows.size()].lengths,
                                         options_.length_scale)
                         : drawn_lengths(seed, kFirstWarmup + i);
    prompts.push_back(random_prompt(warmup, seed, kFirstWarmup + i));
  }
  return prompts;
}

}  // namespace kvasir
