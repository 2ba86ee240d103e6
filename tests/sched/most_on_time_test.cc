// Moore-Hodgson and Smith backwards, by hand and against all choices and orders.
#include "sched/mechanisms/most_on_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "sched/mechanisms/least_mean_wait.h"

namespace kvasir::test {
namespace {

using Indices = std::vector<uint32_t>;
constexpr double kNever = std::numeric_limits<double>::infinity();

TEST(MostOnTime, DropsTheLargestWhenTheLatestDoesNotFit) {
  // By due time 0, 1, 2: 4, then 4 + 1 = 5, then 5 + 3 = 8 > 7: the largest, of 4 s, goes, and 1 + 3 = 4
  // fits.
  const std::vector<TimedJob> jobs = {{4, 4}, {1, 5}, {3, 7}};
  const OnTimeChoice choice = most_on_time(jobs);
  EXPECT_EQ(choice.kept, (Indices{1, 2}));
  EXPECT_EQ(choice.dropped, (Indices{0}));
}

TEST(MostOnTime, KeepsAllThatFit) {
  const std::vector<TimedJob> jobs = {{2, kNever}, {2, 4}, {2, 2}};
  EXPECT_EQ(most_on_time(jobs).kept, (Indices{2, 1, 0}));
  EXPECT_TRUE(most_on_time(jobs).dropped.empty());
  EXPECT_TRUE(most_on_time({}).kept.empty());
}

TEST(MostOnTime, AJobThatCannotBeInTimeAloneIsDropped) {
  const std::vector<TimedJob> jobs = {{1, 1}, {5, -2}, {0, -1}};
  const OnTimeChoice choice = most_on_time(jobs);
  EXPECT_EQ(choice.kept, (Indices{0}));
  EXPECT_EQ(choice.dropped, (Indices{1, 2}));
}

TEST(MostOnTime, DropsTheLargestForItsWorth) {
  // As in the first test; but 4 s are worth 4 and 3 s are worth 1: the third goes.
  std::vector<TimedJob> jobs = {{4, 4, 4}, {1, 5}, {3, 7}};
  EXPECT_EQ(most_on_time(jobs).dropped, (Indices{2}));
  // Of 1, 1 and 5 s by 5 s the last is worth most: both others have to go, which of alike ones the later
  // first.
  jobs = {{1, 5}, {1, 5}, {5, 5, 100}};
  EXPECT_EQ(most_on_time(jobs).kept, (Indices{2}));
  EXPECT_EQ(most_on_time(jobs).dropped, (Indices{1, 0}));
  // Weights that are all alike are as none.
  jobs = {{4, 4, 0.125}, {1, 5, 0.125}, {3, 7, 0.125}};
  EXPECT_EQ(most_on_time(jobs).dropped, (Indices{0}));
}

TEST(LeastMeanWait, TheSmallestForItsWorthGoesFirst) {
  // 4 / 8 < 1 / 1 < 3 / 2.
  const std::vector<TimedJob> jobs = {{1, kNever}, {4, kNever, 8}, {3, kNever, 2}};
  EXPECT_EQ(least_mean_wait(jobs, Indices{0, 1, 2}), (Indices{1, 0, 2}));
}

bool all_in_time(const std::vector<TimedJob>& jobs, Indices order) {
  double end = 0;
  return std::all_of(order.begin(), order.end(),
                     [&](uint32_t i) { return (end += jobs[i].size_s) <= jobs[i].due_s; });
}

double sum_of_ends(const std::vector<TimedJob>& jobs, const Indices& order) {
  double end = 0, sum = 0;
  for (uint32_t i : order) sum += end += jobs[i].size_s;
  return sum;
}

std::vector<TimedJob> random_jobs(Random& random) {
  std::vector<TimedJob> jobs(static_cast<size_t>(random.between(1, 7)));
  for (TimedJob& j : jobs) {
    j = {static_cast<double>(random.between(1, 9)), static_cast<double>(random.between(0, 25))};
  }
  return jobs;
}

TEST(MostOnTime, NoOtherChoiceKeepsMore) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const std::vector<TimedJob> jobs = random_jobs(random);
    size_t most = 0;
    for (uint32_t mask = 0; mask < 1u << jobs.size(); ++mask) {
      Indices by_due;
      for (uint32_t i = 0; i < jobs.size(); ++i) {
        if (mask >> i & 1) by_due.push_back(i);
      }
      std::sort(by_due.begin(), by_due.end(),
                [&](uint32_t a, uint32_t b) { return jobs[a].due_s < jobs[b].due_s; });
      if (all_in_time(jobs, by_due)) most = std::max(most, by_due.size());
    }
    const OnTimeChoice choice = most_on_time(jobs);
    EXPECT_EQ(choice.kept.size(), most);
    EXPECT_TRUE(all_in_time(jobs, choice.kept));
    EXPECT_EQ(choice.kept.size() + choice.dropped.size(), jobs.size());
  }
}

TEST(LeastMeanWait, TheLargestThatMayBeLastIsLast) {
  // They end at 9. Jobs 0 and 2 may be last; 0 is larger. Of the others, ending at 4, only 2 may be last.
  const std::vector<TimedJob> jobs = {{5, 20}, {1, 3}, {3, 10}};
  EXPECT_EQ(least_mean_wait(jobs, Indices{1, 2, 0}), (Indices{1, 2, 0}));
  // By size alone 1 would be the first; but then 2 would end at 4, after 3.
  const std::vector<TimedJob> tight = {{5, 20}, {1, 5}, {3, 3}};
  EXPECT_EQ(least_mean_wait(tight, Indices{2, 1, 0}), (Indices{2, 1, 0}));
}

TEST(LeastMeanWait, EqualsKeepTheirOrderAndNoneIsLost) {
  const std::vector<TimedJob> jobs(5, {0, kNever});
  EXPECT_EQ(least_mean_wait(jobs, Indices{0, 1, 2, 3, 4}), (Indices{0, 1, 2, 3, 4}));
  // Which cannot all be in time.
  const std::vector<TimedJob> late = {{5, 1}, {5, 2}};
  EXPECT_EQ(least_mean_wait(late, Indices{0, 1}), (Indices{0, 1}));
}

TEST(LeastMeanWait, NoOtherOrderInTimeIsShorter) {
  Random random(6);
  int orders = 0;
  for (int round = 0; round < 300; ++round) {
    const std::vector<TimedJob> jobs = random_jobs(random);
    const Indices kept = most_on_time(jobs).kept;
    if (kept.empty()) continue;
    const Indices chosen = least_mean_wait(jobs, kept);
    ASSERT_TRUE(all_in_time(jobs, chosen));
    Indices order = kept;
    std::sort(order.begin(), order.end());
    do {
      if (!all_in_time(jobs, order)) continue;
      ++orders;
      EXPECT_LE(sum_of_ends(jobs, chosen), sum_of_ends(jobs, order));
    } while (std::next_permutation(order.begin(), order.end()));
  }
  EXPECT_GT(orders, 1000);
}

}  // namespace
}  // namespace kvasir::test
