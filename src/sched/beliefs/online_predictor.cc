#include "sched/beliefs/online_predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/random.h"

namespace kvasir {
namespace {

constexpr std::string_view kHead = "kvasir-length-predictor";
constexpr std::string_view kKind = "online";
constexpr uint64_t kVersion = 1;

constexpr double kMemory = 2000;      // requests, of the means
constexpr double kShortMemory = 250;  // of the correction, which must follow what is predicted now
constexpr double kLargestError = 2;   // logarithms that one request can teach
constexpr double kLargestWeight = 50;
constexpr double kLeastVariance = 0.01;  // of what it was at first
constexpr double kLeastNoise = 0.05;     // of log lengths, squared
constexpr double kMostOutput = 1e6;
constexpr double kMostFinished = 1e15;  // counted exactly
// A direction is told where its odds are those, after so many requests, and while those told hold so often.
constexpr double kTellFrom = 0.65;
constexpr double kFewest = 100;
constexpr double kMustHold = 0.6;

constexpr size_t kPlaces = 8;  // first and last tokens that count by place
constexpr size_t kBag = 64;    // and as a set
constexpr size_t kDistinctOf = 512;
constexpr uint32_t kPlain = 4;  // buckets of features that are not hashed
constexpr float kPlaceVariance = 0.2f;
constexpr float kBagVariance = 0.1f;

}  // namespace

OnlinePredictor::OnlinePredictor() {
  scratch_.reserve(2 * (kPlaces + kBag) + kPlain);
}

double OnlinePredictor::squash(double z) {
  return 1 / (1 + std::exp(-z));
}

void OnlinePredictor::Mean::add(double x, double memory) {
  count = std::min(count + 1, memory);
  value += (x - value) / count;
}

double OnlinePredictor::Linear::of(const std::vector<Feature>& x) const {
  double sum = 0;
  for (const Feature& f : x) sum += double{weights[f.index]} * double{f.value};
  return sum;
}

void OnlinePredictor::Linear::correct(const std::vector<Feature>& x, double error, double noise) {
  const auto variance = [&](const Feature& f) { return double{f.variance} * (1 - double{learnt[f.index]}); };
  double total = noise;
  for (const Feature& f : x) total += variance(f) * double{f.value} * double{f.value};
  for (const Feature& f : x) {
    const double gain = variance(f) * double{f.value} / total;
    const double weight = double{weights[f.index]} + gain * error;
    weights[f.index] = static_cast<float>(std::clamp(weight, -kLargestWeight, kLargestWeight));
    // What was learnt long ago may no longer hold: the variance stays above a floor.
    const double left = (1 - double{learnt[f.index]}) * (1 - gain * double{f.value});
    learnt[f.index] = static_cast<float>(1 - std::clamp(left, kLeastVariance, 1.0));
  }
}

// At first one token of the sets is believed to matter little, one at its place more.
const std::vector<OnlinePredictor::Feature>& OnlinePredictor::read(const PromptFeatures& features) {
  std::vector<Feature>& x = scratch_;
  x.clear();
  const std::span<const Token> prompt = features.prompt;
  const size_t n = prompt.size();
  std::bitset<1024> seen;
  const size_t looked_at = std::min(n, kDistinctOf);
  for (size_t i = 0; i < looked_at; ++i) seen.set(random_bits(0, 1, static_cast<uint64_t>(prompt[i])) % 1024);
  const double distinct = n == 0 ? 1 : static_cast<double>(seen.count()) / static_cast<double>(looked_at);
  x.push_back({0, static_cast<float>((std::log(1.0 + static_cast<double>(n)) - 5) / 2), 1});
  x.push_back({1, static_cast<float>(distinct - 0.5), 1});
  x.push_back({2, std::clamp(features.temperature, 0.0f, 2.0f) - 0.7f, 1});
  x.push_back({3, std::clamp(features.top_p, 0.0f, 1.0f) - 0.9f, 1});
  const auto hashed = [&](uint64_t group, uint64_t place, Token token, float variance) {
    const uint64_t bits = random_bits(2 + group, place, static_cast<uint64_t>(token));
    x.push_back({static_cast<uint32_t>(kPlain + bits % (kBuckets - kPlain)), 1, variance});
  };
  const size_t places = std::min(n, kPlaces), bag = std::min(n, kBag);
  for (size_t i = 0; i < places; ++i) {
    hashed(0, i, prompt[i], kPlaceVariance);
    hashed(1, i, prompt[n - 1 - i], kPlaceVariance);
  }
  for (size_t i = 0; i < bag; ++i) {
    hashed(2, 0, prompt[i], kBagVariance);
    hashed(2, 0, prompt[n - 1 - i], kBagVariance);
  }
  std::sort(x.begin() + kPlain, x.end(),
            [](const Feature& a, const Feature& b) { return a.index < b.index; });
  const auto same = [](const Feature& a, const Feature& b) { return a.index == b.index; };
  x.erase(std::unique(x.begin() + kPlain, x.end(), same), x.end());
  return x;
}

double OnlinePredictor::gain() const {
  const double scale = sums_.linear_by_linear.value;
  return scale > 0 ? std::clamp(sums_.linear_by_rest.value / scale, 0.0, 1.0) : 0;
}

double OnlinePredictor::correction() const {
  if (!(sums_.uncorrected.value > 0)) return 1;
  return std::clamp(sums_.length.value / sums_.uncorrected.value, 0.1, 10.0);
}

double OnlinePredictor::log_point(double linear) const {
  return std::clamp(sums_.log_length.value + gain() * linear, 0.0, std::log(kMostOutput));
}

Deviation OnlinePredictor::told_direction(double z) const {
  if (sums_.finished < kFewest) return Deviation::kUnknown;
  const double longer = squash(z);
  if (longer >= kTellFrom) return Deviation::kLonger;
  return longer <= 1 - kTellFrom ? Deviation::kShorter : Deviation::kUnknown;
}

LengthPrediction OnlinePredictor::predict(const PromptFeatures& features) {
  LengthPrediction out;
  if (sums_.log_length.count == 0) return out;
  const std::vector<Feature>& x = read(features);
  const double tokens = std::exp(log_point(length_.of(x))) * correction();
  out.output_tokens = static_cast<uint32_t>(std::lround(std::clamp(tokens, 1.0, kMostOutput)));
  out.length_class = classes_.class_of(out.output_tokens);
  if (sums_.direction_held.value >= kMustHold) out.deviation = told_direction(direction_.of(x));
  return out;
}

void OnlinePredictor::learn(const PromptFeatures& features, const LengthPrediction& predicted,
                            uint32_t output_tokens) {
  const double tokens = std::clamp(static_cast<double>(output_tokens), 1.0, kMostOutput);
  const double y = std::log(tokens);
  const std::vector<Feature>& x = read(features);
  const double linear = length_.of(x);
  // First what the weights are worth on a request that they do not know.
  if (sums_.log_length.count > 0) {
    const double rest = y - sums_.log_length.value;
    sums_.length.add(tokens, kShortMemory);
    sums_.uncorrected.add(std::exp(log_point(linear)), kShortMemory);
    sums_.square_rest.add((rest - linear) * (rest - linear), kShortMemory);
    sums_.linear_by_rest.add(linear * rest, kMemory);
    sums_.linear_by_linear.add(linear * linear, kMemory);
  }
  sums_.log_length.add(y, kMemory);
  sums_.finished = std::min(sums_.finished + 1, kMostFinished);
  const double error = std::clamp(y - sums_.log_length.value - linear, -kLargestError, kLargestError);
  length_.correct(x, error, std::max(sums_.square_rest.value, kLeastNoise));
  if (predicted.output_tokens == 0) return;
  classes_.learn(predicted.output_tokens, output_tokens);
  if (output_tokens == predicted.output_tokens) return;
  const bool longer = output_tokens > predicted.output_tokens;
  const double z = direction_.of(x);
  if (const Deviation told = told_direction(z); told != Deviation::kUnknown) {
    sums_.direction_held.add((told == Deviation::kLonger) == longer ? 1 : 0, kMemory / 10);
  }
  learn_direction(x, z, longer);
}

// One step of Newton's towards the more likely odds.
void OnlinePredictor::learn_direction(const std::vector<Feature>& x, double z, bool longer) {
  const double p = squash(z);
  const double curvature = std::max(p * (1 - p), 0.05);
  direction_.correct(x, ((longer ? 1 : 0) - p) / curvature, 1 / curvature);
}

void OnlinePredictor::learn_at_least(const PromptFeatures& features, const LengthPrediction& predicted,
                                     uint32_t output_tokens) {
  if (predicted.output_tokens == 0 || output_tokens <= predicted.output_tokens) return;
  const std::vector<Feature>& x = read(features);
  const double beyond =
      std::log(static_cast<double>(output_tokens)) - std::log(static_cast<double>(predicted.output_tokens));
  length_.correct(x, std::min(beyond, kLargestError), std::max(sums_.square_rest.value, kLeastNoise));
  learn_direction(x, direction_.of(x), /*longer=*/true);
}

// ---------------------------------------------------------------- as text

void OnlinePredictor::save_linear(std::string_view name, const Linear& linear, std::string& out) const {
  size_t count = 0;
  for (size_t i = 0; i < kBuckets; ++i) count += linear.learnt[i] > 0;
  fmt::format_to(std::back_inserter(out), "{} {}\n", name, count);
  for (size_t i = 0; i < kBuckets; ++i) {
    if (!(linear.learnt[i] > 0)) continue;
    fmt::format_to(std::back_inserter(out), "{} {} {}\n", i, linear.weights[i], linear.learnt[i]);
  }
}

bool OnlinePredictor::load_linear(TextFields& in, std::string_view name, Linear& linear) {
  uint64_t count = 0;
  if (!in.word(name) || !in.number(kBuckets, count)) return false;
  for (uint64_t k = 0; k < count; ++k) {
    uint64_t index = 0;
    double weight = 0, known = 0;
    if (!in.number(kBuckets - 1, index) || !in.real(kLargestWeight, weight) || !in.real(1, known))
      return false;
    if (!(known > 0)) return false;
    linear.weights[index] = static_cast<float>(weight);
    linear.learnt[index] = static_cast<float>(known);
  }
  return true;
}

std::string OnlinePredictor::save() const {
  std::string out = fmt::format("{} {} {}\n", kHead, kKind, kVersion);
  Sums sums = sums_;
  fmt::format_to(std::back_inserter(out), "finished {}\n", sums.finished);
  for (const Mean* mean : sums.means()) {
    fmt::format_to(std::back_inserter(out), "mean {} {}\n", mean->value, mean->count);
  }
  save_linear("length", length_, out);
  save_linear("direction", direction_, out);
  classes_.save(out);
  return out;
}

Status OnlinePredictor::load(std::string_view text) {
  const auto corrupt = [] {
    return error(ErrorCode::kCorrupt,
                 "not what the length predictor '{}' has saved: remove the file, or name "
                 "another",
                 kKind);
  };
  TextFields in(text);
  uint64_t version = 0;
  if (!in.word(kHead) || !in.word(kKind) || !in.number(UINT64_MAX, version) || version != kVersion) {
    return corrupt();
  }
  // Nothing is taken over before all of it is read.
  OnlinePredictor loaded;
  if (!in.word("finished") || !in.real(kMostFinished, loaded.sums_.finished) || loaded.sums_.finished < 0) {
    return corrupt();
  }
  for (Mean* mean : loaded.sums_.means()) {
    if (!in.word("mean") || !in.real(1e9, mean->value) || !in.real(kMemory, mean->count) || mean->count < 0) {
      return corrupt();
    }
  }
  const Mean& y = loaded.sums_.log_length;
  if (y.value < 0 || y.value > std::log(kMostOutput)) return corrupt();
  if (!load_linear(in, "length", loaded.length_) || !load_linear(in, "direction", loaded.direction_) ||
      !loaded.classes_.load(in) || !in.at_end()) {
    return corrupt();
  }
  *this = std::move(loaded);
  return {};
}

}  // namespace kvasir
