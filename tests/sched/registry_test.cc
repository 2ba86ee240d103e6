// Policies by name.
#include "sched/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace kvasir {
namespace {

TEST(Registry, MakesEveryPolicyThatItNames) {
  const auto names = policy_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_NE(std::find(names.begin(), names.end(), "sarathi"), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "fcfs"), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "vllm-swap"), names.end());
  for (const std::string& n : names) EXPECT_TRUE(make_policy(n).ok()) << n;
}

TEST(Registry, SaysWhatThereIs) {
  const auto policy = make_policy("lifo");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(policy.status().message().find("'lifo'"), std::string::npos);
  EXPECT_NE(policy.status().message().find("sarathi"), std::string::npos);
  EXPECT_NE(policy.status().message().find("vllm-swap"), std::string::npos);
}

TEST(Registry, APolicyWithoutStateSavesNoneAndRefusesSome) {
  const auto policy = make_policy("vllm").value();
  EXPECT_EQ(policy->save_state(), "");
  EXPECT_TRUE(policy->restore_state("").ok());
  EXPECT_FALSE(policy->restore_state("7").ok());
}

// ---------------------------------------------------------------- settings

std::string refused_name(std::string_view name) {
  const auto policy = make_policy(name);
  EXPECT_FALSE(policy.ok()) << name;
  if (policy.ok()) return {};
  EXPECT_EQ(policy.status().code(), ErrorCode::kInvalidArgument) << name;
  return std::string(policy.status().message());
}

TEST(Registry, SettingsBehindTheName) {
  for (const char* name :
       {"auto",
        "layerkv:slo=off",
        "layerkv:mixed=off:stages=64",
        "layerkv:threshold=0:beta=1000:urgent=1",
        "layerkv:link-share=10",
        "ellm:ratio=0.5:again=0.25:mix=layers",
        "ellm:divide=bubble:solver=slsqp:overlap=off:fusion=off",
        "ellm:cost=letter:hidden=5120:layers=40:vocabulary=32000:flops=312e12",
        "hcache:x-share=0.5:batch=tpot",
        "priority:ageing=0",
        "vllm-random:seed=7",
        "vllm:demote=on:batch=tpot",
        "vllm-swap:batch=free",
        "rlp:padding=0",
        "rlp:victim=srtf",
        "s3:bucket=16",
        "cacheopt:padding=hoeffding:confidence=0.9",
        "cacheopt:alpha=8:beta=100:embed=always:preempt-for=all:late=first",
        "cacheopt:letter=on",
        "cacheopt:letter=on:padding=quantile:preempt-for=running:excess=cut:short=sit:chunks=gap:within=room",
        "cacheopt:padding=share:share=0.1:select=fcfs:proactive=0:reserve=0:victim=fcfs:preempt=recompute",
        "distkv:ahead=0:spill=off",
        "layerkv:n-param=6.74e9:n-hidden=4096:flops=119.5e12:alpha=1.1"}) {
    const auto policy = make_policy(name);
    EXPECT_TRUE(policy.ok()) << policy.status().message();
  }
}

TEST(Registry, WhatAPolicyDoesNotTakeIsRefusedByName) {
  const std::string nope = refused_name("layerkv:nope=1");
  for (const char* named : {"layerkv", "'nope'", "slo", "mixed", "threshold", "stages", "link-share",
                            "urgent", "beta", "n-param", "n-hidden", "flops", "alpha"}) {
    EXPECT_NE(nope.find(named), std::string::npos) << named << ": " << nope;
  }
  EXPECT_EQ(refused_name("orca:slo=off"), "policy orca has no settings, and 'slo=off' is one");
  EXPECT_EQ(refused_name("distkv:spill=1"), "policy distkv: spill=1: it is to be one of on, off");
  EXPECT_EQ(refused_name("layerkv:slo=1"), "policy layerkv: slo=1: it is to be one of on, off");
  EXPECT_EQ(refused_name("layerkv:stages=0"), "policy layerkv: stages=0: it is to be a number from 1 to 64");
  EXPECT_EQ(refused_name("ellm:cost=letter:hidden=5120"),
            "policy ellm: cost says nothing without layers: give both");
  EXPECT_EQ(refused_name("ellm:again=0.5"), "policy ellm: again says nothing without ratio: give both");
  EXPECT_EQ(refused_name("layerkv:threshold=0.6"),
            "policy layerkv: threshold=0.6: it is to be a number from 0 to 0.5");
}

TEST(Registry, AnUnknownPolicyIsUnknownWithSettings) {
  const auto policy = make_policy("lifo:slo=off");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(policy.status().message().find("'lifo'"), std::string::npos);
}

TEST(Registry, TraitsAreOfTheNameWithoutItsSettings) {
  struct Case {
    const char* name;
    bool whole, offloads, stages, priority;
  };
  for (const Case& c : {Case{"layerkv", true, true, true, false}, Case{"vllm-swap", true, true, false, false},
                        Case{"hcache", true, true, false, false}, Case{"ellm", true, false, false, false},
                        Case{"vllm", true, false, false, false}, Case{"distkv", true, false, false, false},
                        Case{"fcfs", true, false, false, false}, Case{"sarathi", false, false, false, false},
                        Case{"priority", false, false, false, true}, Case{"auto", false, false, true, true},
                        Case{"lifo", false, false, false, false}, Case{"", false, false, false, false}}) {
    for (const char* settings : {"", ":slo=off", ":slo=off:stages=8"}) {
      const std::string name = std::string(c.name) + settings;
      EXPECT_EQ(policy_traits(name).whole_prompts, c.whole) << name;
      EXPECT_EQ(policy_traits(name).offloads, c.offloads) << name;
      EXPECT_EQ(policy_traits(name).stages, c.stages) << name;
      EXPECT_EQ(policy_traits(name).reads_priority, c.priority) << name;
    }
  }
  for (const std::string& name : policy_names()) {
    EXPECT_EQ(policy_traits(name).needs_priority, name == "priority") << name;
    EXPECT_EQ(policy_traits(name).alias, name == "fcfs") << name;
  }
  EXPECT_TRUE(policy_traits("ellm:mix=layers").drops);
  EXPECT_FALSE(policy_traits("layerkv").drops);
  EXPECT_TRUE(policy_traits("distkv").borrows);
  EXPECT_TRUE(policy_traits("distkv:spill=off").borrows);
  EXPECT_FALSE(policy_traits("vllm").borrows);
  EXPECT_FALSE(policy_traits("vllm-swap").borrows);
  EXPECT_FALSE(policy_traits("distkv2").borrows);
  EXPECT_TRUE(policy_traits("hcache").keeps_x);
  EXPECT_FALSE(policy_traits("hcache:x-share=0").keeps_x);
  EXPECT_FALSE(policy_traits("vllm-swap:batch=tpot").keeps_x);
  // A name is not the beginning of another.
  EXPECT_FALSE(policy_traits("layer").offloads);
  EXPECT_FALSE(policy_traits("layerkv2").offloads);
}

}  // namespace
}  // namespace kvasir
