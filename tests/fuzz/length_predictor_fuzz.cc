// What a length predictor is to load, from anywhere: nothing, or something that predicts, learns and is saved
// as it was.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "sched/beliefs/length_predictors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::array<kvasir::Token, 3> kPrompt = {5, 6, 7};
  constexpr std::array<float, 4> kRow = {1, -2, 3e9f, 0};
  for (const char* name : {"online", "hidden"}) {
    const auto predictor = kvasir::make_length_predictor(name).value();
    if (!predictor->load(text).ok()) continue;
    const std::string saved = predictor->save();
    KV_CHECK(predictor->load(saved).ok() && predictor->save() == saved, "{}: saved otherwise", name);
    const kvasir::PromptFeatures features{kPrompt, 1, 1, 0, kRow};
    const auto predicted = predictor->predict(features);
    KV_CHECK(predicted.length_class < predictor->classes().size(), "class {}", predicted.length_class);
    predictor->learn(features, predicted, 100);
    predictor->learn_at_least(features, predicted, 1'000'000);
    KV_CHECK(predictor->predict(features).length_class < predictor->classes().size(), "after learning");
    KV_CHECK(predictor->load(predictor->save()).ok(), "{}: what it has learnt cannot be read", name);
  }
  return 0;
}
