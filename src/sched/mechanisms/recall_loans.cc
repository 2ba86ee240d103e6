#include "sched/mechanisms/recall_loans.h"

#include "sched/mechanisms/loan_parties.h"

namespace kvasir {

uint32_t recall_loans(const View& view, PlanBuilder& builder) {
  uint32_t preempted = 0;
  const LoanParties parties(view);
  for (const Claim& claim : view.claims) {
    if (!is_open_loan(claim) || builder.preempted(claim.debtor)) continue;
    const SeqView* guest = parties.find(claim.debtor);
    const SeqView* host = parties.find(claim.creditor);
    if (guest == nullptr || host == nullptr || host->known_tokens < claim.due_tokens) continue;
    builder.because({Cause::kLoanIsDue, guest->id, host->id, static_cast<double>(claim.cells),
                     static_cast<double>(host->known_tokens)});
    builder.preempt_and_drop(*guest);
    ++preempted;
  }
  return preempted;
}

}  // namespace kvasir
