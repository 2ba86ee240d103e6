// The search for the highest rate, over a simulator whose knees are known; prices and words.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "apps/plan/page.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/prices.h"
#include "apps/plan/rate_search.h"
#include "apps/plan/words.h"

namespace kvasir {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using End = FoundRate::End;

// A number in [-1, 1] of its arguments alone.
double noise(size_t policy, double rate, uint64_t seed) {
  uint64_t bits = 0x9e3779b97f4a7c15ull * (seed + 1) + 77 * policy + static_cast<uint64_t>(rate * 1e6);
  bits ^= bits >> 31;
  bits *= 0xbf58476d1ce4e5b9ull;
  bits ^= bits >> 29;
  return static_cast<double>(bits % 20001) / 10000 - 1;
}

// Attainment is 99 % below the knee and falls by `slope` points for each percent beyond 95 % of it, through
// 90 % at the knee. `wobble` points of noise make it non-monotone near the edge; the load of a seed, which
// all policies have in common, moves every knee by up to `drift`.
struct FakeSimulator {
  std::vector<double> knees;
  double slope = 2, wobble = 0, drift = 0;
  double stable_to = 1e9;  // beyond it the queue grows, whatever is attained
  size_t short_runs = 0, whole_runs = 0;
  std::set<double> rates = {};

  Trial trial(const TrialKey& key) {
    ++(key.whole ? whole_runs : short_runs);
    rates.insert(key.rate);
    const double knee = knees[key.policy] * (1 + drift * noise(0, 1, key.seed));
    const double beyond = 100 * (key.rate / knee - 1);
    const double noisy = (key.whole ? 1 : 2) * wobble * noise(key.policy, key.rate, key.seed);
    Trial out;
    out.attained = std::clamp(std::min(99.0, 90 - slope * beyond) + noisy, 0.0, 100.0);
    out.growth = key.rate > stable_to ? 100 * (1 - stable_to / key.rate) : 0;
    return out;
  }
  RunTrials run() {
    return [this](const std::vector<TrialKey>& keys) -> Result<std::vector<Trial>> {
      std::vector<Trial> out;
      for (const TrialKey& key : keys) out.push_back(trial(key));
      return out;
    };
  }
};

SearchSettings settings(double start = 1) {
  SearchSettings out;
  out.start = start;
  out.least = 0.02;
  out.most = 64;
  return out;
}

std::vector<FoundRate> search(FakeSimulator& fake, const SearchSettings& s) {
  RateSearch search(s, fake.knees.size(), fake.run());
  Result<std::vector<FoundRate>> found = search.search();
  EXPECT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(search.runs(), fake.short_runs + fake.whole_runs);
  return found.ok() ? *std::move(found) : std::vector<FoundRate>();
}

TEST(RateSearch, FindsTheKneeFromAboveAndFromBelow) {
  for (const double start : {0.05, 0.3, 1.0, 2.0, 7.0, 40.0}) {
    FakeSimulator fake{{2.0}};
    const std::vector<FoundRate> found = search(fake, settings(start));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].end, End::kMet);
    EXPECT_NEAR(found[0].rate, 2.0, 0.002) << start;
    EXPECT_LE(found[0].low, 2.0);
    EXPECT_GT(found[0].high, 2.0);
    EXPECT_NEAR(found[0].high / found[0].low, 1.02, 1e-9);
    EXPECT_GE(found[0].attained_low, 90);
    EXPECT_LT(found[0].attained_high, 90);
    EXPECT_TRUE(found[0].best);
    EXPECT_LT(fake.whole_runs, 40u);
  }
}

