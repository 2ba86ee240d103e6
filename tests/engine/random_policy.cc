#include "engine/random_policy.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/belief_policy.h"
#include "plan/plan_builder.h"
#include "sched/mechanisms/recall_loans.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

class RandomPolicy final : public Policy {
 public:
  RandomPolicy(uint64_t seed, RandomPlans what)
      : random_(seed), forms_(what == RandomPlans::kForms), promises_(what == RandomPlans::kPromises) {}

  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    bool moved = recall_loans(view, builder) > 0;  // rows or preemptions are planned
    const bool bargains_first = promises_ && random_.unit() < 0.5;
    if (bargains_first) bargain(view, builder);
    for (const SeqView* seq : shuffled(view.running)) {
      if (builder.preempted(seq->id)) continue;
      double r = random_.unit();
      if (!builder.can_stop(*seq)) r = std::max(r, 0.1);
      if (r < 0.02) {
        builder.preempt_and_drop(*seq);
        moved = true;
      } else if (r < 0.04) {
        builder.preempt_and_keep(*seq);
        moved = true;
      } else if (r < 0.07 && view.total_cells(Tier::kHost) > 0 && builder.preempt_and_offload(*seq)) {
        moved = true;
      } else if (forms_ && r < 0.09) {
        builder.preempt_and_keep_x(*seq);
        moved = true;
      } else if (r < 0.88) {
        if (random_.unit() < 0.3) move_copies(view, *seq, builder);
        if (forms_ && random_.unit() < 0.4) change_forms(view, *seq, builder);
        moved |= run(view, *seq, builder);
      }
    }
    for (const SeqView* seq : shuffled(view.waiting)) {
      const double r = random_.unit();
      if (seq->blocks > 0 && r < 0.15) {
        builder.drop_waiting(*seq);
      } else if (r < 0.6) {
        AdmitOptions into{static_cast<uint32_t>(random_.below(2)), length(*seq)};
        if (!forms_ && view.total_cells(view.slower_tier()) > 0 && random_.unit() < 0.4) {
          into.kv = random_layers(view);
        }
        if (builder.admit(*seq, into)) moved |= run(view, *seq, builder, /*plainly=*/false, into.kv);
      }
    }
    if (!moved && view.steps_in_flight == 0 && view.transfers_in_flight == 0) return move_on(view);
    if (promises_ && !bargains_first) bargain(view, builder);
    return builder.take();
  }

  std::string save_state() const override {
    return std::to_string(random_.seed()) + " " + std::to_string(random_.counter());
  }
  Status restore_state(std::string_view state) override {
    uint64_t seed = 0, counter = 0;
    if (std::sscanf(std::string(state).c_str(), "%" SCNu64 " %" SCNu64, &seed, &counter) != 2) {
      return error(ErrorCode::kInvalidArgument, "'{}' is no state of the random policy", state);
    }
    random_ = Random(seed, counter);
    return {};
  }

 private:
  std::vector<const SeqView*> shuffled(const std::vector<SeqView>& sequences) {
    std::vector<const SeqView*> out;
    for (const SeqView& s : sequences) out.push_back(&s);
    for (size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[random_.below(i)]);
    return out;
  }

  LayerSet random_layers(const View& view) {
    LayerSet set;
    for (uint32_t g = 0; g < view.geometry.groups(); ++g) {
      if (random_.unit() < 0.5) set.add(g);
    }
    return set;
  }

  // That room is promised for.
  uint32_t length(const SeqView& seq) {
    if (!promises_ || random_.unit() < 0.3) return 0;
    return static_cast<uint32_t>(random_.between(seq.known_tokens, seq.max_total_tokens));
  }

  // Promises of every kind, between any two sequences.
  void bargain(const View& view, PlanBuilder& builder) {
    if (random_.unit() < 0.3) {
      const uint32_t most = view.total_cells(Tier::kDevice) / 4;
      builder.set_reserve(static_cast<uint32_t>(random_.below(most + 1)));
    }
    std::vector<const SeqView*> all = shuffled(view.running);
    for (const SeqView* seq : shuffled(view.waiting)) {
      if (builder.has_rows(seq->id)) all.push_back(seq);
    }
    std::erase_if(all, [&](const SeqView* seq) { return builder.preempted(seq->id); });
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      const SeqView& a = *all[i];
      const SeqView& b = *all[i + 1];
      const auto cells = static_cast<uint32_t>(random_.between(1, 4));
      const double r = random_.unit();
      if (r < 0.1) {
        builder.promise_own(a, cells);
      } else if (r < 0.2) {
        builder.draw_reserve(a, std::min(cells, builder.reserve()));
      } else if (r < 0.6) {
        const auto due = static_cast<uint32_t>(random_.between(1, 40));
        builder.lend(a, b, std::min(cells, builder.promised(a)), a.known_tokens + due);
      } else if (r < 0.65 && view.claims.size() < 50) {
        builder.promise_release(a, b, cells);
      }
    }
  }

  // Copies, or gives up, some rectangle of what a sequence holds, whether that is of use or not.
  void move_copies(const View& view, const SeqView& seq, PlanBuilder& builder) {
    const uint32_t b = view.geometry.block_tokens;
    const LayerSet layers = random_layers(view);
    if (view.total_cells(Tier::kHost) == 0 || seq.ready_tokens < b || layers.empty()) return;
    const auto first = static_cast<uint32_t>(random_.below(seq.ready_tokens / b));
    const auto count = static_cast<uint32_t>(1 + random_.below(seq.ready_tokens / b - first));
    Interval tokens = {first * b, (first + count) * b};
    const double r = random_.unit();
    const Trigger later = r < 0.2 ? Trigger::kNow : Trigger::kBackground;
    // All of the history, with or without the block that is not full: rows that follow stage none of it.
    if (r >= 0.55 && r < 0.7)
      tokens = {0, random_.unit() < 0.5 ? seq.ready_tokens : seq.ready_tokens / b * b};
    if (r < 0.5) {
      if (builder.add_copies(seq, tokens, layers, Tier::kHost, later) && random_.unit() < 0.7) {
        builder.release(seq, tokens, layers, Tier::kDevice);
      }
    } else if (r < 0.7) {
      builder.add_copies(seq, tokens, layers, Tier::kDevice, r < 0.6 ? Trigger::kBeforeLayer : later);
    } else if (r < 0.85) {
      builder.release(seq, tokens, layers, Tier::kHost);
    } else {
      builder.release(seq, tokens, layers, Tier::kDevice);
    }
  }

  // The same of every form and tier, down to nothing at all.
  void change_forms(const View& view, const SeqView& seq, PlanBuilder& builder) {
    const uint32_t b = view.geometry.block_tokens;
    const LayerSet layers =
        random_.unit() < 0.5 ? LayerSet::all(view.geometry.groups()) : random_layers(view);
    if (seq.ready_tokens < b || layers.empty()) return;
    const auto first = static_cast<uint32_t>(random_.unit() < 0.6 ? 0 : random_.below(seq.ready_tokens / b));
    const auto count = static_cast<uint32_t>(1 + random_.below(seq.ready_tokens / b - first));
    const Interval tokens = {first * b, (first + count) * b};
    const Form form = static_cast<Form>(random_.below(kForms));
    const Tier tier = static_cast<Tier>(random_.below(kTiers));
    if (view.budget(tier).per_slab[index_of(form)] == 0) return;
    // Some sequences never lose their first layer group.
    const bool keeps_first = raw(seq.id) % 4 >= 2;
    const double r = keeps_first ? random_.unit() * 0.55 + (random_.unit() < 0.6 ? 0.45 : 0) : random_.unit();
    if (r < 0.3) {
      const bool now = form == Form::kKv && tier == Tier::kDevice;
      builder.add_copies(seq, tokens, layers, tier, now ? Trigger::kBeforeLayer : Trigger::kBackground, form);
    } else if (r < 0.55) {
      builder.release(seq, tokens, layers, tier, form);
    } else if (r < 0.65 && !keeps_first) {
      builder.drop(seq, tokens, layers, tier, form);
    } else if (r < 0.82 && !keeps_first) {
      // Down to X, or to nothing, of the oldest tokens first.
      for (Tier t : kAllTiers) {
        if (seq.held(Form::kKv, t) > 0) builder.drop(seq, {0, tokens.end}, layers, t);
      }
    } else {
      drop_from_group(view, seq, {0, tokens.end}, builder);
    }
    // What leaves the device entirely goes to the disk, half of the time.
    if (random_.unit() < 0.3 && builder.add_copies(seq, tokens, layers, Tier::kDisk, Trigger::kBackground)) {
      builder.release(seq, tokens, layers, Tier::kDevice);
      builder.release(seq, tokens, layers, Tier::kHost);
    }
  }

  // Of layer groups from some group on everything goes.
  void drop_from_group(const View& view, const SeqView& seq, Interval tokens, PlanBuilder& builder) {
    const uint32_t groups = view.geometry.groups();
    const bool keeps_first = raw(seq.id) % 4 >= 2 && groups > 1;
    const auto first =
        static_cast<uint32_t>(keeps_first ? 1 + random_.below(groups - 1) : random_.below(groups));
    LayerSet layers;
    for (uint32_t g = first; g < groups; ++g) layers.add(g);
    for (Form f : kAllForms) {
      for (Tier t : kAllTiers) {
        if (seq.held(f, t) > 0) builder.drop(seq, tokens, layers, t, f);
      }
    }
  }

  // Which forms a sequence keeps is its own.
  RowOptions forms_of(const View& view, const SeqView& seq) {
    RowOptions options;
    const uint32_t groups = view.geometry.groups();
    const auto some = [&](uint64_t salt) {
      LayerSet set;
      const uint64_t kind = random_bits(raw(seq.id), salt, 0) % 4;
      for (uint32_t g = 0; g < groups; ++g) {
        if (kind == 0 || (kind == 1 && random_bits(raw(seq.id), salt, g + 1) % 2 == 0)) set.add(g);
      }
      return set;
    };
    if (view.geometry.has(Form::kX)) options.x = some(1);
    if (random_.unit() < 0.3) {
      options.kv = random_layers(view);
      if (random_.unit() < 0.3) options.slower = random_layers(view) - *options.kv;
    }
    if (random_.unit() < 0.1) options.restore.kv = random_layers(view);
    if (random_.unit() < 0.1 && view.geometry.has(Form::kX)) options.restore.x = random_layers(view);
    return options;
  }

  // plainly: as a sequence without room for anything else. promised: what it was admitted with room for.
  bool run(const View& view, const SeqView& seq, PlanBuilder& builder, bool plainly = false,
           const std::optional<LayerSet>& promised = {}) {
    if (!builder.can_run(seq)) return false;
    RowOptions keep;
    if (!plainly && view.stage_blocks > 0 && random_.unit() < 0.3) keep.kv = random_layers(view);
    if (promised) keep.kv = promised;
    if (!plainly && forms_) keep = forms_of(view, seq);
    if (seq.decoding()) return builder.decode(seq, keep);
    return builder.prefill(seq, static_cast<uint32_t>(random_.between(1, 48)), keep) > 0;
  }

  // Chance has moved nothing, so choose what moves the work forward. Where the sequences that run are all
  // stuck, the last of them is preempted; where none runs, the first that waits can have everything.
  StepPlan move_on(const View& view) {
    PlanBuilder builder(view);
    builder.set_reserve(0);
    for (const SeqView& seq : view.running) {
      if (run(view, seq, builder, /*plainly=*/true)) return builder.take();
    }
    if (!view.running.empty()) {
      builder.preempt_and_drop(view.running.back());
      return builder.take();
    }
    bool dropped = false;
    for (size_t i = 1; i < view.waiting.size(); ++i) {
      if (view.waiting[i].blocks == 0) continue;
      builder.drop_waiting(view.waiting[i]);
      dropped = true;
    }
    if (builder.admit(view.waiting[0])) {
      if (run(view, view.waiting[0], builder, /*plainly=*/true) || view.waiting[0].blocks == 0)
        return builder.take();
      // What it holds cannot be brought to where rows could read it.
      PlanBuilder instead(view);
      instead.drop_waiting(view.waiting[0]);
      return instead.take();
    }
    if (view.waiting[0].blocks > 0) {
      builder.drop_waiting(view.waiting[0]);
    } else if (!dropped) {
      builder.fail(view.waiting[0], "the random policy found no memory, though nothing runs");
    }
    return builder.take();
  }

  Random random_;
  const bool forms_;
  const bool promises_;
};

}  // namespace

std::unique_ptr<Policy> make_random_policy(uint64_t seed, RandomPlans what) {
  return std::make_unique<RandomPolicy>(seed, what);
}

Result<std::unique_ptr<Policy>> make_test_policy(std::string_view policy_name) {
  if (policy_name == "random") return make_random_policy();
  if (policy_name == "random-forms") return make_random_policy(1, RandomPlans::kForms);
  if (policy_name == "random-promises") return make_random_policy(1, RandomPlans::kPromises);
  if (policy_name == "belief") return make_belief_policy();
  return make_policy(policy_name);
}

}  // namespace kvasir::test
