#include "cluster/transport/link_state.h"

#include <gtest/gtest.h>

#include "cluster/transport/socket_address.h"

namespace kvasir {
namespace {

TEST(RunTime, LeavesOutWhatTheProcessDidNotRun) {
  RunTime time(100);
  EXPECT_EQ(time.at(5'000), 0);
  EXPECT_EQ(time.at(5'060), 60);
  EXPECT_EQ(time.at(9'000'000), 160);  // stopped in between
  EXPECT_EQ(time.at(9'000'010), 170);
}

TEST(SendProgress, IsOverdueOnlyWhileSomethingIsNotTaken) {
  SendProgress progress;
  EXPECT_FALSE(progress.overdue(1'000'000, 10));
  progress.sent(100);
  progress.sent(105);
  EXPECT_FALSE(progress.overdue(110, 10));
  EXPECT_TRUE(progress.overdue(111, 10));
  EXPECT_TRUE(progress.taken(1, 111));  // it moves
  EXPECT_FALSE(progress.overdue(121, 10));
  EXPECT_TRUE(progress.overdue(122, 10));
  EXPECT_TRUE(progress.taken(1, 122));  // no news is no progress
  EXPECT_TRUE(progress.overdue(122, 10));
  EXPECT_TRUE(progress.taken(2, 123));
  EXPECT_FALSE(progress.overdue(1'000'000, 10));
  progress.sent(1'000'000);  // begins anew
  EXPECT_FALSE(progress.overdue(1'000'010, 10));
}

TEST(SendProgress, RefusesReportsThatCannotBe) {
  SendProgress progress;
  progress.sent(0);
  progress.sent(0);
  EXPECT_FALSE(progress.taken(3, 1));
  EXPECT_TRUE(progress.taken(2, 1));
  EXPECT_FALSE(progress.taken(1, 1));
}

TEST(TakenReports, TellsEachNumberOnce) {
  TakenReports reports;
  EXPECT_EQ(reports.due(), 0u);
  reports.took();
  reports.took();
  EXPECT_EQ(reports.due(), 2u);
  EXPECT_EQ(reports.due(), 0u);
  reports.took();
  EXPECT_EQ(reports.due(), 3u);
}

TEST(SocketAddress, IsReadAndWritten) {
  const auto v4 = parse_address("127.0.0.1:80", Names::kNumeric);
  ASSERT_TRUE(v4.ok()) << v4.status().message();
  EXPECT_EQ(v4->host(), "127.0.0.1");
  EXPECT_EQ(v4->port(), 80);
  EXPECT_FALSE(v4->is_any());
  EXPECT_TRUE(v4->is_loopback());
  const auto v6 = parse_address("[::1]:65535", Names::kNumeric);
  ASSERT_TRUE(v6.ok()) << v6.status().message();
  EXPECT_EQ(join_address(v6->host(), v6->port()), "[::1]:65535");
  EXPECT_TRUE(v6->is_loopback());
  for (const char* open : {"0.0.0.0:1", "[::]:1", "10.0.0.127:1", "[fe80::1]:1"}) {
    EXPECT_FALSE(parse_address(open, Names::kNumeric)->is_loopback()) << open;
  }
  EXPECT_TRUE(parse_address("0.0.0.0:1", Names::kNumeric)->is_any());
  EXPECT_TRUE(parse_address("[::]:1", Names::kNumeric)->is_any());
  for (const char* bad : {"", ":", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:65536", "127.0.0.1:-1",
                          "::1:80", "127.0.0.1:8o", "[]:80", "name:80"}) {
    EXPECT_FALSE(parse_address(bad, Names::kNumeric).ok()) << bad;
  }
}

}  // namespace
}  // namespace kvasir
