#include "cluster/protocol/debt_cycles.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace kvasir::cluster {
namespace {

enum class Colour : uint8_t { kWhite, kGrey, kBlack };  // not seen, on the path, done with

struct Visit {
  uint32_t instance;
  size_t next;  // of its creditors
};

}  // namespace

std::vector<uint32_t> find_cycle(uint32_t instances, std::span<const Debt> debts) {
  std::vector<std::vector<uint32_t>> creditors(instances);
  for (const Debt& debt : debts) {
    KV_CHECK(debt.debtor < instances && debt.creditor < instances, "{} owes {}, of {}", debt.debtor,
             debt.creditor, instances);
    creditors[debt.debtor].push_back(debt.creditor);
  }
  std::vector<Colour> colour(instances, Colour::kWhite);
  std::vector<Visit> path;
  for (uint32_t start = 0; start < instances; ++start) {
    if (colour[start] != Colour::kWhite) continue;
    colour[start] = Colour::kGrey;
    path.push_back({start, 0});
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.next == creditors[visit.instance].size()) {
        colour[visit.instance] = Colour::kBlack;
        path.pop_back();
        continue;
      }
      const uint32_t to = creditors[visit.instance][visit.next++];
      if (colour[to] == Colour::kWhite) {
        colour[to] = Colour::kGrey;
        path.push_back({to, 0});
      } else if (colour[to] == Colour::kGrey) {
        std::vector<uint32_t> cycle;
        auto first = std::find_if(path.begin(), path.end(), [&](const Visit& v) { return v.instance == to; });
        for (; first != path.end(); ++first) cycle.push_back(first->instance);
        return cycle;
      }
    }
  }
  return {};
}

std::vector<Settlement> plan_settlements(uint32_t instances, std::span<const Debt> debts, uint32_t least) {
  KV_CHECK(least > 0, "debts of no blocks have no cycles");
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> owed;
  for (const Debt& debt : debts) owed[{debt.debtor, debt.creditor}] += debt.blocks;
  std::vector<Settlement> out;
  while (true) {
    std::vector<Debt> left;
    for (const auto& [pair, blocks] : owed) {
      if (blocks >= least) left.push_back({pair.first, pair.second, blocks});
    }
    Settlement settlement{find_cycle(instances, left), UINT32_MAX};
    if (settlement.cycle.empty()) return out;
    const auto edge = [&](size_t i) -> uint32_t& {
      return owed[{settlement.cycle[i], settlement.cycle[(i + 1) % settlement.cycle.size()]}];
    };
    for (size_t i = 0; i < settlement.cycle.size(); ++i) {
      settlement.blocks = std::min(settlement.blocks, edge(i));
    }
    for (size_t i = 0; i < settlement.cycle.size(); ++i) edge(i) -= settlement.blocks;
    out.push_back(std::move(settlement));
  }
}

}  // namespace kvasir::cluster
