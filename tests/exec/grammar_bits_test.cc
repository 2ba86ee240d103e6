// Outputs that follow grammars: what else runs, preemptions, tiers, and masks that are late change no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutant.h"
#include "exec/scenarios.h"
#include "model/grammar/grammar_compiler.h"
#include "model/tokenizers/tokenizer.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

using Kind = OutputGrammar::Kind;

// The constraints of a workload, and what they are made with.
class Constrained {
 public:
  explicit Constrained(ops::WeightType weights)
      : work(make_workload(weights)),
        tokenizer_(take(Tokenizer::create(take(work.file->read_tokenizer())))),
        compiler_(tokenizer_) {
    const OutputGrammar grammars[] = {
        {Kind::kRegex, "([a-f]{1,3} ?){2,40}"},
        {Kind::kJsonSchema,
         R"({"type":"object","properties":{"name":{"type":"string"},"ages":{"type":"array","items":{"type":"integer"}}},
             "required":["name","ages"],"additionalProperties":false})"},
        {Kind::kChoice, {}, {"a", "ab", "abc def", "xyz"}},
        {Kind::kGrammar, "root ::= (\"<\" root \">\" | [0-9]+) \" \" root?"},
    };
    for (size_t i = 0; i < work.requests.size(); ++i) {
      SamplingParams& s = work.requests[i].sampling;
      s.seed = 300 + i;
      s.temperature = i % 3 == 0 ? 0.0F : 1.0F;
      if (i % 4 == 1) s.top_p = 0.8F;
      if (i % 6 == 1) {
        LogitRules rules;
        rules.frequency_penalty = 0.7F;
        s.rules = std::make_shared<const LogitRules>(std::move(rules));
      }
      if (i % 5 == 4) continue;
      s.constraint = compiler_.constrain(take(compiler_.compile(grammars[i % std::size(grammars)])));
    }
  }

  Workload work;

 private:
  Tokenizer tokenizer_;
  GrammarCompiler compiler_;
};

TEST(GrammarBits, TheSameInEveryScenario) {
  Constrained c(ops::WeightType::kF32);
  const std::vector<RigOutput> expected = run_reference(*c.work.file, {}, c.work.requests);
  const std::set<std::string> names = {"alone",
                                       "among 32, sarathi",
                                       "among 32, vllm",
                                       "preemption, sarathi",
                                       "preemption and prefix reuse",
                                       "three threads",
                                       "swap",
                                       "outgrown, random",
                                       "ellm:ratio=0.5:again=0.5"};
  size_t ran = 0;
  for (const Scenario& scenario : scenarios()) {
    if (!names.contains(scenario.name)) continue;
    ++ran;
    EXPECT_EQ(differences(expected, run_scenario(c.work, scenario)), 0) << scenario.name;
  }
  EXPECT_EQ(ran, names.size());
  for (RigRequest& r : c.work.requests) r.sampling.constraint = nullptr;
  EXPECT_GT(differences(expected, run_reference(*c.work.file, {}, c.work.requests)), 20)
      << "the grammars have no effect";
}

// Says of each mask, now and then, that it is not there yet.
class LateConstraint final : public TokenConstraint {
 public:
  explicit LateConstraint(std::shared_ptr<TokenConstraint> inner) : inner_(std::move(inner)) {}
  void expect(std::span<const Token> output) override { inner_->expect(output); }
  const TokenMask* after(std::span<const Token> output, Nanos) override {
    if (++calls_ % 3 == 0) return nullptr;
    return inner_->after(output, 10 * kNanosPerSecond);
  }

 private:
  const std::shared_ptr<TokenConstraint> inner_;
  uint64_t calls_ = 1;
};

TEST(GrammarBits, ARowWhoseMaskIsLateIsSampledInALaterStep) {
  Constrained c(ops::WeightType::kQ4_1);
  const std::vector<RigOutput> expected = run_reference(*c.work.file, {}, c.work.requests);
  std::vector<RigRequest> late = c.work.requests;
  for (RigRequest& r : late) {
    if (r.sampling.constraint)
      r.sampling.constraint = std::make_shared<LateConstraint>(r.sampling.constraint);
  }
  for (const char* policy : {"sarathi", "vllm", "auto"}) {
    RigOptions options;
    options.policy = policy;
    const RigRun run_late = run(*c.work.file, options, late);
    EXPECT_EQ(differences(expected, run_late.outputs), 0) << policy;
    EXPECT_GT(run_late.deferred_rows, 100u) << policy;
#if defined(KVASIR_MUTANTS)
    const ScopedMutant fault(Mutant::kDeferredSampled);
    EXPECT_GT(differences(expected, run(*c.work.file, options, late).outputs), 0) << policy;
#endif
  }
}

#if defined(KVASIR_MUTANTS)
TEST(Mutants, FaultsOfMasksShow) {
  Constrained c(ops::WeightType::kQ4_1);
  const std::pair<Mutant, const char*> cases[] = {{Mutant::kMaskOfBefore, "among 32, sarathi"},
                                                  {Mutant::kOutputForgotten, "preemption, sarathi"}};
  for (const auto& [mutant, name] : cases) {
    for (const Scenario& scenario : scenarios()) {
      if (scenario.name != name) continue;
      const std::vector<RigOutput> expected = run_scenario(c.work, scenario);
      const ScopedMutant fault(mutant);
      EXPECT_GT(differences(expected, run_scenario(c.work, scenario)), 0) << static_cast<int>(mutant);
    }
  }
}
#endif

}  // namespace
}  // namespace kvasir::test
