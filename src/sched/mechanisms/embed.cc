#include "sched/mechanisms/embed.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sched/mechanisms/loan_parties.h"

namespace kvasir {

Hosts::Hosts(const View& view, const PlanBuilder& builder)
    : view_(view), builder_(builder), regions_(view.running.size()) {
  for (Region& region : regions_) region.loan_steps = std::numeric_limits<int64_t>::max();
  const LoanParties parties(view);
  for (const Claim& claim : view.claims) {
    if (!is_open_loan(claim)) continue;
    const SeqView* guest = parties.find(claim.debtor);
    const SeqView* host = parties.find(claim.creditor);
    if (guest == nullptr || host == nullptr) continue;
    int64_t& steps = regions_[static_cast<size_t>(guest - view.running.data())].loan_steps;
    steps = std::min(steps, int64_t{claim.due_tokens} - host->known_tokens);
  }
  for (size_t i = 0; i < view.running.size(); ++i) {
    // What this plan itself promises is not lent at once.
    if (view.running[i].promised(Tier::kDevice) == 0) continue;
    read(i);
    order_.emplace_back(regions_[i].promised, i);
  }
  std::sort(order_.begin(), order_.end());
}

bool Hosts::read(size_t index) {
  const SeqView& seq = view_.running[index];
  Region& region = regions_[index];
  const uint32_t promised = builder_.promised(seq);
  const int64_t spare =
      int64_t{builder_.blocks(seq)} * view_.geometry.block_tokens - int64_t{seq.known_tokens};
  most_spare_ = std::max(most_spare_, spare);
  region.spare_tokens = spare;
  return std::exchange(region.promised, promised) != promised;
}

void Hosts::update(const SeqView& seq) {
  if (seq.promised(Tier::kDevice) == 0) return;
  const auto index = static_cast<size_t>(&seq - view_.running.data());
  const Place before = {regions_[index].promised, index};
  if (!read(index)) return;
  const Place now = {regions_[index].promised, index};
  const auto from = std::lower_bound(order_.begin(), order_.end(), before);
  const auto to = std::lower_bound(order_.begin(), order_.end(), now);
  if (from < to) {
    *std::move(from + 1, to, from) = now;
  } else {
    std::move_backward(to, from, from + 1);
    *to = now;
  }
}

Host Hosts::find(const SeqView& guest, uint32_t cells, uint32_t rest_tokens, uint32_t buffer_tokens) const {
  const int64_t steps = int64_t{rest_tokens} + buffer_tokens;
  const int64_t tokens = std::max<int64_t>(steps, 1);
  const uint32_t groups = view_.geometry.groups();
  const uint32_t block_tokens = view_.geometry.block_tokens;
  // A host with fewer cells left has no room for so many tokens beside the guest.
  const int64_t beside = ceil_div(std::max<int64_t>(0, tokens - most_spare_), int64_t{block_tokens});
  const int64_t least = cells + beside * groups;
  auto it = std::lower_bound(order_.begin(), order_.end(), least,
                             [](const Place& place, int64_t wanted) { return place.first < wanted; });
  for (; it != order_.end(); ++it) {
    const SeqView& host = view_.running[it->second];
    const Region& region = regions_[it->second];
    const int64_t left = region.spare_tokens + int64_t{(region.promised - cells) / groups} * block_tokens;
    // Of one that is a guest itself: its own loan is not due before the other has ended.
    if (left < tokens || steps > region.loan_steps) continue;
    if (host.promised(Tier::kDevice) < cells || host.id == guest.id || builder_.preempted(host.id)) continue;
    return {&host, static_cast<uint32_t>(host.known_tokens + left)};
  }
  return {};
}

}  // namespace kvasir
