// No request starves: under the policies that promise so, whatever others send, a request ends within a bound
// that the requests before it decide. And streams under which those that do not promise it let one starve, so
// that the test is known to see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "fakes/fake_link.h"
#include "fakes/scripted_executor.h"
#include "sched/beliefs/cost_beliefs.h"
#include "sched/mechanisms/aged_priority.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kTurns = 6000;
constexpr uint32_t kLive =
    12;  // accepted and not finished, at any time: the adversary sends the next at once
constexpr uint32_t kBlocks = 12;
constexpr uint32_t kBlock = 16;
constexpr uint32_t kBudget = 64;
constexpr uint32_t kSeqs = 8;
constexpr int32_t kLowest = 5;
constexpr Nanos kTurn = kNanosPerSecond;

// What the adversary sends, with priority 0, beside one long request of priority 5 after the other.
enum class Stream {
  kOneToken,  // short prompts that end with their first token
  kOneBlock,  // prompts and outputs of one block
  kMixed,     // up to 60 tokens in and 30 out, many more than there is memory for
};

// The longest request: 101 to 160 tokens, of which 40 are output.
constexpr uint32_t kLongPrompt = 120;
constexpr uint32_t kLongOutput = 40;

// The turns that one request takes at the most when none is before it: its chunks beside the decodes of the
// others; its output; and, where none is preempted for a block, for each block that it needs the tokens
// that the others have room for, and a turn in which the latest of them gives up.
constexpr uint32_t kTurnsOfTheFirst = (kLongPrompt + kLongOutput) / (kBudget - kSeqs) + 1 + kLongOutput +
                                      (kLongPrompt + kLongOutput) / kBlock * (kBlock + 2);
// At most so many are before it, and it is one itself. Under `priority` one of the lowest value has those
// before it, too, that come within its levels' time.
constexpr uint32_t kBound = kLive * kTurnsOfTheFirst;
constexpr uint32_t kAgeingTurns = kLowest * from_seconds(kAgeingSeconds) / kTurn;

struct Outcome {
  uint32_t longest_to_first_token = 0;  // turns; of one that has none yet, so far
  uint32_t longest_life = 0;
  uint64_t done = 0;
  uint64_t preemptions = 0;
  uint64_t transfers = 0;
};

GenerationRequest next_of(Stream stream, Random& random) {
  if (stream == Stream::kOneToken) return request(static_cast<uint32_t>(random.between(1, 15)), 1);
  if (stream == Stream::kOneBlock) return request(4, 12);
  return request(static_cast<uint32_t>(random.between(1, 60)), static_cast<uint32_t>(random.between(1, 30)));
}

// With a host tier of four times the device's size, if `host`; transfers take as long as a step.
// slos: of the requests, in turn. priority: of the long ones.
Outcome run(std::unique_ptr<Policy> policy, Stream stream, int depth, bool host = false,
            const std::vector<Slo>& slos = {{}}, const Beliefs& beliefs = {}, int32_t priority = kLowest,
            uint32_t turns = kTurns) {
  struct Sent {
    std::shared_ptr<CollectingSink> sink;
    uint32_t at;
    bool is_long;
    bool first_seen = false;
  };
  EngineOptions o = small_options(kBlocks);
  o.cache.prefix_caching = false;
  o.check_integrity = false;
  o.limits.max_num_batched_tokens = kBudget;
  o.limits.max_num_seqs = kSeqs;
  const uint64_t block = o.cache.geometry.kv_block_bytes();
  o.cache.host_bytes = host ? 4 * kBlocks * block : 0;
  o.cache.stage_bytes = host ? kBlocks * block : 0;
  VirtualClock clock;
  ScriptedExecutor executor(clock, depth, kTurn);
  FakeLink link(clock);
  executor.link = &link;
  Engine engine(o, std::move(policy), executor, clock, nullptr, host ? &link : nullptr, beliefs);
  Random random(7);
  std::vector<Sent> live;
  Outcome out;
  size_t sent = 0;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const auto send = [&](GenerationRequest r, bool is_long) {
      r.slo = slos[sent++ % slos.size()];
      auto sink = std::make_shared<CollectingSink>();
      EXPECT_TRUE(engine.submit(std::move(r), sink).ok());
      live.push_back({std::move(sink), turn, is_long});
    };
    if (std::none_of(live.begin(), live.end(), [](const Sent& s) { return s.is_long; })) {
      GenerationRequest r = request(kLongPrompt, kLongOutput);
      r.priority = priority;
      send(std::move(r), true);
    }
    while (live.size() < kLive) send(next_of(stream, random), false);
    engine.step();
    link.complete_all();
    std::erase_if(live, [&](Sent& s) {
      const uint32_t age = turn + 1 - s.at;
      if (!s.first_seen) out.longest_to_first_token = std::max(out.longest_to_first_token, age);
      s.first_seen |= !s.sink->tokens.empty();
      out.longest_life = std::max(out.longest_life, age);
      out.done += s.sink->finish.has_value();
      return s.sink->finish.has_value();
    });
  }
  out.preemptions = engine.metrics().num_preemptions;
  out.transfers = link.stats().transfers;
  return out;
}

