#include "plan/plan_checker.h"

#include <algorithm>

#include "plan/broken_rule.h"
#include "plan/plan_state.h"

namespace kvasir {
namespace {

template <typename Entries>
Status apply_all(PlanState& state, const Entries& entries) {
  for (const auto& entry : entries) KV_RETURN_IF_ERROR(state.apply(entry));
  return {};
}

// Immediate drops of a plan come before its additions.
bool goes_first(const CopyChange& c) {
  return c.verb == Verb::kDropAll || (c.verb == Verb::kDrop && c.trigger == Trigger::kNow);
}

// In the order in which the committer applies them.
Status apply_plan(PlanState& state, const StepPlan& plan) {
  KV_RETURN_IF_ERROR(apply_all(state, plan.failures));
  KV_RETURN_IF_ERROR(apply_all(state, plan.preemptions));
  KV_RETURN_IF_ERROR(apply_all(state, plan.adoptions));
  for (const CopyChange& c : plan.copies) {
    if (goes_first(c)) KV_RETURN_IF_ERROR(state.apply(c));
  }
  KV_RETURN_IF_ERROR(apply_all(state, plan.promises));
  for (const CopyChange& c : plan.copies) {
    if (!goes_first(c)) KV_RETURN_IF_ERROR(state.apply(c));
  }
  return apply_all(state, plan.rows);
}

// A promise lasts until its owner stops running: cells of one that does not run would be kept from all others
// for no benefit. So its owner runs when the plan has been applied, and so does the lender of a loan.
Status check_parties(const PlanState& state, const StepPlan& plan) {
  for (const Promise& p : plan.promises) {
    if (p.kind == Promise::Kind::kReserve) continue;
    const bool loan = p.kind == Promise::Kind::kLoan;
    if (state.find(p.owner)->running && (!loan || state.find(p.from)->running)) continue;
    return broken_rule("a promise of {} cells to sequence {}{}, and not all of them run", p.cells,
                       raw(p.owner), loan ? fmt::format(" from sequence {}", raw(p.from)) : "");
  }
  return {};
}

}  // namespace

bool comes_back(const View& view) {
  return view.peers.lent > 0 && (!view.running.empty() || !view.peers.peers_refuse);
}

bool yields_to_peer(const View& view) {
  return view.running.empty() && !view.waiting.empty() &&
         std::all_of(view.waiting.begin(), view.waiting.end(),
                     [&](const SeqView& s) { return view.peers.left_to_older(s.arrival) > 0; });
}

bool help_may_come(const View& view, bool borrows) {
  if (view.steps_in_flight > 0 || view.transfers_in_flight > 0) return true;
  if (comes_back(view) || yields_to_peer(view)) return true;
  return (view.peers.asked > 0 || borrows) && !view.peers.peers_refuse;
}

// Preemptions, copies and drops are progress, too: they cannot be repeated for ever, and blocks that two
// sequences shared and gave up are counted as free only in the next view. So is a smaller reserve. Peers will
// grant or refuse every cell that was requested.
bool stands_still(const View& view, const StepPlan& plan) {
  if (view.running.empty() && view.waiting.empty()) return false;
  if (view.peers.asked > 0 || help_may_come(view, plan.borrow_cells > 0)) return false;
  for (const Promise& p : plan.promises) {
    if (p.kind == Promise::Kind::kReserve && p.cells < view.reserved_cells[index_of(p.tier)]) return false;
  }
  return plan.rows.empty() && plan.failures.empty() && plan.preemptions.empty() && plan.copies.empty();
}

Status check_plan(const View& view, const StepPlan& plan) {
  PlanState state(view);
  KV_RETURN_IF_ERROR(apply_plan(state, plan));
  KV_RETURN_IF_ERROR(state.check_totals());
  KV_RETURN_IF_ERROR(check_parties(state, plan));
  if (!stands_still(view, plan)) return {};
  return broken_rule("{} running and {} waiting sequences, but nothing runs and nothing fails",
                     view.running.size(), view.waiting.size());
}

}  // namespace kvasir
