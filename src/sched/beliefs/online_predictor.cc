#include "sched/beliefs/online_predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/random.h"
#include "sched/beliefs/predictor_text.h"

namespace kvasir {
namespace {

constexpr std::string_view kOnline = "online";

constexpr double kLargestWeight = 50;
constexpr double kLeastVariance = 0.01;  // of what it was at first

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

LengthPrediction OnlinePredictor::predict(const PromptFeatures& features) {
  LengthPrediction out;
  if (!point_.known()) return out;
  const std::vector<Feature>& x = read(features);
  out.output_tokens = point_.tokens(length_.of(x));
  out.length_class = classes_.class_of(out.output_tokens);
  out.deviation = point_.direction(direction_.of(x));
  return out;
}

void OnlinePredictor::learn(const PromptFeatures& features, const LengthPrediction& predicted,
                            uint32_t output_tokens) {
  const std::vector<Feature>& x = read(features);
  const double error = point_.finished(length_.of(x), output_tokens);
  length_.correct(x, error, point_.noise());
  if (predicted.output_tokens == 0) return;
  classes_.learn(predicted.output_tokens, output_tokens);
  if (output_tokens == predicted.output_tokens) return;
  const bool longer = output_tokens > predicted.output_tokens;
  const double z = direction_.of(x);
  point_.direction_was(z, longer);
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
  length_.correct(x, std::min(beyond, LengthPoint::kLargestError), point_.noise());
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

void OnlinePredictor::save_fields(std::string& out) const {
  point_.save(out);
  save_linear("length", length_, out);
  save_linear("direction", direction_, out);
  classes_.save(out);
}

bool OnlinePredictor::load_fields(TextFields& in) {
  return point_.load(in) && load_linear(in, "length", length_) && load_linear(in, "direction", direction_) &&
         classes_.load(in);
}

std::string OnlinePredictor::save() const {
  std::string out = predictor_head(kOnline);
  save_fields(out);
  return out;
}

Status OnlinePredictor::load(std::string_view text) {
  TextFields in(text);
  // Nothing is taken over before all of it is read.
  OnlinePredictor loaded;
  if (!read_predictor_head(kOnline, in) || !loaded.load_fields(in) || !in.at_end()) {
    return not_of_predictor(kOnline);
  }
  *this = std::move(loaded);
  return {};
}

}  // namespace kvasir