TEST(RateSearch, FindsTheBestOfManyThroughNoise) {
  // 12 policies, of which the seventh is best and the third within 1 % of it.
  for (const uint64_t first : {0u, 10u, 20u, 30u, 40u}) {
    FakeSimulator fake{{1.1, 0.4, 1.985, 1.7, 1.2, 0.9, 2.0, 1.5, 1.84, 0.7, 1.0, 1.3}, 2, 3, 0.02};
    SearchSettings s = settings(1.2);
    s.seeds = {first, first + 1, first + 2};
    const std::vector<FoundRate> found = search(fake, s);
    ASSERT_EQ(found.size(), 12u);
    EXPECT_THAT((std::set<size_t>{2, 6}), Contains(found[0].policy)) << first;
    EXPECT_NEAR(found[0].rate, 2.0, 0.1) << first;
    for (const FoundRate& f : found) {
      if (f.policy == 2 || f.policy == 6) {
        EXPECT_TRUE(f.best || f.level) << first << ": " << f.policy;
      }
      if (f.policy == 3) {
        EXPECT_FALSE(f.level) << "15 % behind";
      }
      if (f.policy == 1) {
        EXPECT_EQ(f.end, End::kBehind);
      }
    }
    // Those far behind cost a few short runs.
    EXPECT_LT(fake.short_runs, 45u);
    EXPECT_LT(fake.whole_runs, 120u);
  }
}

TEST(RateSearch, IsWithinFivePercentWhereAttainmentIsNotMonotone) {
  for (uint64_t first = 0; first < 50; first += 5) {
    FakeSimulator fake{{3.0, 2.4}, 1, 5, 0.01};  // five points of noise where a step of the grid is two
    SearchSettings s = settings(1);
    s.seeds = {first, first + 1, first + 2, first + 3};
    const std::vector<FoundRate> found = search(fake, s);
    EXPECT_EQ(found[0].policy, 0u) << first;
    EXPECT_NEAR(found[0].rate, 3.0, 0.15) << first;
  }
}

TEST(RateSearch, ARateThatIsNotSustainedIsNotMet) {
  FakeSimulator fake{{10.0}};
  fake.stable_to = 2;  // at 2 x / (1 - 0.03) the queue grows by 3 % of the arrivals
  const std::vector<FoundRate> found = search(fake, settings());
  EXPECT_NEAR(found[0].rate, 2 / 0.97, 0.02);
}

TEST(RateSearch, SaysWhenNothingIsMetAndWhenEverythingIs) {
  FakeSimulator never{{0.001, 0.002}};
  std::vector<FoundRate> found = search(never, settings());
  EXPECT_EQ(found[0].end, End::kNone);
  EXPECT_EQ(found[1].end, End::kNone);
  EXPECT_FALSE(found[0].best);
  EXPECT_EQ(never.whole_runs, 0u);
  FakeSimulator always{{1e6, 0.5}};
  found = search(always, settings());
  EXPECT_EQ(found[0].end, End::kAlways);
  EXPECT_EQ(found[0].policy, 0u);
  EXPECT_TRUE(found[0].best);
  EXPECT_EQ(found[1].end, End::kBehind);
}

// Short runs are far off, so that the strides of the long ones jump over the ends of what is tried.
TEST(RateSearch, StridesStopAtTheEndsWhichAreTried) {
  const auto found = [](double short_knee, double knee) {
    FakeSimulator fake{{knee}};
    RateSearch search(settings(), 1, [&](const std::vector<TrialKey>& keys) -> Result<std::vector<Trial>> {
      fake.knees = {keys.front().whole ? knee : short_knee};
      return fake.run()(keys);
    });
    return search.search().value().front();
  };
  FoundRate one = found(3, 62);
  EXPECT_EQ(one.end, End::kMet);
  EXPECT_NEAR(one.rate, 62, 0.1);
  one = found(1, 0.021);
  EXPECT_EQ(one.end, End::kMet);
  EXPECT_NEAR(one.rate, 0.021, 0.0001);
  one = found(3, 70);
  EXPECT_EQ(one.end, End::kAlways);
  EXPECT_LE(one.rate, 64);
  EXPECT_GT(one.rate, 64 / 1.02);
  EXPECT_EQ(one.low, one.rate);
  one = found(1, 0.015);
  EXPECT_EQ(one.end, End::kNone);
  EXPECT_EQ(one.rate, 0);
  EXPECT_GE(one.high, 0.02);
}

