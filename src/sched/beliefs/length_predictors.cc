#include "sched/beliefs/length_predictors.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/random.h"
#include "sched/beliefs/hidden_predictor.h"
#include "sched/beliefs/length_classes.h"
#include "sched/beliefs/online_predictor.h"

namespace kvasir {
namespace {

constexpr uint32_t kOracleWithoutHint = 128;
constexpr uint32_t kLargestNumber = 1'000'000;
constexpr uint32_t kLongestOutput = 1'000'000'000;
constexpr size_t kHashedTokens = 256;  // at each end of a prompt

// The oracle reads what the client says; the other one does not.
class FixedPredictor final : public LengthPredictor {
 public:
  FixedPredictor(uint32_t tokens, bool reads_hints) : tokens_(tokens), reads_hints_(reads_hints) {}

  LengthPrediction predict(const PromptFeatures& features) override {
    const bool told = reads_hints_ && features.output_tokens_hint > 0;
    LengthPrediction out;
    out.output_tokens = told ? features.output_tokens_hint : tokens_;
    out.length_class = classes_.class_of(out.output_tokens);
    return out;
  }
  void learn(const PromptFeatures&, const LengthPrediction& predicted, uint32_t output_tokens) override {
    if (predicted.output_tokens > 0) classes_.learn(predicted.output_tokens, output_tokens);
  }
  const std::vector<LengthClass>& classes() const override { return classes_.classes(); }

 private:
  const uint32_t tokens_;
  const bool reads_hints_;
  LengthClasses classes_;
};

// What both predictors of a stated quality do: they change what the client says.
class ImperfectOracle : public LengthPredictor {
 public:
  LengthPrediction predict(const PromptFeatures& features) override {
    LengthPrediction out;
    const uint32_t told = features.output_tokens_hint > 0 ? features.output_tokens_hint : kOracleWithoutHint;
    out.output_tokens = std::clamp<uint32_t>(changed(told, features), 1, kLongestOutput);
    out.deviation = deviation(told, out.output_tokens, features);
    out.length_class = classes_.class_of(out.output_tokens);
    return out;
  }
  void learn(const PromptFeatures&, const LengthPrediction& predicted, uint32_t output_tokens) override {
    if (predicted.output_tokens > 0) classes_.learn(predicted.output_tokens, output_tokens);
  }
  const std::vector<LengthClass>& classes() const override { return classes_.classes(); }

 private:
  virtual uint32_t changed(uint32_t tokens, const PromptFeatures& features) const = 0;
  // Where it says that the truth lies.
  virtual Deviation deviation(uint32_t /*tokens*/, uint32_t /*point*/, const PromptFeatures&) const {
    return Deviation::kUnknown;
  }

  LengthClasses classes_;
};

// Adds an error that depends on the prompt and the hint alone: the same request errs alike under every
// policy. So does whether the direction that it tells is right.
class LaplacePredictor final : public ImperfectOracle {
 public:
  // right: the share of requests whose direction is told rightly; 0: none is told.
  LaplacePredictor(uint32_t mean_error, double right) : mean_error_(mean_error), right_(right) {}

 private:
  static uint64_t key_of(uint32_t tokens, const PromptFeatures& features) {
    uint64_t key = random_bits(features.prompt.size(), tokens, 0);
    const size_t size = features.prompt.size();
    for (size_t i = 0; i < size; ++i) {
      if (i == kHashedTokens && size > 2 * kHashedTokens) i = size - kHashedTokens;
      key = random_bits(key, static_cast<uint64_t>(features.prompt[i]), i);
    }
    return key;
  }

  uint32_t changed(uint32_t tokens, const PromptFeatures& features) const override {
    // The inverse of the distribution function; u is in (-1, 1), and its sign is that of the error.
    const double u = 2 * (random_unit(key_of(tokens, features), 0, 0) + 0x1p-54) - 1;
    const double error = std::copysign(mean_error_ * std::log1p(-std::abs(u)), -u);
    return static_cast<uint32_t>(std::clamp(std::round(tokens + error), 1.0, double{kLongestOutput}));
  }

