// The protocol in every order that can be thought of: nothing that must not happen does, all comes to rest,
// and a seeded fault does not stay hidden.
#include "cluster/protocol/explorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/mutant.h"

namespace kvasir::cluster::test {
namespace {

using Kind = Choice::Kind;

void report(const std::string& what, const Exploration& found, std::chrono::steady_clock::time_point since) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  const World::Counts& c = found.counts;
  fmt::print(
      "{}: {} steps in {:.2f} s ({:.0f} a second), {} different states seen, {} rests; {} messages, {} "
      "stale, {} "
      "advised, {} granted ({} at once, {} late), {} refused, {} recalled, {} lost, {} settled, {} reads, {} "
      "reads "
      "refused, {} left; prompts: {} computed, {} refused, {} dropped; prefixes: {} kept, {} refused\n",
      what, found.steps, seconds, static_cast<double>(found.steps) / seconds, found.states, found.runs,
      c.messages, c.stale, c.advised, c.granted, c.atomic, c.granted_late, c.refused, c.recalled, c.lost,
      c.settlements, c.reads, c.reads_refused, c.leaves, c.prompts_computed, c.prompts_refused,
      c.prompts_dropped, c.prefixes_kept, c.prefixes_refused);
}

TEST(Explorer, AtRandomWithAllFaults) {
  const auto start = std::chrono::steady_clock::now();
  const Exploration found = wander({}, 1, scaled(150), 400);
  report("at random", found, start);
  EXPECT_EQ(found.violation, "") << found.where;
  for (size_t kind = 0; kind < Choice::kKinds; ++kind) {
    EXPECT_GT(found.counts.choices.at(static_cast<Kind>(kind)), 20u) << "kind " << kind;
  }
  for (const uint64_t count :
       {found.counts.granted, found.counts.refused, found.counts.recalled, found.counts.lost,
        found.counts.atomic, found.counts.reads, found.counts.reads_refused, found.counts.settlements,
        found.counts.leaves, found.counts.prompts_computed, found.counts.prompts_refused,
        found.counts.prompts_dropped, found.counts.prefixes_kept, found.counts.prefixes_refused}) {
    EXPECT_GT(count, 5u);
  }
  EXPECT_GT(found.counts.granted_late, 0u);
}

// Prompts alone, of all of which the rows are asked for at peers.
WorldConfig only_prompts() {
  WorldConfig config;
  config.borrows = 0;
  config.prefixes = 0;
  config.leaves = 1;
  return config;
}

// Prefixes alone, of all of which what is shown is to be kept.
WorldConfig only_prefixes() {
  WorldConfig config;
  config.borrows = 0;
  config.prompts = 0;
  return config;
}

TEST(Explorer, AtRandomWithPrefixesAlone) {
  const auto start = std::chrono::steady_clock::now();
  const Exploration found = wander(only_prefixes(), 1, scaled(80), 400);
  report("prefixes", found, start);
  EXPECT_EQ(found.violation, "") << found.where;
  EXPECT_GT(found.counts.prefixes_kept, 100u);
}

TEST(Explorer, AtRandomWithPromptsAlone) {
  const auto start = std::chrono::steady_clock::now();
  const Exploration found = wander(only_prompts(), 1, scaled(80), 400);
  report("prompts", found, start);
  EXPECT_EQ(found.violation, "") << found.where;
  EXPECT_GT(found.counts.prompts_computed, 100u);
}

// All instances owe each other, and little goes wrong: there are cycles to settle.
WorldConfig calm() {
  WorldConfig config;
  config.blocks = 6;
  config.lend_cap = 6;
  config.kills = 1;
  config.cuts = 1;
  config.losses = 3;
  config.elections = 4;
  config.leaves = 0;
  config.outages = 0;
  config.recalls = 2;
  return config;
}

TEST(Explorer, AtRandomWhereDebtsHaveCycles) {
  const auto start = std::chrono::steady_clock::now();
  const Exploration found = wander(calm(), 1, scaled(80), 400);
  report("cycles", found, start);
  EXPECT_EQ(found.violation, "") << found.where;
  EXPECT_GT(found.counts.settlements, 20u);
}

// Every order of what two instances can do in some steps, with a loan, a recall, a death, a loss and an
// election.
TEST(Explorer, EveryOrderOfSomeSteps) {
  WorldConfig config;
  config.instances = 2;
  config.blocks = 2;
  config.lend_cap = 2;
  config.own_use = false;
  config.kills = 1;
  config.cuts = 0;
  config.losses = 1;
  config.elections = 1;
  config.leaves = 0;
  config.outages = 0;
  config.borrows = 1;
  config.recalls = 1;
  struct Case {
    Start start;
    const char* name;
    size_t depth;
    int prompts = 0;
    int prefixes = 0;
  };
  for (const auto& [start, name, least, prompts, prefixes] : {Case{Start::kFresh, "fresh", 5},
                                                              {Start::kLent, "lent", 3},
                                                              {Start::kSettling, "settling", 3},
                                                              {Start::kFresh, "prompts", 5, 1},
                                                              {Start::kFresh, "prefixes", 5, 0, 1}}) {
    config.start = start;
    config.prompts = prompts;
    config.prefixes = prefixes;
    config.borrows = prompts + prefixes > 0 ? 0 : 1;
    const size_t depth = scaled(1) > 1 ? least + 2 : least;
    const auto since = std::chrono::steady_clock::now();
    const Exploration found = exhaust(config, depth, UINT64_MAX, 64);
    report(fmt::format("every order of {} steps, {}", depth, name), found, since);
    EXPECT_EQ(found.violation, "") << found.where;
    EXPECT_GT(found.states, 1000u);
  }
}

#if defined(KVASIR_MUTANTS)

struct Fault {
  Mutant mutant;
  const char* name;
  WorldConfig (*world)();
  const char* says;  // what is found
};

WorldConfig any() {
  return {};
}

// Without prefixes, of which a message of another life would be found first.
WorldConfig no_prefixes() {
  WorldConfig config;
  config.prefixes = 0;
  return config;
}

WorldConfig calm_loans() {
  WorldConfig config = calm();
  config.prefixes = 0;
  return config;
}

class ExplorerFinds : public testing::TestWithParam<Fault> {};

TEST_P(ExplorerFinds, TheFault) {
  const auto start = std::chrono::steady_clock::now();
  ScopedMutant on(GetParam().mutant);
  const Exploration found = wander(GetParam().world(), 1, 400, 400);
  report(GetParam().name, found, start);
  EXPECT_THAT(found.violation, testing::HasSubstr(GetParam().says));
  fmt::print("{}: {}: {}\n", GetParam().name, found.where, found.violation);
}

INSTANTIATE_TEST_SUITE_P(
    Seeded, ExplorerFinds,
    testing::Values(Fault{Mutant::kStaleEpochTaken, "stale_epoch", no_prefixes, ", which holds 0"},
                    Fault{Mutant::kPinnedFrameFreed, "pinned_frame", any, "is freed while it is read"},
                    Fault{Mutant::kSettledLent, "settled_lent", calm_loans, " lends what a settlement"},
                    Fault{Mutant::kQueueJumped, "queue_jumped", any, ", which came earlier"},
                    Fault{Mutant::kHeadDelayed, "head_delayed", any, " gathers, which came earlier"},
                    Fault{Mutant::kRestPassed, "rest_passed", any, " waits for, which came earlier"},
                    Fault{Mutant::kPartKept, "part_kept", any, " keeps a part of"},
                    Fault{Mutant::kDueUntold, "due_untold", any, " lends is due"},
                    Fault{Mutant::kPushForgotten, "push_forgotten", any, " waits although there is room"},
                    Fault{Mutant::kRefuserRecommended, "refuser_recommended", any, ", which has refused"},
                    Fault{Mutant::kOldTermObeyed, "old_term", any, " obeys term "},
                    Fault{Mutant::kLateGrantKept, "late_grant", any, ", which holds 0"},
                    Fault{Mutant::kRowsForTheDead, "rows_for_the_dead", only_prompts, ", which holds 0"},
                    Fault{Mutant::kRowsOfOthers, "rows_of_others", only_prompts, " gets other rows"},
                    Fault{Mutant::kKeptPrefixFreed, "kept_prefix", only_prefixes, " blocks and lends "},
                    Fault{Mutant::kOlderRobbed, "older_robbed", any, " is called back for a later request"}),
    [](const auto& fault) { return std::string(fault.param.name); });

#endif

}  // namespace
}  // namespace kvasir::cluster::test