void report(const std::string& policy, Stream stream, int depth, const Outcome& o) {
  std::printf("%s, %s, depth %d: %u turns to a first token, %u to an end; %llu done, %llu preempted\n",
              policy.c_str(),
              stream == Stream::kOneToken   ? "one token"
              : stream == Stream::kOneBlock ? "one block"
                                            : "mixed",
              depth, o.longest_to_first_token, o.longest_life, static_cast<unsigned long long>(o.done),
              static_cast<unsigned long long>(o.preemptions));
}

TEST(Starvation, NoRequestStarvesWhereThatIsPromised) {
  ASSERT_LT(kAgeingTurns + kBound, kTurns) << "or a starving request would keep the bound";
  for (const std::string policy :
       {"cacheopt:late=first:preempt-for=running", "fastgen", "layerkv", "orca", "priority", "sarathi"}) {
    for (Stream stream : {Stream::kOneToken, Stream::kMixed}) {
      uint64_t preemptions = 0;
      for (int depth : {1, 2}) {
        const Outcome o = run(make_policy(policy).value(), stream, depth);
        report(policy, stream, depth, o);
        const uint32_t bound = kBound + (policy == "priority" ? kAgeingTurns : 0);
        EXPECT_LE(o.longest_life, bound) << policy << " depth " << depth;
        EXPECT_GT(o.done, kTurns / 20) << policy;
        preemptions += o.preemptions;
      }
      if (stream == Stream::kMixed && policy != "orca") {
        EXPECT_GT(preemptions, 0u) << policy;
      }
    }
  }
}

// What a request costs the others in turns: the share of the device's memory that it holds, for as many turns
// as it has output left.
double cost_in_turns(uint32_t prompt, uint32_t output) {
  return (prompt + output / 2.0) * output / (kBlocks * kBlock);
}

// The bound of docs/policies/auto.md. Until it is late; until the credit, a fiftieth of the time, has paid
// for the late ones before it and for itself; until those that are on credit before it have ended; and its
// life. A request without bounds is late after 16 times what it would take alone, or the mean one would.
// weight: of the long requests, the only ones that have it. The others have 1, and one turn of theirs.
double auto_bound(Stream stream, double weight = 1) {
  constexpr double kUntilLate = 16 * (kLongOutput + 4);
  const double other = stream == Stream::kOneToken   ? cost_in_turns(15, 1)
                       : stream == Stream::kOneBlock ? cost_in_turns(4, 12)
                                                     : cost_in_turns(60, 30);
  const double own = cost_in_turns(kLongPrompt, kLongOutput);
  const double before = (kLive - 1) * other;
  const double paid = weight == 1 ? before + own : (1 + weight) / weight * own + other;
  return kUntilLate + 50 * paid + before + kTurnsOfTheFirst;
}

