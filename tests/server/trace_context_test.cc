// What of the headers traceparent and tracestate is taken (W3C Trace Context, level 2).
#include "server/traces/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";

TraceContext of(const std::string& parent, const std::string& state = "") {
  HeaderList headers = {{"Host", "x"}, {"TraceParent", parent}};
  if (!state.empty()) headers.emplace_back("tracestate", state);
  return read_trace_context(headers);
}

TEST(TraceContext, IsTakenFromTheRequest) {
  const TraceContext sampled = of("00-" + kTrace + "-" + kParent + "-01", "rojo=1,congo=t61rcWkgMzE");
  EXPECT_EQ(sampled.trace_id, kTrace);
  EXPECT_EQ(sampled.parent_id, kParent);
  EXPECT_TRUE(sampled.sampled);
  EXPECT_FALSE(sampled.random);
  EXPECT_EQ(sampled.state, "rojo=1,congo=t61rcWkgMzE");
  EXPECT_EQ(sampled.span_id.size(), 16u);
  EXPECT_NE(sampled.span_id, kParent);
  EXPECT_EQ(trace_header(sampled), "00-" + kTrace + "-" + sampled.span_id + "-01");
  const TraceContext not_sampled = of("00-" + kTrace + "-" + kParent + "-02");
  EXPECT_TRUE(not_sampled.on());
  EXPECT_FALSE(not_sampled.sampled);
  EXPECT_TRUE(not_sampled.random);
}

TEST(TraceContext, ALaterVersionMayHaveMore) {
  EXPECT_TRUE(of("cc-" + kTrace + "-" + kParent + "-01").on());
  EXPECT_TRUE(of("cc-" + kTrace + "-" + kParent + "-01-what-comes-then").on());
  EXPECT_FALSE(of("cc-" + kTrace + "-" + kParent + "-01.what").on());
}

TEST(TraceContext, WhatIsNotAsTheStandardSaysCountsAsNone) {
  const std::string zeros(32, '0');
  for (const std::string& wrong : {
           std::string(),
           "00-" + kTrace + "-" + kParent + "-0",
           "00-" + kTrace + "-" + kParent + "-01-more",
           "00-" + kTrace + "-" + kParent + "-01 ",
           "ff-" + kTrace + "-" + kParent + "-01",
           "0x-" + kTrace + "-" + kParent + "-01",
           "00-" + zeros + "-" + kParent + "-01",
           "00-" + kTrace + "-" + zeros.substr(16) + "-01",
           "00-" + kTrace.substr(1) + "-0" + kParent + "-01",
           "00_" + kTrace + "-" + kParent + "-01",
           "00-" + kTrace + "_" + kParent + "-01",
           "00-" + kTrace + "-" + kParent + "_01",
           "00-" + kTrace + "-" + kParent + "-0g",
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01",
       }) {
    EXPECT_FALSE(of(wrong, "a=1").on()) << wrong;
    EXPECT_EQ(of(wrong, "a=1").state, "") << wrong;
  }
  EXPECT_FALSE(read_trace_context({}).on());
  const std::string right = "00-" + kTrace + "-" + kParent + "-01";
  EXPECT_FALSE(read_trace_context({{"traceparent", right}, {"traceparent", right}}).on()) << "two of them";
}

TEST(TraceContext, AWrongStateIsDroppedAlone) {
  const std::string parent = "00-" + kTrace + "-" + kParent + "-01";
  std::string many;
  for (int i = 0; i < 33; ++i) many += "k" + std::to_string(i) + "=v,";
  for (const std::string& wrong :
       {std::string("novalue"), std::string("a=1,a=2"), std::string("A=1"), std::string("a="),
        std::string("=1"), std::string("a=b=c"), std::string("a=\x01"), many, std::string(300, 'a') + "=1",
        "a=" + std::string(600, 'x')}) {
    EXPECT_TRUE(of(parent, wrong).on());
    EXPECT_EQ(of(parent, wrong).state, "") << wrong;
  }
  for (const std::string& right :
       {std::string("a=1, b=2 "), std::string("tenant@vendor=x,,b=y"), std::string("1a_-*/=with space")}) {
    EXPECT_EQ(of(parent, right).state, right);
  }
  // Several headers are one list.
  EXPECT_EQ(read_trace_context({{"traceparent", parent}, {"tracestate", "a=1"}, {"Tracestate", "b=2"}}).state,
            "a=1,b=2");
}

TEST(TraceContext, ANewOneIsSampledAndItsOwn) {
  const TraceContext one = new_trace_context(), other = new_trace_context();
  EXPECT_EQ(one.trace_id.size(), 32u);
  EXPECT_TRUE(one.sampled && one.random && one.parent_id.empty());
  EXPECT_NE(one.trace_id, other.trace_id);
  EXPECT_TRUE(of(trace_header(one)).on());
}

}  // namespace
}  // namespace kvasir
