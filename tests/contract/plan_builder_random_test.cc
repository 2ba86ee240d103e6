// Whatever the builder plans at random, over random views, the checker accepts.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "base/random.h"
#include "contract/plan_builder.h"
#include "contract/plan_checker.h"
#include "fakes/views.h"

namespace kvasir::test {
namespace {

constexpr size_t kDevice = static_cast<size_t>(Tier::kDevice);
constexpr size_t kHost = static_cast<size_t>(Tier::kHost);

class RandomPlans {
 public:
  explicit RandomPlans(uint64_t seed) : random_(seed) {}

  View view() {
    View v = make_view(under(60) + 4, under(12));
    set_idle(v, under(6));
    if (chance(0.7)) set_host(v, under(40) + 1, under(20));
    if (chance(0.7)) set_ring(v, under(30));
    v.steps_in_flight = under(2);
    v.limits.max_num_seqs = static_cast<uint32_t>(random_.between(3, 8));
    if (chance(0.3)) v.limits.max_prefill_beside_decodes = under(40) + 1;
    uint64_t id = 1;
    for (uint32_t n = under(4); n > 0; --n) v.running.push_back(holder(v, id++, true));
    for (uint32_t n = under(5); n > 0; --n) {
      v.waiting.push_back(chance(0.4) ? holder(v, id++, false) : newcomer(v, id++));
    }
    return v;
  }

  void plan(const View& view, PlanBuilder& b) {
    copied_.clear();
    for (int pass = 0; pass < 2; ++pass) {
      for (const SeqView& s : view.running) {
        if (b.has_rows(s.id) || b.preempted(s.id) || chance(0.4)) continue;
        if (!copied_.contains(s.id) && chance(0.3)) {
          preempt(b, s);
        } else {
          if (chance(0.3)) copy(b, s);
          run(b, s);
        }
      }
      for (const SeqView& s : view.waiting) {
        if (b.has_rows(s.id) || b.preempted(s.id) || chance(0.4)) continue;
        if (chance(0.1)) {
          b.fail(s, "chance");
        } else if (copied_.contains(s.id)) {
          continue;  // a plan names one that waits once
        } else if (s.blocks > 0 && chance(0.2)) {
          b.drop_waiting(s);
        } else if (pass == 1 && s.blocks > 0 && chance(0.2)) {
          copy(b, s);
        } else if (pass == 1 && b.admit(s, under(3))) {
          run(b, s);
        }
      }
    }
  }

 private:
  bool chance(double p) { return random_.unit() < p; }
  uint32_t under(uint64_t n) { return static_cast<uint32_t>(random_.below(n)); }

  // A sequence that holds blocks whose copies are anywhere.
  SeqView holder(View& v, uint64_t id, bool runs) {
    const uint32_t prompt = under(90) + 1;
    const uint32_t known = prompt + under(30);
    SeqView s = running_seq(id, prompt, known, std::min(known - 1, under(known) + 1));
    s.max_total_tokens = known + under(400);
    if (s.blocks > 0 && v.host.total[0] > 0 && chance(0.6)) scatter(s, runs);
    for (size_t tier : {kDevice, kHost}) {
      s.own_cells[0][tier] = under(s.cells[0][tier] + 1);
    }
    s.stalled = chance(0.05);
    s.tail_busy = chance(0.05);
    s.transfers = under(3);
    v.transfers_in_flight += s.transfers;
    if (!runs) return s;
    if (!s.decoding()) promise(v.device, s, Tier::kDevice, (v.geometry.blocks_for(known) - s.blocks) * 2);
    if (v.host.total[0] > 0 && chance(0.3)) promise(v.host, s, Tier::kHost, under(12));
    return s;
  }

  // Each cell is on the device, on the host, on both, or leaving the one for the other.
  void scatter(SeqView& s, bool runs) {
    const uint32_t tail = s.ready_tokens % kViewBlock == 0 ? s.blocks : s.blocks - 1;
    std::vector<uint32_t> in_group(kViewGroups, 0);
    const double on_device = random_.unit();
    set_cells(s, Tier::kDevice, 0);
    for (uint32_t block = 0; block < s.blocks; ++block) {
      for (uint32_t g = 0; g < kViewGroups; ++g) {
        const bool device = chance(on_device) || (block == tail && runs);
        const bool host = !device || (chance(0.3) && !(block == tail && runs));
        s.cells[0][kDevice] += device ? 1 : 0;
        s.cells[0][kHost] += host ? 1 : 0;
        in_group[g] += device ? 1 : 0;
        if (device && host && chance(0.5)) ++s.leaving_cells;
        if (block == tail && !device) s.tail_resident = false;
      }
    }
    s.device_groups = {};
    s.resident_blocks = *std::min_element(in_group.begin(), in_group.end());
    for (uint32_t g = 0; g < kViewGroups; ++g) {
      if (in_group[g] == s.blocks) s.device_groups.add(g);
    }
  }

