#include "sched/beliefs/length_predictors.h"

#include <charconv>

#include "sched/beliefs/length_classes.h"
#include "sched/beliefs/online_predictor.h"

namespace kvasir {
namespace {

constexpr uint32_t kOracleWithoutHint = 128;
constexpr uint32_t kLargestConstant = 1'000'000;

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

}  // namespace

Result<std::unique_ptr<LengthPredictor>> make_length_predictor(std::string_view spec) {
  constexpr std::string_view kConstant = "constant:";
  std::unique_ptr<LengthPredictor> out;
  if (spec == "oracle") {
    out = std::make_unique<FixedPredictor>(kOracleWithoutHint, /*reads_hints=*/true);
  } else if (spec == "online") {
    out = std::make_unique<OnlinePredictor>();
  } else if (spec.starts_with(kConstant)) {
    const std::string_view number = spec.substr(kConstant.size());
    uint32_t tokens = 0;
    const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), tokens);
    if (failed != std::errc() || end != number.data() + number.size() || tokens == 0 ||
        tokens > kLargestConstant) {
      return error(ErrorCode::kInvalidArgument, "length predictor '{}': N of constant:N is from 1 to {}",
                   spec, kLargestConstant);
    }
    out = std::make_unique<FixedPredictor>(tokens, /*reads_hints=*/false);
  } else {
    return error(ErrorCode::kNotFound, "no length predictor '{}': there are online, constant:N and oracle",
                 spec);
  }
  return out;
}

}  // namespace kvasir
