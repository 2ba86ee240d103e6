// One run of each baseline, worked by hand step by step: what each published system does with the same five
// requests where memory is short.
//
// The device has 12 blocks of 16 tokens and a step 64 tokens. A, B, C and D are there at the beginning, E
// comes when three steps have run; E alone has a priority, -1.
//
//            prompt  output  blocks of the prompt  at its greatest length
//        A     46      6             3                       4
//        B     30      8             2                       3
//        C    100      4             7                       7
//        D     15      4             1                       2
//        E     20      3             2                       2
//
// A sequence of n known tokens computes row n - 1 and needs a block for each 16 of the n. In the tables
// "A46:47" are rows of A, "*" says that they sample, "-C" that C is preempted and drops its cells, "~C" that
// they go to the host and "^C" that they come back. A line that is "" is a plan without anything.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "fakes/fake_link.h"
#include "fakes/shadow_executor.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

char letter(SeqId id) {
  return static_cast<char>('A' + raw(id) - 1);
}

std::string line_of(const StepPlan& plan) {
  std::string out;
  const auto word = [&](const std::string& w) { out += (out.empty() ? "" : " ") + w; };
  for (const Preemption& p : plan.preemptions) {
    bool swaps = false;
    for (const CopyChange& c : plan.copies)
      swaps |= c.seq == p.seq && c.verb == Verb::kAdd && c.tier == Tier::kHost;
    word(fmt::format("{}{}", swaps ? '~' : '-', letter(p.seq)));
  }
  for (const CopyChange& c : plan.copies) {
    if (c.verb == Verb::kAdd && c.tier == Tier::kDevice) word(fmt::format("^{}", letter(c.seq)));
  }
  for (const Rows& r : plan.rows) {
    word(fmt::format("{}{}:{}{}", letter(r.seq), r.tokens.begin, r.tokens.end, r.samples ? "*" : ""));
  }
  return out;
}

class RecordingPolicy final : public Policy {
 public:
  RecordingPolicy(std::unique_ptr<Policy> policy, std::vector<std::string>& lines)
      : policy_(std::move(policy)), lines_(lines) {}
  StepPlan plan(const View& view) override {
    StepPlan plan = policy_->plan(view);
    lines_.push_back(line_of(plan));
    return plan;
  }

 private:
  const std::unique_ptr<Policy> policy_;
  std::vector<std::string>& lines_;
};

GenerationRequest a_request(uint32_t prompt, uint32_t output, int32_t priority) {
  GenerationRequest r = request(prompt, output);
  r.priority = priority;
  return r;
}

