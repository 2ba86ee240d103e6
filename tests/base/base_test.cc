#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fnv1a.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "base/untrusted_text.h"

namespace kvasir {
namespace {

TEST(Units, ParsesSizes) {
  EXPECT_EQ(parse_bytes("1536").value(), 1536u);
  EXPECT_EQ(parse_bytes("64KiB").value(), 64 * kKiB);
  EXPECT_EQ(parse_bytes("1.5GiB").value(), kGiB + kGiB / 2);
  EXPECT_EQ(parse_bytes("2GB").value(), 2'000'000'000u);
}

TEST(Units, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "5 GiB", "4Gib", "nan", "inf", "1e30"}) {
    auto r = parse_bytes(text);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_NE(r.status().message().find(text), std::string::npos);
  }
}

TEST(Units, FormatsSizes) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(3 * kGiB), "3.00 GiB");
}

TEST(Units, Counts) {
  EXPECT_EQ(count_of(1, "thread"), "1 thread");
  EXPECT_EQ(count_of(0, "thread"), "0 threads");
  EXPECT_EQ(count_of(2, "copy", "copies"), "2 copies");
  EXPECT_EQ(count_of(1, "copy", "copies"), "1 copy");
}

TEST(UntrustedText, IsShownInOneLine) {
  EXPECT_EQ(one_line("a b", 9), "a b");
  EXPECT_EQ(one_line("a\n'\\\xff", 9), "a\\x0a\\x27\\x5c\\xff");
  EXPECT_EQ(one_line("abcd", 4), "abcd");
  EXPECT_EQ(one_line("abcde", 4), "abcd...");
}

TEST(UntrustedText, CountsTheDepthOfJson) {
  EXPECT_FALSE(nests_deeper("1", 0));
  EXPECT_TRUE(nests_deeper("[]", 0));
  EXPECT_FALSE(nests_deeper("[{},[],{}]", 2));
  EXPECT_TRUE(nests_deeper("[{},[],[{}]]", 2));
  EXPECT_FALSE(nests_deeper(R"(["[[[[",{"\"[[[":1}])", 2));
  EXPECT_TRUE(nests_deeper(R"(["\\",[[1]]])", 2));
}

// From the authors' list of test vectors.
TEST(Fnv1a, IsThePublishedHash) {
  const auto hash = [](std::string_view text) {
    Fnv1a h;
    h.add(text);
    return h.value();
  };
  EXPECT_EQ(hash(""), 0xCBF29CE484222325u);
  EXPECT_EQ(hash("a"), 0xAF63DC4C8601EC8Cu);
  EXPECT_EQ(hash("foobar"), 0x85944171F73967E8u);
}

Result<int> half(int x) {
  if (x % 2) return error(ErrorCode::kInvalidArgument, "{} is odd", x);
  return x / 2;
}
Status quarter(int x, int* out) {
  KV_ASSIGN_OR_RETURN(int h, half(x));
  KV_ASSIGN_OR_RETURN(*out, half(h));
  return {};
}

TEST(Status, Propagates) {
  int out = 0;
  EXPECT_TRUE(quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
  Status s = quarter(6, &out);
  EXPECT_FALSE(s.ok());
  EXPECT_EQ(s.message(), "3 is odd");
}

TEST(Random, CounterDecidesTheValue) {
  Random a(7);
  uint64_t first = a.bits(), second = a.bits();
  EXPECT_EQ(Random(7).bits(), first);
  EXPECT_EQ(Random(7, 1).bits(), second);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) seen.insert(random_bits(i / 100, (i / 10) % 10, i % 10));
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(VirtualClock, MovesOnlyWhenTold) {
  VirtualClock clock;
  EXPECT_EQ(clock.now(), 0);
  clock.advance(5);
  EXPECT_EQ(clock.now(), 5);
}

TEST(VirtualClock, StopsWhereSomethingIsToHappen) {
  VirtualClock clock;
  std::vector<std::pair<char, Nanos>> seen;
  const auto note = [&](char name) { return [&, name] { seen.emplace_back(name, clock.now()); }; };
  clock.at(20, note('b'));
  clock.at(10, note('a'));
  clock.at(20, [&] {
    note('c')();
    clock.at(25, note('d'));  // made on the way
    clock.at(40, note('e'));
  });
  EXPECT_EQ(clock.next_event(), 10);
  clock.advance(30);
  const std::vector<std::pair<char, Nanos>> expected = {{'a', 10}, {'b', 20}, {'c', 20}, {'d', 25}};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(clock.now(), 30);
  clock.at(7, note('f'));  // has passed
  clock.advance(0);
  EXPECT_EQ(seen.back(), (std::pair<char, Nanos>{'f', 30}));
  EXPECT_EQ(clock.next_event(), 40);
}

}  // namespace
}  // namespace kvasir