TEST(RateSearch, AStartThatMissesEndsAQuestionAboutMore) {
  FakeSimulator fake{{0.5}};
  SearchSettings s = settings(1);
  s.only_above_start = true;
  EXPECT_EQ(search(fake, s)[0].end, End::kNone);
  EXPECT_EQ(fake.short_runs, 1u);
  FakeSimulator near{{0.98}};  // so near that long runs must tell
  EXPECT_NEAR(search(near, s)[0].rate, 0.98, 0.002);
}

TEST(RateSearch, OneSeedHasNoInterval) {
  FakeSimulator fake{{2.0}};
  SearchSettings s = settings();
  s.seeds = {7};
  const std::vector<FoundRate> found = search(fake, s);
  EXPECT_NEAR(found[0].rate, 2.0, 0.002);
  EXPECT_EQ(found[0].half_width, 0);
}

TEST(RateSearch, AnErrorOfARunIsTheSearchs) {
  RateSearch search(settings(), 1, [](const std::vector<TrialKey>&) -> Result<std::vector<Trial>> {
    return error(ErrorCode::kExhausted, "no room");
  });
  EXPECT_EQ(search.search().status().message(), "no room");
}

FoundRate met(size_t policy, std::vector<double> by_seed) {
  FoundRate f;
  f.policy = policy;
  f.end = End::kMet;
  for (double r : by_seed) f.rate += r / static_cast<double>(by_seed.size());
  f.by_seed = std::move(by_seed);
  return f;
}

TEST(RateSearch, LevelIsWhatTheSeedsCannotTell) {
  std::vector<FoundRate> found = {met(0, {1.8, 1.85, 1.9}), met(1, {2.0, 2.1, 2.2}), met(2, {2.0, 2.0, 2.2}),
                                  met(3, {2.1, 1.9, 2.0})};
  rank(found);
  EXPECT_EQ(found[0].policy, 1u);
  EXPECT_TRUE(found[0].best);
  EXPECT_TRUE(found[1].level) << "1.6 % behind";
  EXPECT_EQ(found[2].policy, 3u);
  EXPECT_TRUE(found[2].level) << "the difference varies more than it is";
  EXPECT_EQ(found[3].policy, 0u);
  EXPECT_FALSE(found[3].level) << "12 % behind";
}

TEST(Prices, AreReadFromYamlAndJson) {
  Result<Prices> prices = parse_prices("h100: 2.5\nl40s: 0.9\n", "p.yaml");
  ASSERT_TRUE(prices.ok()) << prices.status().message();
  EXPECT_THAT(*prices, ElementsAre(std::pair<std::string, double>("h100", 2.5),
                                   std::pair<std::string, double>("l40s", 0.9)));
  prices = parse_prices(R"({"h100": 2.5, "a100-40g": 1})", "p.json");
  ASSERT_TRUE(prices.ok()) << prices.status().message();
  EXPECT_EQ(prices->at(1).second, 1);
  for (const char* bad : {"h100: cheap\n", "h100: -1\n", "- h100\n", "", "h100: [1]\n"}) {
    const Result<Prices> got = parse_prices(bad, "p.yaml");
    EXPECT_FALSE(got.ok()) << bad;
    EXPECT_THAT(std::string(got.status().message()), HasSubstr("p.yaml:")) << bad;
  }
  EXPECT_THAT(std::string(read_prices("/no/such").status().message()), HasSubstr("--prices: "));
}

