#include "engine/fair_gate.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvasir {

double FairGate::service(uint32_t tenant) const {
  const auto found = accounts_.find(tenant);
  return found == accounts_.end() ? 0 : found->second.service;
}

void FairGate::arrived(const LiveRequest& live) {
  if (live.for_peer) return;
  Account& account = accounts_[live.tenant.id];
  if (account.waiting++ > 0) return;
  double least = tenants_waiting_ > 0 ? std::numeric_limits<double>::infinity() : last_left_;
  for (const auto& [id, other] : accounts_) {
    if (&other != &account && other.waiting > 0) least = std::min(least, other.service);
  }
  account.service = std::max(account.service, least);
  ++tenants_waiting_;
}

void FairGate::stop_waiting(Account& account) {
  if (--account.waiting > 0) return;
  --tenants_waiting_;
  last_left_ = account.service;
}

void FairGate::serve(const LiveRequest& live, double tokens) {
  accounts_[live.tenant.id].service += tokens / static_cast<double>(live.tenant.weight);
}

void FairGate::began(const LiveRequest& live) {
  if (live.for_peer) return;
  serve(live, live.prompt_tokens - live.cached_prompt_tokens);
  stop_waiting(accounts_[live.tenant.id]);
}

void FairGate::left(const LiveRequest& live) {
  if (live.for_peer) return;
  Account& account = accounts_[live.tenant.id];
  stop_waiting(account);
  if (std::erase(account.held, live.id) > 0 && account.held.empty()) --holding_;
}

void FairGate::generated(const LiveRequest& live) {
  if (live.for_peer) return;
  serve(live, kOutputWeight);
}

void FairGate::update(bool stands_still) {
  if (tenants_waiting_ < 2 || stands_still) {
    if (holding_ == 0) return;
    for (auto& [id, account] : accounts_) release(account);
    return;
  }
  note_passed();
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [id, account] : accounts_) {
    if (account.passed) least = std::min(least, account.service);
  }
  for (auto& [id, account] : accounts_) {
    if (account.service <= least + slack_) release(account);
  }
  hold_those_above(least + slack_);
}

// Which tenants have a request that an earlier plan saw and left waiting. What waits now, this plan sees.
void FairGate::note_passed() {
  for (auto& [id, account] : accounts_) account.passed = !account.held.empty() && account.waiting > 0;
  for (const SeqView& seq : view_.waiting) {
    LiveRequest& live = *requests_.find(seq.id);
    if (!live.queued || live.for_peer) continue;
    if (std::exchange(live.seen, true)) accounts_[live.tenant.id].passed = true;
  }
}

void FairGate::hold_those_above(double most) {
  std::vector<LiveRequest*> ahead;
  for (const SeqView& seq : view_.waiting) {
    LiveRequest& live = *requests_.find(seq.id);
    if (live.for_peer) continue;
    Account& account = accounts_[live.tenant.id];
    if (!live.queued || account.service <= most || !may_be_held(seq)) continue;
    if (account.held.empty()) ++holding_;
    account.held.push_back(live.id);
    ahead.push_back(&live);
  }
  requests_.hold(ahead);
}

void FairGate::release(Account& account) {
  if (account.held.empty()) return;
  --holding_;
  std::vector<LiveRequest*> back;
  for (const SeqId id : std::exchange(account.held, {})) back.push_back(requests_.find(id));
  requests_.release(back);
  for (LiveRequest* live : back) keeper_.refresh(*live);
}

bool FairGate::may_be_held(const SeqView& seq) const {
  const auto none = [](const auto& counts) {
    return std::all_of(counts.begin(), counts.end(), [](uint32_t n) { return n == 0; });
  };
  const auto& claims = cache_.claims();
  return seq.blocks == 0 && seq.transfers == 0 && none(seq.promised_cells) &&
         std::none_of(claims.begin(), claims.end(),
                      [&](const Claim& c) { return c.debtor == seq.id || c.creditor == seq.id; });
}

}  // namespace kvasir
