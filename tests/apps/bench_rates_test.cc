// Rates as flags write them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "apps/bench/rates.h"
#include "bench_numbers.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<RateSpec> parsed(std::string_view text) {
  const auto rates = parse_rates("--request-rate", text);
  EXPECT_TRUE(rates.ok()) << rates.status().message();
  return rates.ok() ? *rates : std::vector<RateSpec>();
}

TEST(Rates, ListsAndRangesWithBothEnds) {
  EXPECT_THAT(parsed("2"), ElementsAre(RateSpec{2, false}));
  EXPECT_THAT(parsed("inf, 0.5"), ElementsAre(RateSpec{kInf, false}, RateSpec{0.5, false}));
  EXPECT_THAT(parsed("1:2:0.5,8"),
              ElementsAre(RateSpec{1, false}, RateSpec{1.5, false}, RateSpec{2, false}, RateSpec{8, false}));
  EXPECT_THAT(parsed("1:2.9:1"), ElementsAre(RateSpec{1, false}, RateSpec{2, false}));
  EXPECT_THAT(parsed("3:3:1"), ElementsAre(RateSpec{3, false}));
  EXPECT_EQ(parsed("1:8:0.5").size(), 15u);
  EXPECT_EQ(parsed("1:1000:1").size(), 1000u);
}

TEST(Rates, SumsOfStepsAreTheNumbersMeant) {
  const auto rates = parsed("0.5x:1.3x:0.1x");
  ASSERT_EQ(rates.size(), 9u);
  const double meant[] = {.5, .6, .7, .8, .9, 1, 1.1, 1.2, 1.3};
  for (size_t i = 0; i < rates.size(); ++i) EXPECT_EQ(rates[i], (RateSpec{meant[i], true})) << i;
  EXPECT_EQ(rates[2].text(), "0.7x");
  EXPECT_EQ(parsed("0.1:0.3:0.1").back().value, 0.3);
  EXPECT_EQ(parsed("inf").front().text(), "inf");
}

TEST(Rates, MultiplesAreResolvedByTheCapacity) {
  const auto rates = parsed("0.5x,3,inf,1x");
  EXPECT_THAT(resolve_rates("--request-rate", rates, 8.0).value(), ElementsAre(4, 3, kInf, 8));
  const auto unknown = resolve_rates("--request-rate", rates, std::nullopt);
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.status().message(), HasSubstr("--request-rate 0.5x: the capacity of a server is not"));
  EXPECT_THAT(resolve_rates("--request-rate", parsed("1,2"), std::nullopt).value(), ElementsAre(1, 2));
}

TEST(Rates, NonsenseIsRefusedInOneLine) {
  for (const auto& [text, words] : std::vector<std::pair<const char*, const char*>>{
           {"", "expected requests per second"},
           {",", "expected requests per second"},
           {"x", "--request-rate x: expected"},
           {"1,y", "--request-rate y: expected"},
           {"0", "--request-rate 0: expected"},
           {"-1", "--request-rate -1: expected"},
           {"-1x", "--request-rate -1x: expected"},
           {"infx", "--request-rate infx: expected"},
           {"nan", "--request-rate nan: expected"},
           {"1e-9", "--request-rate 1e-9: expected"},
           {"1e10", "--request-rate 1e10: expected"},
           {"1:2", "--request-rate 1:2: expected"},
           {"1:2:3:4", "--request-rate 1:2:3:4: expected"},
           {"1::2", "--request-rate 1::2: expected"},
           {"1:inf:1", "--request-rate 1:inf:1: expected"},
           {"-1:2:1", "--request-rate -1:2:1: expected"},
           {"8:1:1", "--request-rate 8:1:1: a range ascends"},
           {"1:8:-1", "--request-rate 1:8:-1: a range ascends"},
           {"1:8:0", "--request-rate 1:8:0: a range ascends"},
           {"0.5x:1.3x:0.1", "all of a range's numbers end in x, or none"},
           {"1:1001:1", "more than 1000 rates"},
           {"1:2:1e-9", "more than 1000 rates"},
           {"1:600:1,1:600:1", "more than 1000 rates"}}) {
    const auto rates = parse_rates("--request-rate", text);
    ASSERT_FALSE(rates.ok()) << text;
    EXPECT_EQ(rates.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(rates.status().message(), HasSubstr(words));
    EXPECT_EQ(rates.status().message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace kvasir
