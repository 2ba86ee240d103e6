#include "engine/random_policy.h"

#include <cinttypes>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "contract/plan_builder.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

class RandomPolicy final : public Policy {
 public:
  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    bool moved = false;  // rows or preemptions are planned
    for (const SeqView* seq : shuffled(view.running)) {
      const double r = random_.unit();
      if (r < 0.03) {
        builder.preempt_and_drop(*seq);
        moved = true;
      } else if (r < 0.05) {
        builder.preempt_and_keep(*seq);
        moved = true;
      } else if (r < 0.85) {
        moved |= run(*seq, builder);
      }
    }
    for (const SeqView* seq : shuffled(view.waiting)) {
      const double r = random_.unit();
      if (seq->device_blocks > 0 && r < 0.2) {
        builder.drop_waiting(*seq);
      } else if (r < 0.6 && builder.admit(*seq, static_cast<uint32_t>(random_.below(2)))) {
        moved |= run(*seq, builder);
      }
    }
    if (!moved && view.steps_in_flight == 0) return move_on(view);
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

  bool run(const SeqView& seq, PlanBuilder& builder) {
    if (seq.decoding()) return builder.decode(seq);
    return builder.prefill(seq, static_cast<uint32_t>(random_.between(1, 48))) > 0;
  }

  // Chance has moved nothing, so choose what moves the work forward. Where the sequences that run are all
  // stuck, the last of them is preempted; where none runs, the first that waits can have everything.
  StepPlan move_on(const View& view) {
    PlanBuilder builder(view);
    for (const SeqView& seq : view.running) {
      if (run(seq, builder)) return builder.take();
    }
    if (!view.running.empty()) {
      builder.preempt_and_drop(view.running.back());
      return builder.take();
    }
    bool dropped = false;
    for (size_t i = 1; i < view.waiting.size(); ++i) {
      if (view.waiting[i].device_blocks == 0) continue;
      builder.drop_waiting(view.waiting[i]);
      dropped = true;
    }
    if (builder.admit(view.waiting[0])) {
      run(view.waiting[0], builder);
    } else if (!dropped) {
      builder.fail(view.waiting[0], "the random policy found no memory, though nothing runs");
    }
    return builder.take();
  }

  Random random_{1};
};

}  // namespace

std::unique_ptr<Policy> make_random_policy() {
  return std::make_unique<RandomPolicy>();
}

Result<std::unique_ptr<Policy>> make_test_policy(std::string_view policy_name) {
  if (policy_name == "random") return make_random_policy();
  return make_policy(policy_name);
}

}  // namespace kvasir::test
