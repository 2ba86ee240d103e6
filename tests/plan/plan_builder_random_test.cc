// Whatever the builder plans at random, over random views, the checker accepts.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/random.h"
#include "fakes/views.h"
#include "plan/plan_builder.h"
#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

constexpr size_t kKv = index_of(Form::kKv);
constexpr size_t kX = index_of(Form::kX);
constexpr size_t kDevice = index_of(Tier::kDevice);
constexpr size_t kHost = index_of(Tier::kHost);

class RandomPlans {
 public:
  explicit RandomPlans(uint64_t seed) : random_(seed) {}

  View view() {
    View v = make_view(under(60) + 4, 0);
    if (chance(0.6)) v.geometry.x_bytes_per_token_layer = 4;
    fill(v, v.device, under(24));
    if (chance(0.7)) {
      v.host.slabs = under(80) + 2;
      fill(v, v.host, under(40));
    }
    if (chance(0.3)) {
      v.disk.slabs = under(80) + 2;
      fill(v, v.disk, under(40));
    }
    if (chance(0.7)) set_ring(v, under(30));
    if (v.host.slabs > 0 && chance(0.4)) {
      v.peers.most_borrowed = 1 + under(200);
      v.peers.borrowed = under(v.total_cells(Tier::kHost) + 1);
    }
    if (chance(0.3)) v.scratch_tokens = under(120) + 20;
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
          preempt(view, b, s);
        } else {
          if (chance(0.3)) copy(view, b, s);
          run(view, b, s);
          if (chance(0.1)) drop(view, b, s);
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
          copy(view, b, s);
        } else if (pass == 1 && b.admit(s, {under(3)})) {
          run(view, b, s);
        }
      }
    }
  }

 private:
  bool chance(double p) { return random_.unit() < p; }
  uint32_t under(uint64_t n) { return static_cast<uint32_t>(random_.below(n)); }

  // Room of every form that there is.
  void fill(const View& v, FrameBudget& budget, uint32_t spare) {
    budget.spare_slabs = std::min(spare, budget.slabs);
    for (Form form : kAllForms) {
      const size_t f = index_of(form);
      budget.per_slab[f] = v.geometry.has(form) ? 1 + under(4) : 0;
      if (v.geometry.has(form)) budget.loose[f] = under(5);
      budget.coming[f] = under(5);
    }
  }

  // A sequence that holds blocks whose copies are anywhere.
  SeqView holder(View& v, uint64_t id, bool runs) {
    const uint32_t prompt = under(90) + 1;
    const uint32_t known = prompt + under(30);
    SeqView s = running_seq(id, prompt, known, std::min(known - 1, under(known) + 1));
    s.max_total_tokens = known + under(400);
    if (s.blocks > 0 && chance(0.6)) scatter(v, s, runs);
    for (Form form : kAllForms) {
      for (size_t t = 0; t < kTiers; ++t) {
        s.own_cells[index_of(form)][t] = under(s.cells[index_of(form)][t] + 1);
      }
    }
    const uint32_t away = s.blocks - s.resident_blocks;
    if (v.peers.most_borrowed > 0 && s.dropped_cells == 0 && !s.x_elsewhere())
      s.peer_blocks = under(away + 1);
    s.stalled = chance(0.05);
    s.tail_busy = chance(0.05);
    s.transfers = under(3);
    v.transfers_in_flight += s.transfers;
    if (!runs) return s;
    if (!s.decoding()) promise(v.device, s, Tier::kDevice, (v.geometry.blocks_for(known) - s.blocks) * 2);
    if (v.host.slabs > 0 && chance(0.3)) promise(v.host, s, Tier::kHost, under(12));
    return s;
  }

  // Each cell has KV on the device, on the host, on both, or leaving the one for the other; or X; or, of a
  // full block, nothing.
  void scatter(const View& v, SeqView& s, bool runs) {
    const uint32_t tail = s.ready_tokens % kViewBlock == 0 ? s.blocks : s.blocks - 1;
    std::vector<uint32_t> in_group(kViewGroups, 0);
    const double on_device = random_.unit();
    const double in_x = v.geometry.has(Form::kX) ? random_.unit() * 0.5 : 0;
    const double bare = chance(0.4) ? 0.3 : 0;
    std::set<uint32_t> bare_blocks, bare_groups;
    set_cells(s, Tier::kDevice, 0);
    for (uint32_t block = 0; block < s.blocks; ++block) {
      for (uint32_t g = 0; g < kViewGroups; ++g) {
        bool device = chance(on_device) || (block == tail && runs);
        bool host = v.host.slabs > 0 && (!device || chance(0.3)) && !(block == tail && runs);
        bool x = block != tail && chance(in_x);
        if (x && chance(0.6)) device = host = false;
        if (block != tail && chance(bare)) device = host = x = false;
        if (!device && !host && !x && block == tail) device = true;
        if (!device && !host && !x) {
          ++s.dropped_cells;
          bare_blocks.insert(block);
          bare_groups.insert(g);
        }
        s.cells[kKv][kDevice] += device ? 1 : 0;
        s.cells[kKv][kHost] += host ? 1 : 0;
        if (x) ++s.cells[kX][v.host.slabs > 0 && chance(0.5) ? kHost : kDevice];
        in_group[g] += device ? 1 : 0;
        if (device && host && chance(0.5)) ++s.leaving_cells;
        if (block == tail && !device) s.tail_resident = false;
      }
    }
    if (s.dropped_cells > 0) {
      s.dropped = {*bare_blocks.begin() * kViewBlock, (*bare_blocks.rbegin() + 1) * kViewBlock};
      s.dropped_first_group = static_cast<uint8_t>(*bare_groups.begin());
      s.dropped_end_group = static_cast<uint8_t>(*bare_groups.rbegin() + 1);
    }
    s.device_groups = {};
    s.resident_blocks = *std::min_element(in_group.begin(), in_group.end());
    for (uint32_t g = 0; g < kViewGroups; ++g) {
      if (in_group[g] == s.blocks) s.device_groups.add(g);
    }
  }

  // Out of room that there is beside what is free.
  static void promise(FrameBudget& budget, SeqView& s, Tier tier, uint32_t cells) {
    s.promised_cells[index_of(tier)] = cells;
    budget.promised[kKv] += cells;
    budget.loose[kKv] += cells;
  }

  SeqView newcomer(const View& v, uint64_t id) {
    const uint32_t prompt = under(90) + 1;
    const uint32_t cached = under((prompt - 1) / kViewBlock + 1);
    SeqView s = waiting_seq(id, prompt, cached * kViewBlock, 0);
    s.max_total_tokens = prompt + under(400);
    // Of each cell one copy, anywhere; some of them idle.
    const uint32_t cells = cached * kViewGroups;
    uint32_t left = cells;
    for (Form form : {Form::kX, Form::kKv}) {
      for (Tier tier : {Tier::kDisk, Tier::kHost, Tier::kDevice}) {
        if (v.budget(tier).per_slab[index_of(form)] == 0 || v.budget(tier).slabs == 0) continue;
        const bool last = form == Form::kKv && tier == Tier::kDevice;
        const uint32_t here = last ? left : (chance(0.5) ? 0 : under(left + 1));
        left -= here;
        if (last) s.cached_resident_cells = here;
        const FrameBudget& budget = v.budget(tier);
        const uint32_t may_be_idle =
            budget.loose[index_of(form)] + budget.spare_slabs * budget.per_slab[index_of(form)];
        s.cached_idle[index_of(form)][index_of(tier)] = under(std::min(here, may_be_idle) + 1);
      }
    }
    return s;
  }

  void preempt(const View& v, PlanBuilder& b, const SeqView& s) {
    const double r = random_.unit();
    if (r < 0.3) {
      b.preempt_and_drop(s);
    } else if (r < 0.5) {
      b.preempt_and_keep(s);
      if (s.blocks > 0 && chance(0.3)) copy(v, b, s);
    } else if (r < 0.6 && v.geometry.has(Form::kX) && s.blocks > 0 &&
               s.held(Form::kX, Tier::kDevice) + s.held(Form::kX, Tier::kHost) > 0) {
      b.preempt_and_keep_x(s);
    } else if (v.total_cells(v.slower_tier()) == 0 || !b.preempt_and_offload(s)) {
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

  struct Place {
    Form form;
    Tier tier;
  };
  // Some place that there is.
  Place place(const View& v) {
    for (;;) {
      const Place p = {static_cast<Form>(under(kForms)), static_cast<Tier>(under(3))};
      if (chance(0.5) && p.form != Form::kKv) continue;
      if (v.budget(p.tier).slabs > 0 && v.budget(p.tier).per_slab[index_of(p.form)] > 0) return p;
    }
  }

  void copy(const View& v, PlanBuilder& b, const SeqView& s) {
    if (s.blocks == 0) return;
    const uint32_t begin = under(s.blocks);
    const Interval tokens = {begin * kViewBlock,
                             std::min(s.ready_tokens, (begin + 1 + under(s.blocks - begin)) * kViewBlock)};
    const LayerSet layers = groups();
    if (layers.empty()) return;
    const Place to = place(v), from = place(v);
    const Trigger trigger = to.tier == Tier::kDevice && to.form == Form::kKv && chance(0.3)
                                ? Trigger::kBeforeLayer
                            : chance(0.5) ? Trigger::kNow
                                          : Trigger::kBackground;
    copied_.insert(s.id);
    if (b.add_copies(s, tokens, layers, to.tier, trigger, to.form) && chance(0.5)) {
      b.release(s, tokens, layers, from.tier, from.form);
    }
  }

  void drop(const View& v, PlanBuilder& b, const SeqView& s) {
    const LayerSet layers = groups();
    if (s.blocks == 0 || layers.empty()) return;
    const uint32_t begin = under(s.blocks);
    const Place from = place(v);
    copied_.insert(s.id);
    b.drop(s, {begin * kViewBlock, (begin + 1 + under(s.blocks - begin)) * kViewBlock}, layers, from.tier,
           from.form);
  }

  void run(const View& v, PlanBuilder& b, const SeqView& s) {
    RowOptions o;
    if (chance(0.2)) o.kv = groups();
    if (v.geometry.has(Form::kX) && chance(0.4)) o.x = groups();
    if (o.kv && chance(0.4)) o.slower = groups() - *o.kv;
    if (o.kv && v.total_cells(v.slower_tier()) == 0) o.slower = LayerSet();
    if (chance(0.5)) o.restore.kv = groups();
    if (v.geometry.has(Form::kX) && chance(0.5)) o.restore.x = groups();
    if (s.decoding()) {
      (void)b.decode(s, o);
    } else {
      (void)b.prefill(s, under(60) + 1, o);
    }
  }

  Random random_;
  std::set<SeqId> copied_;
};

// What the plans had in them, so that the test can say that it saw it.
struct Seen {
  uint32_t staged = 0, brought_back = 0, written_through = 0, again = 0, restored = 0, forms = 0, dropped = 0,
           adopted_elsewhere = 0, at_peers = 0;

  void look(const View& view, const StepPlan& plan) {
    for (const CopyChange& c : plan.copies) {
      staged += c.verb == Verb::kStage ? 1 : 0;
      brought_back += c.verb == Verb::kAdd && c.trigger == Trigger::kBeforeLayer ? 1 : 0;
      written_through += c.trigger == Trigger::kAfterLayerWrites ? 1 : 0;
      dropped += (c.verb == Verb::kDrop && c.trigger == Trigger::kNow) || c.verb == Verb::kDropAll ? 1 : 0;
    }
    for (const SeqView& s : view.running) {
      const bool runs =
          std::any_of(plan.rows.begin(), plan.rows.end(), [&](const Rows& r) { return r.seq == s.id; });
      // It would not have passed the ring.
      at_peers += runs && s.blocks - s.resident_blocks > view.stage_blocks && s.peer_blocks > 0 ? 1 : 0;
    }
    for (const Rows& r : plan.rows) {
      const bool dropped_rows = r.layers != LayerSet::all(kViewGroups) ||
                                std::any_of(plan.rows.begin(), plan.rows.end(), [&](const Rows& o) {
                                  return o.seq == r.seq && o.tokens.begin >= r.tokens.end;
                                });
      again += dropped_rows ? 1 : 0;
      restored += dropped_rows && r.writes != Writes{} ? 1 : 0;
      forms += !dropped_rows && !r.writes.x.empty() ? 1 : 0;
    }
    for (const Adoption& a : plan.adoptions) {
      for (const SeqView& s : view.waiting) {
        if (s.id == a.seq && s.cached_resident_cells < s.cached_tokens / kViewBlock * kViewGroups)
          ++adopted_elsewhere;
      }
    }
  }
};

TEST(PlanBuilder, WhatItBuildsAtRandomTheCheckerAccepts) {
  RandomPlans random(5);
  Seen seen;
  for (int round = 0; round < 60'000; ++round) {
    const View view = random.view();
    PlanBuilder b(view);
    random.plan(view, b);
    EXPECT_GE(b.available_blocks(), 0);
    const StepPlan plan = b.take();
    seen.look(view, plan);
    const Status status = check_plan(view, plan);
    const bool nothing =
        plan.rows.empty() && plan.failures.empty() && plan.preemptions.empty() && plan.copies.empty();
    ASSERT_TRUE(status.ok() || nothing) << "round " << round << ": " << status.message() << "\n"
                                        << to_string(plan);
  }
  // The views were of all kinds.
  EXPECT_GT(seen.staged, 1000u);
  EXPECT_GT(seen.brought_back, 1000u);
  EXPECT_GT(seen.written_through, 1000u);
  EXPECT_GT(seen.again, 300u);
  EXPECT_GT(seen.restored, 100u);
  EXPECT_GT(seen.forms, 1000u);
  EXPECT_GT(seen.dropped, 1000u);
  EXPECT_GT(seen.adopted_elsewhere, 300u);
  EXPECT_GT(seen.at_peers, 100u);
}

}  // namespace
}  // namespace kvasir::test
