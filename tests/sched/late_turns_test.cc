// Shares of the credit, by hand.
#include "sched/mechanisms/late_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace kvasir::test {
namespace {

// Turns of one second each among weights of which requests always wait; the first of the least has it.
std::string turns_of(LateTurns& turns, const std::vector<float>& weights, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    turns.observe(weights);
    const auto next = std::min_element(weights.begin(), weights.end(),
                                       [&](float a, float b) { return turns.had_s(a) < turns.had_s(b); });
    out += static_cast<char>('a' + (next - weights.begin()));
    turns.spend(*next, 1);
  }
  return out;
}

TEST(LateTurns, AWeightOfThreeHasThreeTurnsOfFour) {
  LateTurns turns;
  EXPECT_EQ(turns_of(turns, {1, 3}, 8), "abbbabbb");
}

TEST(LateTurns, CostsCountNotTurns) {
  LateTurns turns;
  const std::vector<float> weights = {1, 2};
  turns.observe(weights);
  turns.spend(1, 3);
  turns.spend(2, 4);
  EXPECT_EQ(turns.had_s(1), 3);
  EXPECT_EQ(turns.had_s(2), 2);
}

TEST(LateTurns, AWeightThatDidNotWaitHasSavedNothing) {
  LateTurns turns;
  EXPECT_EQ(turns_of(turns, {1}, 5), "aaaaa");
  EXPECT_EQ(turns_of(turns, {1, 4}, 5), "abbbb") << "not all to the second for the five before";
}

TEST(LateTurns, AWeightThatWasAheadStaysSo) {
  LateTurns turns;
  const std::vector<float> both = {1, 2};
  turns.observe(both);
  turns.spend(1, 5);
  turns.observe(std::vector<float>{2});
  turns.observe(both);
  EXPECT_EQ(turns.had_s(1), 5) << "it cannot forget its turn by leaving";
  turns.observe(std::vector<float>{2});
  turns.spend(2, 20);
  turns.observe(both);
  EXPECT_EQ(turns.had_s(1), 10) << "but is not ahead any more";
}

TEST(LateTurns, AfterANewStartAllAreEqual) {
  LateTurns turns;
  const std::vector<float> both = {1, 2};
  turns.observe(both);
  turns.spend(1, 5);
  turns.observe({});
  turns.observe(both);
  EXPECT_EQ(turns.had_s(1), turns.had_s(2));
}

TEST(LateTurns, TheStateComesBack) {
  LateTurns turns, other;
  turns_of(turns, {1, 0.0625f}, 3);
  ASSERT_TRUE(other.restore(turns.save()).ok());
  EXPECT_EQ(other.save(), turns.save());
  EXPECT_EQ(turns_of(other, {1, 0.0625f}, 20), turns_of(turns, {1, 0.0625f}, 20));
  EXPECT_TRUE(other.restore("").ok());
  for (const char* bad : {"x", "1", "1 2", "0 1 1", "1 2 1 x"}) EXPECT_FALSE(other.restore(bad).ok()) << bad;
}

}  // namespace
}  // namespace kvasir::test
