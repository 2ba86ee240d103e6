// Cycles of debts, and what settles them: each instance in a cycle calls back as much as the smallest debt
// of the cycle, and no instance owes more than before. The graph is directed, so two instances that owe each
// other are a cycle.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::cluster {

// Instances are numbers from 0.
struct Debt {
  uint32_t debtor = 0;
  uint32_t creditor = 0;
  uint32_t blocks = 0;
  friend bool operator==(const Debt&, const Debt&) = default;
};

// A cycle: each instance owes the next and the last owes the first; empty: there is no cycle. Three colours,
// depth first, without recursion: linear in instances and debts. REQUIRES: every number is below
// `instances`.
std::vector<uint32_t> find_cycle(uint32_t instances, std::span<const Debt> debts);

struct Settlement {
  std::vector<uint32_t> cycle;  // as of find_cycle
  uint32_t blocks = 0;          // each instance calls back so many from the one before it
};

// Settlements in the order to be made. After them there is no cycle of debts of at least `least` blocks
// each; smaller debts are left alone. REQUIRES: least > 0
std::vector<Settlement> plan_settlements(uint32_t instances, std::span<const Debt> debts, uint32_t least);

}  // namespace kvasir::cluster
