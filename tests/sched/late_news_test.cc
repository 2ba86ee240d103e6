// What is news of late requests, by hand.
#include "sched/mechanisms/late_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace kvasir::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr TokenDue kMissed{.missed = true};

Nanos at(double seconds) {
  return from_seconds(seconds);
}

SeqView arrived(uint64_t id, double seconds, Slo slo) {
  SeqView s;
  s.id = SeqId{id};
  s.arrival = at(seconds);
  s.slo = slo;
  return s;
}

std::vector<std::string> words(LateNews& news) {
  std::vector<std::string> out;
  for (const Reason& r : news.take()) out.push_back(to_string(r));
  return out;
}

TEST(LateNews, AMissOfTtftIsNewsInTheFirstPlanAfterIt) {
  LateNews news;
  const SeqView s = arrived(1, 10, {.ttft_ms = 500});
  news.begin(at(10.4));
  news.begin(at(10.6));
  news.note(s, kMissed, 0);
  EXPECT_THAT(words(news), ElementsAre("late 1: missed ttft of 500 ms by 100 ms"));
  news.begin(at(10.8));
  news.note(s, kMissed, 0);
  EXPECT_THAT(words(news), IsEmpty());
}

TEST(LateNews, ATokenThatCameTooLateIsLateByWhenItCame) {
  LateNews news;
  SeqView s = arrived(1, 10, {.ttft_ms = 500});
  s.first_token_time = at(10.55);
  news.begin(at(10.45));
  news.begin(at(10.7));
  news.note(s, kMissed, 0);
  EXPECT_THAT(words(news), ElementsAre("late 1: missed ttft of 500 ms by 50 ms"));
}

TEST(LateNews, AMissOfE2elIsNewsOnceThoughTtftWasMissedBefore) {
  LateNews news;
  const SeqView s = arrived(1, 10, {.ttft_ms = 500, .e2el_ms = 2000});
  const auto told_at = [&](double seconds) {
    news.begin(at(seconds));
    news.note(s, kMissed, 0);
    return words(news);
  };
  news.begin(at(10.4));
  EXPECT_THAT(told_at(10.6), ElementsAre("late 1: missed ttft of 500 ms by 100 ms"));
  EXPECT_THAT(told_at(11.9), IsEmpty());
  EXPECT_THAT(told_at(12.5), ElementsAre("late 1: missed e2el of 2 s by 500 ms"));
  EXPECT_THAT(told_at(13), IsEmpty());
}

TEST(LateNews, MissesOfTtftAndE2elBetweenTwoPlansAreBothTold) {
  LateNews news;
  const SeqView s = arrived(1, 10, {.ttft_ms = 500, .e2el_ms = 2000});
  news.begin(at(10.4));
  news.begin(at(12.5));
  news.note(s, kMissed, 0);
  EXPECT_THAT(words(news), UnorderedElementsAre("late 1: missed ttft of 500 ms by 2 s",
                                                "late 1: missed e2el of 2 s by 500 ms"));
}

TEST(LateNews, AllElseIsToldOnceInALife) {
  LateNews news;
  SeqView s = arrived(1, 10, {.tbt_ms = 100});
  s.first_token_time = s.last_token_time = at(11);
  news.begin(at(11.3));
  news.note(s, kMissed, 0);
  EXPECT_THAT(words(news), ElementsAre("late 1: a gap was longer than 100 ms"));
  s.last_token_time = at(11.3);
  news.begin(at(11.5));
  news.note(s, kMissed, 0);
  news.note(s, {.left_s = -1, .behind = true}, 0);
  news.note(s, {}, 0.2);
  EXPECT_THAT(words(news), IsEmpty());
  news.keep_only({2, 3});
  EXPECT_FALSE(news.any());
  news.note(s, {}, 0.2);
  news.note(arrived(2, 10, {.tpot_ms = 50}), {.left_s = -0.25, .behind = true}, 0);
  news.note(arrived(3, 10, {.tpot_ms = 50, .e2el_ms = 1}), {.left_s = -0.25, .behind = true}, 0);
  news.note(arrived(4, 10, {.tbt_ms = 50}), {}, std::numeric_limits<double>::infinity());
  news.note(arrived(5, 10, {.tbt_ms = 50}), {}, 0.05);
  news.note_stretched(arrived(6, 10, {}), 17);
  news.note_stretched(arrived(6, 10, {}), 18);
  EXPECT_THAT(words(news), ElementsAre("late 1: its gap of 100 ms is given up, as all below 200 ms are",
                                       "late 2: by 250 ms its mean gap will exceed tpot",
                                       "late 3: by 250 ms it will exceed e2el",
                                       "late 4: its gap of 50 ms is given up, as all are",
                                       "late 6: without bounds, it took 17 times as long as alone"));
}

TEST(LateNews, TheStateComesBack) {
  LateNews news, other;
  news.begin(at(10));
  news.note_stretched(arrived(7, 1, {}), 17);
  ASSERT_TRUE(other.restore(news.save()).ok());
  EXPECT_EQ(other.save(), news.save());
  EXPECT_TRUE(other.any());
  other.note_stretched(arrived(7, 1, {}), 17);
  EXPECT_THAT(words(other), IsEmpty());
  for (const char* bad : {"", "x", "1 x", "1 3 2"}) EXPECT_FALSE(other.restore(bad).ok()) << bad;
}

}  // namespace
}  // namespace kvasir::test