PlanAnswer answer() {
  PlanAnswer a;
  a.model = "m<1>";
  a.device = "d";
  a.workload = "w";
  a.bounds = {"time to the first token (TTFT) at most 1 s"};
  a.capacity = 2;
  a.residence_s = 10;
  a.seeds = 3;
  a.run_requests = 900;
  a.run_seconds = 200;
  FoundRate best = met(0, {2.0, 2.1, 2.2});
  best.half_width = 0.25;
  best.low = 2.08;
  best.high = 2.12;
  best.attained_low = 91.2;
  best.half_low = 1.4;
  best.attained_high = 88.75;
  best.best = true;
  FoundRate level = met(1, {2.0, 2.1, 2.15});
  level.level = true;
  FoundRate behind;
  behind.policy = 2;
  behind.low = 1.2;
  behind.high = 1.5;
  a.policies = {{"first", best, {}}, {"second", level, {}}, {"third", behind, {}}};
  a.policies[0].usage.limited = 63;
  a.left_out = {{"away", "needs a host tier: give --kv-offloading-size"}};
  a.what_ifs = {{WhatIf::Of::kMemory, "twice the KV memory", "first", 2.84, 0.352, ""},
                {WhatIf::Of::kArithmetic, "twice the arithmetic", "first", 2.1, 0.001, ""}};
  return a;
}

TEST(PlanWords, SayTheRateItsIntervalAndWhatIsLevel) {
  const std::string text = answer_text(answer());
  EXPECT_THAT(text,
              HasSubstr("Highest rate: 2.10 requests/s under first, with 90 % of the requests meeting all "
                        "bounds in steady state (95 % interval 1.85 to 2.35, 3 seeds)."));
  EXPECT_THAT(text, HasSubstr("At 2.08 requests/s 91.2 +- 1.4 % of them do, at 2.12 88.8 %."));
  EXPECT_THAT(text, HasSubstr("1.05 times what the system serves when requests always wait (2.00)"));
  EXPECT_THAT(text,
              HasSubstr("Level with it, as far as these seeds tell: second (2.08); then comes third with "
                        "1.20 to 1.50."));
  EXPECT_THAT(
      text,
      HasSubstr("What binds: the KV memory; more of it gains most (+35 %); over whole runs at that rate, "
                "requests wait for memory or a slot 63 % of the time"));
  EXPECT_THAT(text, HasSubstr("What would help most: twice the KV memory, +35 %.\n"));
  EXPECT_THAT(text, HasSubstr("20 times what a request is in the full system"));
}

TEST(PlanWords, SayThatNothingHelpsThatNothingIsMetAndThatASeedHasNoInterval) {
  PlanAnswer a = answer();
  a.what_ifs[0].gain = 0.02;
  EXPECT_THAT(answer_text(a), HasSubstr("none of the changes that were tried gains 5 %"));
  EXPECT_THAT(binding_of(a).word, HasSubstr("the bounds"));
  a.policies[0].found.half_width = 0;
  EXPECT_THAT(answer_text(a), HasSubstr("in steady state (3 seeds, all with this rate)."));
  a.seeds = 1;
  EXPECT_THAT(answer_text(a), HasSubstr("(one seed, so no interval: --seeds 3 gives one)"));
  a.policies[0].found.attained_high = 93;
  EXPECT_THAT(answer_text(a), HasSubstr("at 2.12 93.0 %, but the queue grows, or single seeds miss by far."));
  a.run_seconds = 20;
  EXPECT_THAT(answer_text(a), HasSubstr("That is short"));
  for (PlannedPolicy& p : a.policies) {
    p.found = {};
    p.found.end = End::kNone;
  }
  EXPECT_THAT(answer_text(a), HasSubstr("No rate is met: even at a fiftieth"));
}

TEST(PlanWords, FasterStepsBindOnlyWhereNothingElseDoes) {
  PlanAnswer a = answer();
  a.what_ifs.insert(a.what_ifs.begin(), {WhatIf::Of::kSpeed, "steps in half the time", "first", 3, 0.5, ""});
  EXPECT_EQ(binding_of(a).word, "the KV memory") << "35 % of 50";
  a.what_ifs.front().gain = 1.2;
  EXPECT_EQ(binding_of(a).word, "the time of steps");
}