Outcome run_auto(Stream stream, int depth, bool host, const std::vector<Slo>& slos, int32_t priority = 0,
                 uint32_t turns = kTurns) {
  CostModel turn;
  turn.step_s = to_seconds(kTurn);
  if (host) {
    for (auto& from : turn.links) from.fill({.seconds_per_byte = 1e-6});
  }
  CostBeliefs costs(CostLearner(turn), CostBeliefs::Learns::kNever);
  const Outcome o =
      run(make_policy("auto").value(), stream, depth, host, slos, {&costs, nullptr}, priority, turns);
  report(host ? "auto with a host" : "auto", stream, depth, o);
  return o;
}

// It knows that a step takes a turn. Without bounds a request ends within a stretch; with bounds it becomes
// late, and then the credit pays for it: a fiftieth of the time, for what it takes from the others.
TEST(Starvation, NorUnderAutoByStretchAndByCredit) {
  for (Stream stream : {Stream::kOneToken, Stream::kOneBlock, Stream::kMixed}) {
    for (const Slo& slo : {Slo{}, Slo{.ttft_ms = 5000}, Slo{.ttft_ms = 20'000, .tbt_ms = 3000}}) {
      for (int depth : {1, 2}) {
        const Outcome o = run_auto(stream, depth, /*host=*/false, {slo});
        EXPECT_LE(o.longest_life, std::min<double>(kBound, auto_bound(stream)))
            << slo.ttft_ms << " depth " << depth;
        EXPECT_GT(o.done, kTurns / 20);
      }
    }
  }
}

// With a weight of a quarter its share of the credit is a fifth, with the least, a sixteenth, a seventeenth:
// it waits long, but not for ever.
TEST(Starvation, NorUnderAutoWithALesserWeight) {
  for (const Slo& slo : {Slo{}, Slo{.ttft_ms = 5000}}) {
    for (int32_t priority : {2, 4}) {
      const double bound = auto_bound(Stream::kMixed, std::exp2(-priority));
      const auto turns = static_cast<uint32_t>(bound) + 1000;
      const Outcome o = run_auto(Stream::kMixed, 1, /*host=*/false, {slo}, priority, turns);
      EXPECT_LE(o.longest_life, bound) << "priority " << priority;
      EXPECT_GT(o.done, turns / 20);
    }
  }
}

// Bounds of all kinds at once, so that some are late, some on time and some have none; the long ones take
// them in turn. And a tier behind the device, to which histories go.
TEST(Starvation, NorUnderAutoWithAMixOfBoundsAndAHost) {
  const std::vector<Slo> mix = {{},
                                {.ttft_ms = 5000},
                                {.ttft_ms = 20'000, .tbt_ms = 3000},
                                {.ttft_ms = 9000, .tpot_ms = 1500},
                                {.e2el_ms = 60'000}};
  for (Stream stream : {Stream::kOneToken, Stream::kOneBlock, Stream::kMixed}) {
    for (bool host : {false, true}) {
      for (int depth : {1, 2}) {
        const Outcome o = run_auto(stream, depth, host, mix);
        EXPECT_LE(o.longest_life, std::min<double>(kBound, auto_bound(stream)))
            << "host " << host << " depth " << depth;
        EXPECT_GT(o.done, kTurns / 20);
        if (host && stream == Stream::kMixed) {
          EXPECT_GT(o.transfers, 0u);
        }
      }
    }
  }
}

// A request with layers on the host waits until they are back, and they come when others end.
TEST(Starvation, ARequestWithLayersAwayComesBackWhenOthersEnd) {
  for (Stream stream : {Stream::kOneToken, Stream::kMixed}) {
    for (int depth : {1, 2}) {
      const Outcome o = run(make_policy("layerkv").value(), stream, depth, /*host=*/true);
      report("layerkv with a host", stream, depth, o);
      EXPECT_LE(o.longest_life, kBound);
      EXPECT_GT(o.done, kTurns / 20);
      if (stream == Stream::kMixed) {
        EXPECT_GT(o.transfers, 0u);
      }
    }
  }
}

// Bounds that a request keeps only if it has a token in every turn, or nearly: most are late, and allow no
// prompt. A prompt goes after a minute at the latest, the one before it as well.
TEST(Starvation, NorDoPromptsThatWaitForLateRequests) {
  CostModel turn;
  turn.step_s = to_seconds(kTurn);
  CostBeliefs costs(CostLearner(turn), CostBeliefs::Learns::kNever);
  constexpr uint32_t kAgeing = 60;  // turns, by default
  static_assert(kBound + kLive * kAgeing < kTurns);
  const auto waits = [&](const char* policy, Stream stream, int depth, const std::vector<Slo>& slos) {
    const Outcome o =
        run(make_policy(policy).value(), stream, depth, /*host=*/false, slos, {&costs, nullptr});
    report(policy, stream, depth, o);
    EXPECT_LE(o.longest_life, kBound + kLive * kAgeing) << policy << ", depth " << depth;
    EXPECT_GT(o.done, kTurns / 20);
    return o.longest_to_first_token;
  };
  for (int depth : {1, 2}) {
    for (Stream stream : {Stream::kOneToken, Stream::kMixed}) {
      waits("layerkv", stream, depth, {{.tpot_ms = 1050}, {}, {.tpot_ms = 1050, .tbt_ms = 1500}});
    }
    // Without ageing a prompt waits until those that are late have ended, which they do here.
    EXPECT_LT(waits("layerkv:age=5", Stream::kMixed, depth, {{.tpot_ms = 1000}}),
              waits("layerkv:age=1000000", Stream::kMixed, depth, {{.tpot_ms = 1000}}) - 10);
  }
}

// Not even newcomers with prompts that always fit into what is free keep it from decoding: the first of those
// with layers that do not come back is served from the host.
TEST(Starvation, NewcomersDoNotStarveRequestsWithLayersAway) {
  for (int depth : {1, 2}) {
    const Outcome o = run(make_policy("layerkv").value(), Stream::kOneBlock, depth, /*host=*/true);
    report("layerkv with a host", Stream::kOneBlock, depth, o);
    EXPECT_LE(o.longest_life, kBound);
    EXPECT_GT(o.transfers, 0u);
  }
}

TEST(Starvation, WithoutAgeingTheLowestNeverRuns) {
  for (Stream stream : {Stream::kOneToken, Stream::kMixed}) {
    const Outcome o = run(make_policy("priority:ageing=0").value(), stream, 1);
    report("priority without ageing", stream, 1, o);
    EXPECT_EQ(o.longest_to_first_token, kTurns);
  }
}

// Prompts go before decodes: a stream of prompts that need no second step keeps those that have their first
// token from ever getting the next.
TEST(Starvation, PromptsBeforeDecodesStarveDecodes) {
  for (const std::string policy : {"vllm", "vllm-swap", "distkv", "hcache", "ellm", "layerkv:mixed=off"}) {
    const Outcome o = run(make_policy(policy).value(), Stream::kOneToken, 1);
    report(policy, Stream::kOneToken, 1, o);
    EXPECT_EQ(o.longest_life, kTurns) << policy;
    EXPECT_LE(o.longest_to_first_token, kBound) << "but none is overtaken in the queue";
  }
}

// A request without room is passed by while others have it: a prompt that never finds all its blocks free at
// once waits for as long as short ones come.
TEST(Starvation, ARequestThatFitsPassesOneThatDoesNot) {
  for (const std::string policy : {"apt-serve", "apt-serve-s"}) {
    const Outcome o = run(make_policy(policy).value(), Stream::kOneToken, 2);
    report(policy, Stream::kOneToken, 2, o);
    EXPECT_GT(o.longest_to_first_token, kBound) << policy;
  }
}

}  // namespace
}  // namespace kvasir::test