std::vector<std::string> trace(const std::string& policy, uint32_t host_blocks = 0) {
  EngineOptions o;
  o.cache.geometry = {16, 2, 2, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * 12;
  o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * host_blocks;
  o.cache.prefix_caching = false;
  o.limits.max_num_batched_tokens = 64;
  o.limits.max_num_seqs = 8;
  o.max_model_len = 192;
  o.check_integrity = true;
  VirtualClock clock;
  std::vector<std::byte> device(o.cache.device_bytes), host(o.cache.host_bytes), disk;
  FakeLink link(clock, {device, host, disk});
  Link* const used_link = host_blocks > 0 ? &link : nullptr;
  ShadowExecutor executor(o.cache.geometry, device, /*depth=*/1, clock, used_link);
  std::vector<std::string> lines;
  Engine engine(o, std::make_unique<RecordingPolicy>(make_policy(policy).value(), lines), executor, clock,
                /*log=*/nullptr, used_link);
  std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> requests;
  const auto submit = [&](uint32_t prompt, uint32_t output, int32_t priority) {
    auto sink = std::make_shared<CollectingSink>();
    GenerationRequest r = a_request(prompt, output, priority);
    EXPECT_TRUE(engine.submit(r, sink).ok());
    requests.emplace_back(std::move(r), std::move(sink));
  };
  submit(46, 6, 0);
  submit(30, 8, 0);
  submit(100, 4, 0);
  submit(15, 4, 0);
  for (bool more = true; more;) {
    if (lines.size() == 3 && requests.size() == 4) submit(20, 3, -1);
    more = engine.step();
    link.complete_all();  // transfers take as long as a step
  }
  for (const auto& [r, sink] : requests) {
    EXPECT_EQ(sink->tokens, shadow_output(2, r.prompt, r.sampling.seed, r.max_tokens, r.stop_tokens));
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(BaselineTraces, Orca) {
  EXPECT_EQ(trace("orca"), (Lines{
                               // A reserves 4 blocks and B 3; C would need 7 of the other 5, and none
                               // overtakes. 46 + 30 rows: there is no budget.
                               "A0:46* B0:30*",
                               "A46:47* B30:31*",
                               "A47:48* B31:32*",
                               "A48:49* B32:33*",
                               "A49:50* B33:34*",
                               "A50:51* B34:35*",  // A has its six tokens
                               // 9 are free: C takes 7 and D 2, so that none are left for E.
                               "B35:36* C0:100* D0:15*",
                               "B36:37* C100:101* D15:16*",  // B ends, and leaves 3
                               "C101:102* D16:17* E0:20*",
                               "C102:103* D17:18* E20:21*",  // C and D end
                               "E21:22*",
                           }));
}

TEST(BaselineTraces, Vllm) {
  EXPECT_EQ(trace("vllm"), (Lines{
                               "A0:46*",   // 46 + 30 are more than 64
                               "B0:30*",   // so are 30 + 100
                               "C0:100*",  // more than the budget, and so alone; its 7 blocks are the last
                               // D has no block: decodes.
                               "A46:47* B30:31* C100:101*",
                               "A47:48* B31:32* C101:102*",
                               // A comes to its fourth block, and B to its third: C, the latest, gives 7.
                               "-C A48:49* B32:33*",
                               // C is before D and E, and needs 7 of 5.
                               "A49:50* B33:34*",
                               "A50:51* B34:35*",  // A ends
                               // 9 are free: prompts first, and C is recomputed with what it had sampled,
                               // 103 tokens, alone. It samples its fourth, and ends.
                               "C0:103*",
                               "D0:15* E0:20*",
                               "B35:36* D15:16* E20:21*",
                               "B36:37* D16:17* E21:22*",  // B and E end
                               "D17:18*",
                           }));
}

TEST(BaselineTraces, VllmSwap) {
  EXPECT_EQ(trace("vllm-swap", /*host_blocks=*/12),
            (Lines{
                "A0:46*",
                "B0:30*",
                "C0:100*",
                "A46:47* B30:31* C100:101*",
                "A47:48* B31:32* C101:102*",
                // As with vllm, but C's blocks come free when they have been copied: A and B wait for them.
                "~C",
                "A48:49* B32:33*",
                // While C is out no prompt is admitted. It needs 7 of 5.
                "A49:50* B33:34*",
                "A50:51* B34:35*",       // A ends
                "^C B35:36* C102:103*",  // C ends
                "D0:15* E0:20*",
                "B36:37* D15:16* E20:21*",  // B ends
                "D16:17* E21:22*",          // E ends
                "D17:18*",
            }));
}

TEST(BaselineTraces, Sarathi) {
  EXPECT_EQ(trace("sarathi"), (Lines{
                                  "A0:46* B0:18",              // 46 + 18 = 64
                                  "A46:47* B18:30* C0:51",     // 1 + 12 + 51 = 64; C's 7 blocks are the last
                                  "A47:48* B30:31* C51:100*",  // 13 are left of the budget, and no block
                                  // A comes to its fourth block: C gives up its 7, and none is admitted.
                                  "-C A48:49* B31:32*",
                                  // B comes to its third. C needs 7 of 5.
                                  "A49:50* B32:33*",
                                  "A50:51* B33:34*",  // A ends
                                  "B34:35* C0:63",    // 1 + 63; 2 are left
                                  // 1 + 38, then D with 15; E would need 2 of 1.
                                  "B35:36* C63:101* D0:15*",
                                  "B36:37* C101:102* D15:16*",  // B ends
                                  // D comes to its second block; 4 were free, and E takes 2 of 3.
                                  "C102:103* D16:17* E0:20*",  // C ends
                                  "D17:18* E20:21*",           // D ends
                                  "E21:22*",
                              }));
}

TEST(BaselineTraces, Fastgen) {
  EXPECT_EQ(trace("fastgen"), (Lines{
                                  "A0:46* B0:18",
                                  "A46:47* B18:30* C0:51",
                                  "A47:48* B30:31* C51:100*",
                                  // A comes to its fourth block, which there is not, and is left out.
                                  "B31:32* C100:101*",
                                  "C101:102*",  // so is B
                                  "C102:103*",  // C ends, and leaves 7
                                  "A48:49* B32:33* D0:15* E0:20*",
                                  "A49:50* B33:34* D15:16* E20:21*",
                                  "A50:51* B34:35* D16:17* E21:22*",  // A and E end
                                  "B35:36* D17:18*",                  // D ends
                                  "B36:37*",
                              }));
}

TEST(BaselineTraces, Priority) {
  EXPECT_EQ(trace("priority"),
            (Lines{
                // Equal priorities: as sarathi.
                "A0:46* B0:18",
                "A46:47* B18:30* C0:51",
                "A47:48* B30:31* C51:100*",
                // E is before all and needs 2 blocks: C, the latest of the lowest, gives 7.
                // A takes one of the other 5.
                "-C A48:49* B31:32* E0:20*",
                // B comes to its third. C needs 7 of 3, and D does not overtake.
                "E20:21* A49:50* B32:33*",
                "E21:22* A50:51* B33:34*",  // E and A end
                "B34:35* C0:63",
                "B35:36* C63:101* D0:15*",
                "B36:37* C101:102* D15:16*",  // B ends
                "C102:103* D16:17*",          // C ends
                "D17:18*",
            }));
}

}  // namespace
}  // namespace kvasir::test