  // Out of room that there is beside what is free.
  static void promise(FrameBudget& budget, SeqView& s, Tier tier, uint32_t cells) {
    s.promised_cells[static_cast<size_t>(tier)] = cells;
    budget.promised[0] += cells * kFramesPerKvCell;
    budget.free[0] += cells * kFramesPerKvCell;
  }

  SeqView newcomer(View& v, uint64_t id) {
    const uint32_t prompt = under(90) + 1;
    const uint32_t cached = under((prompt - 1) / kViewBlock + 1);
    const uint32_t idle = v.device.idle[0] / v.geometry.kv_frames_per_block();
    SeqView s = waiting_seq(id, prompt, cached * kViewBlock, std::min(idle, under(cached + 1)));
    s.max_total_tokens = prompt + under(400);
    return s;
  }

  void preempt(PlanBuilder& b, const SeqView& s) {
    const double r = random_.unit();
    if (r < 0.4) {
      b.preempt_and_drop(s);
    } else if (r < 0.6) {
      b.preempt_and_keep(s);
      if (s.blocks > 0 && chance(0.3)) copy(b, s);
    } else if (!b.preempt_and_offload(s)) {
      b.preempt_and_drop(s);
    }
  }

  LayerSet groups() {
    LayerSet set;
    for (uint32_t g = 0; g < kViewGroups; ++g) {
      if (chance(0.5)) set.add(g);
    }
    return set;
  }

  void copy(PlanBuilder& b, const SeqView& s) {
    if (s.blocks == 0) return;
    const uint32_t begin = under(s.blocks);
    const Interval tokens = {begin * kViewBlock,
                             std::min(s.ready_tokens, (begin + 1 + under(s.blocks - begin)) * kViewBlock)};
    const LayerSet layers = groups();
    if (layers.empty()) return;
    const Tier tier = chance(0.7) ? Tier::kHost : Tier::kDevice;
    const Trigger trigger = tier == Tier::kDevice && chance(0.3) ? Trigger::kBeforeLayer
                            : chance(0.5)                        ? Trigger::kNow
                                                                 : Trigger::kBackground;
    copied_.insert(s.id);
    if (b.add_copies(s, tokens, layers, tier, trigger) && chance(0.5)) {
      b.release(s, tokens, layers, chance(0.7) ? Tier::kDevice : Tier::kHost);
    }
  }

  void run(PlanBuilder& b, const SeqView& s) {
    std::optional<LayerSet> keep;
    if (chance(0.2)) keep = groups();
    if (s.decoding()) {
      (void)b.decode(s, keep);
    } else {
      (void)b.prefill(s, under(60) + 1, keep);
    }
  }

  Random random_;
  std::set<SeqId> copied_;
};

TEST(PlanBuilder, WhatItBuildsAtRandomTheCheckerAccepts) {
  RandomPlans random(5);
  uint32_t staged = 0, brought_back = 0, written_through = 0;
  for (int round = 0; round < 60'000; ++round) {
    const View view = random.view();
    PlanBuilder b(view);
    random.plan(view, b);
    EXPECT_GE(b.available_blocks(), 0);
    const StepPlan plan = b.take();
    for (const CopyChange& c : plan.copies) {
      staged += c.verb == Verb::kStage ? 1 : 0;
      brought_back += c.verb == Verb::kAdd && c.trigger == Trigger::kBeforeLayer ? 1 : 0;
      written_through += c.trigger == Trigger::kAfterLayerWrites ? 1 : 0;
    }
    const Status status = check_plan(view, plan);
    const bool nothing =
        plan.rows.empty() && plan.failures.empty() && plan.preemptions.empty() && plan.copies.empty();
    ASSERT_TRUE(status.ok() || nothing) << "round " << round << ": " << status.message() << "\n"
                                        << to_string(plan);
  }
  // The views were of all kinds.
  EXPECT_GT(staged, 1000u);
  EXPECT_GT(brought_back, 1000u);
  EXPECT_GT(written_through, 1000u);
}

}  // namespace
}  // namespace kvasir::test