  Deviation deviation(uint32_t tokens, uint32_t point, const PromptFeatures& features) const override {
    if (right_ <= 0 || tokens == point) return Deviation::kUnknown;
    const bool right = random_unit(key_of(tokens, features), 1, 0) < right_;
    return (tokens > point) == right ? Deviation::kLonger : Deviation::kShorter;
  }

  const double mean_error_;
  const double right_;
};

class BucketPredictor final : public ImperfectOracle {
 public:
  explicit BucketPredictor(uint32_t width) : width_(width) {}

 private:
  uint32_t changed(uint32_t tokens, const PromptFeatures&) const override {
    const uint64_t buckets = (uint64_t{tokens} + width_ - 1) / width_;
    return static_cast<uint32_t>(std::min<uint64_t>(buckets * width_, kLongestOutput));
  }

  const uint32_t width_;
};

// Wrong on purpose: believes that the longest outputs are the shortest.
class InvertedPredictor final : public ImperfectOracle {
 public:
  explicit InvertedPredictor(uint32_t longest) : longest_(longest) {}

 private:
  uint32_t changed(uint32_t tokens, const PromptFeatures&) const override {
    return longest_ - std::min(longest_, tokens);
  }

  const uint32_t longest_;
};

// The number after "kind:". kInvalidArgument: it is not from 1 to kLargestNumber.
Result<uint32_t> number_of(std::string_view spec) {
  const size_t colon = spec.find(':');
  const std::string_view number = spec.substr(colon + 1);
  uint32_t value = 0;
  const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (failed == std::errc() && end == number.data() + number.size() && value > 0 && value <= kLargestNumber) {
    return value;
  }
  return error(ErrorCode::kInvalidArgument, "length predictor '{}': N of {}:N is from 1 to {}", spec,
               spec.substr(0, colon), kLargestNumber);
}

// "laplace:N" or "laplace:N:SHARE".
Result<std::unique_ptr<LengthPredictor>> make_laplace(std::string_view spec) {
  const size_t colon = spec.find(':', spec.find(':') + 1);
  KV_ASSIGN_OR_RETURN(const uint32_t mean_error, number_of(spec.substr(0, colon)));
  double right = 0;
  if (colon != std::string_view::npos) {
    const std::string_view share = spec.substr(colon + 1);
    const auto [end, failed] = std::from_chars(share.data(), share.data() + share.size(), right);
    if (failed != std::errc() || end != share.data() + share.size() || !(right >= 0.5 && right <= 1)) {
      return error(ErrorCode::kInvalidArgument,
                   "length predictor '{}': SHARE of laplace:N:SHARE is from 0.5 to 1", spec);
    }
  }
  return std::unique_ptr<LengthPredictor>(std::make_unique<LaplacePredictor>(mean_error, right));
}

}  // namespace

Result<std::unique_ptr<LengthPredictor>> make_length_predictor(std::string_view spec) {
  std::unique_ptr<LengthPredictor> out;
  if (spec == "oracle") {
    out = std::make_unique<FixedPredictor>(kOracleWithoutHint, /*reads_hints=*/true);
  } else if (spec == "online") {
    out = std::make_unique<OnlinePredictor>();
  } else if (spec == "hidden") {
    out = std::make_unique<HiddenPredictor>();
  } else if (spec.starts_with("constant:")) {
    KV_ASSIGN_OR_RETURN(const uint32_t tokens, number_of(spec));
    out = std::make_unique<FixedPredictor>(tokens, /*reads_hints=*/false);
  } else if (spec.starts_with("laplace:")) {
    KV_ASSIGN_OR_RETURN(out, make_laplace(spec));
  } else if (spec.starts_with("bucket:")) {
    KV_ASSIGN_OR_RETURN(const uint32_t width, number_of(spec));
    out = std::make_unique<BucketPredictor>(width);
  } else if (spec.starts_with("inverted:")) {
    KV_ASSIGN_OR_RETURN(const uint32_t longest, number_of(spec));
    out = std::make_unique<InvertedPredictor>(longest);
  } else {
    return error(
        ErrorCode::kNotFound,
        "no length predictor '{}': there are online, hidden, constant:N, oracle, laplace:N, bucket:N and "
        "inverted:N",
        spec);
  }
  return out;
}

}  // namespace kvasir