TEST(PlanWords, CountDevicesAndWhatTheyCost) {
  PlanAnswer a = answer();
  a.load = 10;
  a.devices = {{"d", "first", 2.1, 0.25, 2, 1.5, ""},
               {"e", "first", 5.0, 0, 2, 2.0, ""},
               {"f", "", 0, 0, 2, 9.0, "the model does not fit"}};
  EXPECT_EQ(a.devices[0].systems(10), 6) << "10 / (2.1 - 0.25) = 5.4; by the mean it would be five";
  EXPECT_EQ(a.devices[0].systems(9.25), 5) << "exactly";
  EXPECT_EQ(a.devices[0].systems(9.26), 6);
  EXPECT_EQ(a.devices[1].systems(10), 2) << "exactly";
  const std::string text = answer_text(a);
  EXPECT_THAT(text,
              HasSubstr("For 10.0 requests/s: 12 devices of d (6 systems of 2 each), 18.00 an hour; "
                        "cheapest in the table: 4 devices of e, 8.00 an hour. Each system is counted with "
                        "1.85 requests/s, the lower end of the interval."));
  EXPECT_THAT(text, HasSubstr("f       the model does not fit"));
  // 18 an hour for 36,000 requests.
  EXPECT_THAT(text, HasSubstr("0.500"));
  a.devices[0].half_width = 0;
  EXPECT_THAT(answer_text(a), HasSubstr("with 2.10 requests/s, the rate of every seed."));
  a.seeds = 1;
  EXPECT_THAT(answer_text(a), HasSubstr("with 2.10 requests/s, the rate of one seed: others may meet less."));
}

TEST(PlanWords, SayWhereTheIntervalIsTooWideToCountDevices) {
  PlanAnswer a = answer();
  a.load = 10;
  a.devices = {{"d", "first", 2.1, 2.1, 1, 1.5, ""}};
  EXPECT_EQ(a.devices[0].systems(10), 0);
  const std::string text = answer_text(a);
  EXPECT_THAT(text, HasSubstr("How many devices 10.0 requests/s take cannot be said"));
  EXPECT_THAT(text, HasSubstr("         ?  "));
}

TEST(PlanWords, WriteNumbersAsPeopleDo) {
  EXPECT_EQ(rate_text(54.93), "54.9");
  EXPECT_EQ(rate_text(1234.4), "1234");
  EXPECT_EQ(rate_text(0.012345), "0.0123");
  EXPECT_EQ(rate_text(2.06, 0.031), "2.06 +- 0.03");
  EXPECT_EQ(gain_text(-0.124), "-12 %");
  EXPECT_EQ(gain_text(0.001), "no gain");
}

TEST(PlanPage, HasTheAnswerAndNothingFromElsewhere) {
  const std::string page = plan_page(answer());
  EXPECT_THAT(page, HasSubstr("m&lt;1&gt; on d, w"));
  EXPECT_THAT(page, HasSubstr("Highest rate: 2.10 requests/s under first"));
  EXPECT_THAT(page, HasSubstr("Left out: away needs a host tier"));
  EXPECT_THAT(page, HasSubstr(">What would help</text>"));
  for (const char* never : {"<script", "http://", "https://", "url(", "nan"}) {
    EXPECT_THAT(page, Not(HasSubstr(never)));
  }
  EXPECT_EQ(plan_charts(answer()).size(), 2u);
  EXPECT_EQ(plan_charts(answer())[0].first, "highest-rate-by-policy");
  EXPECT_THAT(plan_json(answer()), HasSubstr("\"binds\": \"the KV memory\""));
  PlanAnswer odd = answer();
  odd.model = "m\xff.gguf";
  EXPECT_THAT(plan_json(odd), HasSubstr("\"model\": \"m\xef\xbf\xbd.gguf\"")) << "no UTF-8";
}

}  // namespace
}  // namespace kvasir
