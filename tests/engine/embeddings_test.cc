// Hidden rows on their way to an embedding: which are asked for, and what becomes of those that come twice.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/mutant.h"
#include "engine/engine_fixture.h"

namespace kvasir::test {
namespace {

GenerationRequest embed(uint32_t prompt, Pooling pooling) {
  GenerationRequest r = request(prompt, 1);
  r.pooling = pooling;
  return r;
}

// The scripted executor's hidden row of position p is (sequence, p + 1).
std::vector<float> mean_of(uint64_t seq, uint32_t prompt) {
  return {static_cast<float>(seq), static_cast<float>(prompt + 1) / 2};
}

TEST(EmbeddingsInTheLoop, AreOfTheRowsThatWereAskedFor) {
  for (const int depth : {1, 2}) {
    EngineOptions options = small_options();
    options.limits.long_prefill_token_threshold = 30;
    Harness h(options, {}, depth);
    const auto last = h.submit(embed(100, Pooling::kLast));
    const auto mean = h.submit(embed(100, Pooling::kMean));
    const auto one = h.submit(embed(1, Pooling::kMean));
    const auto none = h.submit(request(40, 3));
    h.finish();
    EXPECT_EQ(last->embedding, (std::vector<float>{1, 100}));
    EXPECT_EQ(mean->embedding, mean_of(2, 100));
    EXPECT_EQ(one->embedding, mean_of(3, 1));
    EXPECT_TRUE(none->embedding.empty());
    EXPECT_EQ(last->events, 1);
    uint32_t rows = 0;
    for (const Step& step : h.executor.steps()) {
      for (const StepSlice& s : step.slices) {
        for (uint32_t p = s.tokens.begin; p < s.tokens.end; ++p) rows += s.gives_hidden(p) ? 1 : 0;
      }
    }
    EXPECT_EQ(rows, 1U + 100 + 1) << "no more rows than are pooled";
  }
}

// A prompt that goes forward by a token in each step, beside outputs that grow until it has to go.
std::vector<float> preempted_mean() {
  EngineOptions options = small_options();
  options.limits.long_prefill_token_threshold = 1;
  Harness h(options);
  for (int i = 0; i < 3; ++i) h.submit(request(1, 160));
  for (int i = 0; i < 60; ++i) h.engine.step();
  const auto sink = h.submit(embed(220, Pooling::kMean));
  h.finish();
  EXPECT_GT(h.engine.metrics().num_preemptions, 0U) << "the test is void";
  EXPECT_EQ(sink->finish, FinishReason::kLength);
  return sink->embedding;
}

TEST(EmbeddingsInTheLoop, APreemptedPromptPoolsEachRowOnce) {
  EXPECT_EQ(preempted_mean(), mean_of(4, 220));
}

#if defined(KVASIR_MUTANTS)
TEST(EmbeddingsInTheLoop, RowsPooledTwiceAreSeen) {
  const ScopedMutant fault(Mutant::kPooledTwice);
  EXPECT_NE(preempted_mean(), mean_of(4, 220));
}
#endif

TEST(EmbeddingsInTheLoop, AMeanAdoptsNoPrefix) {
  EngineOptions options = small_options();
  options.cache.prefix_caching = true;
  Harness h(options);
  for (const Pooling pooling : {Pooling::kNone, Pooling::kLast, Pooling::kMean}) {
    const auto sink = h.submit(embed(100, pooling));
    h.finish();
    EXPECT_EQ(sink->cached_prompt_tokens, pooling == Pooling::kLast ? 96U : 0U);
    EXPECT_EQ(sink->embedding.size(), pooling == Pooling::kNone ? 0U : 2U);
  }
}

}  // namespace
}  // namespace kvasir::test
