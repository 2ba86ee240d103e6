// Settings of the protocol by which the instances of a cluster lend memory to each other.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir::cluster {

struct ProtocolSettings {
  // Where the instance is, from the outside in: "zone/rack/host". Peers that share more of it are nearer.
  std::string location;
  bool device = false;                      // what it lends is memory of its device, not of its host
  uint32_t lend_cap = 0;                    // blocks that may be lent at once
  Nanos heartbeat = kNanosPerSecond / 4;    // between heartbeats
  Nanos statement = kNanosPerSecond;        // between statements to a debtor
  Nanos answer = kNanosPerSecond / 2;       // how long an answer of a creditor may take
  Nanos recall = 2 * kNanosPerSecond;       // how long a debtor has to give back what is recalled
  Nanos silence = 5 * kNanosPerSecond;      // a creditor not heard of for so long has lost its contracts
  Nanos entry_lives = 2 * kNanosPerSecond;  // the leader forgets an instance after so long without heartbeat
  // How long a peer may read a prefix; and how many peers are asked for one. 0: none is, nor is one shown.
  Nanos prefix_shown = 4 * kNanosPerSecond;
  uint32_t prefix_asked = 3;
  // How many peers are asked to compute the rows of a prompt; and whether rows of peers are computed here.
  uint32_t prompt_asked = 0;
  bool computes_prompts = false;
  // Whether an instance lends to instances that it borrows from. This is useless: each could keep its own
  // blocks.
  bool lend_to_creditors = false;
  Nanos settle_period = 5 * kNanosPerSecond;  // between searches for cycles of debts
  Nanos settle_limit = 4 * kNanosPerSecond;   // how long the debts of a cycle may take to come back
  uint32_t settle_min = 8;                    // debts of fewer blocks are not settled
};

// kInvalidArgument names the first figure that makes no sense.
Status check(const ProtocolSettings& settings);

}  // namespace kvasir::cluster
