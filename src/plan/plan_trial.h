// Tentative entries of a plan: the destructor removes them unless keep() was called.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <vector>

#include "plan/plan_builder.h"

namespace kvasir {

// Trials nest. The tentative entries concern only the named sequences, at most two.
class PlanBuilder::Trial {
 public:
  Trial(PlanBuilder& builder, std::initializer_list<const SeqView*> seqs)
      : builder_(builder), totals_(builder.state_.totals()), sizes_(sizes(builder.plan_)) {
    size_t i = 0;
    for (const SeqView* s : seqs) seqs_.at(i++).emplace(builder.state_.seq(*s));
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    if (!kept_) undo();
  }

  void keep() { kept_ = true; }

 private:
  static std::array<size_t, 4> sizes(const StepPlan& plan) {
    return {plan.preemptions.size(), plan.adoptions.size(), plan.copies.size(), plan.promises.size()};
  }
  template <typename Entry>
  static void cut(std::vector<Entry>& list, size_t size) {
    KV_CHECK(size <= list.size(), "size={} of {}", size, list.size());
    list.erase(list.begin() + static_cast<ptrdiff_t>(size), list.end());
  }
  void undo() {
    StepPlan& plan = builder_.plan_;
    cut(plan.preemptions, sizes_[0]);
    cut(plan.adoptions, sizes_[1]);
    cut(plan.copies, sizes_[2]);
    cut(plan.promises, sizes_[3]);
    cut(plan.rows, rows_);
    builder_.state_.reset(totals_);
    for (const auto& s : seqs_) {
      if (s) builder_.state_.reset(*s);
    }
  }

  PlanBuilder& builder_;
  const PlanState::Totals totals_;
  const std::array<size_t, 4> sizes_;
  const size_t rows_ = builder_.plan_.rows.size();
  std::array<std::optional<PlanState::Seq>, 2> seqs_;
  bool kept_ = false;
};

}  // namespace kvasir
