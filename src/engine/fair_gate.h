// Fairness among tenants that share an engine, under every policy: it decides whose waiting requests a policy
// sees, and leaves to the policy which of those it runs, and when.
//
// Each tenant has a virtual counter of the service that it had: (prompt tokens that were computed + 2 x
// tokens that were generated) / weight. While requests of several tenants wait that have never run, a tenant
// whose counter is more than `slack` above that of a tenant with a request that a plan has left waiting gives
// way: its requests that have never run are held back, in no list of the View, until the other has caught up
// or has nothing left to wait for. A tenant that begins to wait is lifted to the least counter of those that
// wait, so that it brings no credit of a time at which it asked for nothing. This is the virtual token
// counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with its costs and
// weights, except that the order within `slack`, and of the requests of a tenant, is the policy's; and that
// tokens which are cached cost nothing, as in Cao et al., "Locality-aware Fair Scheduling in LLM Serving"
// (2025).
//
// What it keeps:
// - Fairness. While two tenants have requests that wait throughout, the counter of the one that is ahead is
//   above the other's by at most
//       slack + (prompts + 2 x outputs) / its weight,
//   where `prompts` are the prompt tokens of its requests that two plans begin to run (the first that sees
//   the other's requests, and the one that takes it beyond the slack), and `outputs` what its requests that
//   have begun by then still generate. The paper's bound has the same terms: nothing that has begun is taken
//   back.
// - Work. With requests of one tenant waiting, the policy sees all of them: it decides as without tenants.
//   For a request that has just come no other is held back until a plan has left it waiting, so it costs
//   others no step that it could run beside. If the engine stands still, the policy sees all requests.
// - Requests that have run, or that hold memory or a promise of it, are always seen. So are those for peers,
//   which no tenant has sent.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cache/sequences/kv_cache.h"
#include "contract/view.h"
#include "engine/live_requests.h"
#include "engine/options.h"
#include "engine/view_keeper.h"

namespace kvasir {

// Used by the engine's thread.
class FairGate {
 public:
  // The arguments outlive it.
  FairGate(const EngineOptions& options, const View& view, LiveRequests& requests, ViewKeeper& keeper,
           const KvCache& cache)
      : slack_(options.fair_slack_tokens), view_(view), requests_(requests), keeper_(keeper), cache_(cache) {}

  // What a token of output counts beside one of input: the ratio of the paper, and of prices.
  static constexpr double kOutputWeight = 2;

  // A request waits for the first time.
  void arrived(const LiveRequest& live);
  // It runs for the first time, with live.cached_prompt_tokens that need no computation.
  void began(const LiveRequest& live);
  // It ends without having run.
  void left(const LiveRequest& live);
  // It has one more token.
  void generated(const LiveRequest& live);

  // Whether it holds any request back.
  bool holds() const { return holding_ > 0; }
  // Before a plan: holds requests back, or shows them again. stands_still: the last turn ran nothing.
  void update(bool stands_still);

  // The tenant's counter; 0: it has sent nothing yet.
  double service(uint32_t tenant) const;

 private:
  struct Account {
    double service = 0;    // in tokens of weight 1
    uint32_t waiting = 0;  // requests that have never run
    bool passed = false;   // a plan has left one of them waiting
    std::vector<SeqId> held;
  };

  void serve(const LiveRequest& live, double tokens);
  void stop_waiting(Account& account);
  void note_passed();
  void hold_those_above(double most);
  void release(Account& account);
  bool may_be_held(const SeqView& seq) const;

  const double slack_;
  const View& view_;
  LiveRequests& requests_;
  ViewKeeper& keeper_;
  const KvCache& cache_;
  std::map<uint32_t, Account> accounts_;  // by tenant
  size_t tenants_waiting_ = 0;            // accounts with waiting > 0
  size_t holding_ = 0;                    // accounts with held
  double last_left_ = 0;                  // the counter of the tenant that was the last to stop waiting
};

}  // namespace kvasir
