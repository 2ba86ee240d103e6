// What may follow a policy's name: every text and what comes of it.
#include "sched/policy_settings.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(PolicySettings, TheNameIsWhatStandsBeforeTheFirstColon) {
  EXPECT_EQ(policy_base_name("layerkv"), "layerkv");
  EXPECT_EQ(policy_base_name("layerkv:slo=off:stages=8"), "layerkv");
  EXPECT_EQ(policy_base_name(":slo=off"), "");
  EXPECT_EQ(policy_base_name(""), "");
  EXPECT_EQ(PolicySettings("layerkv:slo=off").policy(), "layerkv");
}

TEST(PolicySettings, WhatIsNotGivenIsTheDefault) {
  PolicySettings s("p");
  EXPECT_TRUE(s.flag("a", true));
  EXPECT_FALSE(s.flag("b", false));
  // The default need not lie in the range: it may say that there is none.
  EXPECT_EQ(s.number("c", -1, 0, 1), -1);
  EXPECT_EQ(s.word("d", "none", {"x", "y"}), "none");
  EXPECT_TRUE(s.status().ok());
}

TEST(PolicySettings, WhatIsGivenIsRead) {
  // In another order than it is asked for; only the first '=' divides.
  PolicySettings s("p:w=y:n=2.5e-1:off=off:on=on:e=a=b");
  EXPECT_TRUE(s.flag("on", false));
  EXPECT_FALSE(s.flag("off", true));
  EXPECT_EQ(s.number("n", 7, 0, 1), 0.25);
  EXPECT_EQ(s.word("w", "x", {"x", "y"}), "y");
  EXPECT_EQ(s.word("e", "", {"a=b"}), "a=b");
  EXPECT_TRUE(s.status().ok()) << s.status().message();
}

TEST(PolicySettings, BothEndsOfARangeBelongToIt) {
  for (const char* text : {"p:n=0", "p:n=0.5", "p:n=0.25"}) {
    PolicySettings s(text);
    s.number("n", 0.1, 0, 0.5);
    EXPECT_TRUE(s.status().ok()) << text;
  }
}

// ---------------------------------------------------------------- refused

// Of a policy that takes a flag `slo`, a number `n` from 0 to 0.5 and a word `w`, x or y.
std::string refusal(std::string_view text) {
  PolicySettings s(text);
  s.flag("slo", true);
  s.number("n", 0.1, 0, 0.5);
  s.word("w", "x", {"x", "y"});
  const Status status = s.status();
  EXPECT_FALSE(status.ok()) << text;
  if (status.ok()) return {};
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << text;
  EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos) << text;
  return std::string(status.message());
}

TEST(PolicySettings, AnUnknownKeyIsRefusedWithThoseThatThereAre) {
  EXPECT_EQ(refusal("p:nope=1"), "policy p has no setting 'nope': there are slo, n, w");
  EXPECT_EQ(refusal("p:slo=on:SLO=on"), "policy p has no setting 'SLO': there are slo, n, w");
}

TEST(PolicySettings, WhatIsNotKeyAndValueIsRefused) {
  EXPECT_EQ(refusal("p:slo"), "policy p: 'slo' is no setting, which is KEY=VALUE");
  EXPECT_EQ(refusal("p:=on"), "policy p: '=on' is no setting, which is KEY=VALUE");
  EXPECT_EQ(refusal("p:"), "policy p: '' is no setting, which is KEY=VALUE");
  EXPECT_EQ(refusal("p:slo=on:"), "policy p: '' is no setting, which is KEY=VALUE");
}

TEST(PolicySettings, AWrongValueIsRefusedWithWhatItIsToBe) {
  EXPECT_EQ(refusal("p:slo=maybe"), "policy p: slo=maybe: it is to be one of on, off");
  EXPECT_EQ(refusal("p:slo="), "policy p: slo=: it is to be one of on, off");
  EXPECT_EQ(refusal("p:w=z"), "policy p: w=z: it is to be one of x, y");
  for (const char* value : {"", "0.5x", "x", " 0.1", "nan", "inf", "-0.1", "0.51", "1e999"}) {
    EXPECT_EQ(refusal("p:n=" + std::string(value)),
              "policy p: n=" + std::string(value) + ": it is to be a number from 0 to 0.5");
  }
}

TEST(PolicySettings, ASettingIsGivenOnce) {
  EXPECT_EQ(refusal("p:slo=on:slo=off"), "policy p: slo=off: it is to be given once");
  EXPECT_EQ(refusal("p:n=0.1:w=y:n=0.1"), "policy p: n=0.1: it is to be given once");
}

TEST(PolicySettings, TheFirstProblemIsKept) {
  // In the order in which the policy asks, behind what could not be read at all; unknown keys come last.
  EXPECT_EQ(refusal("p:w=z:n=9"), "policy p: n=9: it is to be a number from 0 to 0.5");
  EXPECT_EQ(refusal("p:n=9:slo"), "policy p: 'slo' is no setting, which is KEY=VALUE");
  EXPECT_EQ(refusal("p:nope=1:w=z"), "policy p: w=z: it is to be one of x, y");
}

TEST(PolicySettings, APolicyWithoutSettingsSaysSo) {
  PolicySettings none("p");
  EXPECT_TRUE(none.status().ok());
  PolicySettings some("p:slo=off");
  ASSERT_FALSE(some.status().ok());
  EXPECT_EQ(some.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(some.status().message(), "policy p has no settings, and 'slo=off' is one");
}

}  // namespace
}  // namespace kvasir
