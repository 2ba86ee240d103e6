#include "cluster/protocol/explorer.h"

#include <cstdlib>
#include <unordered_map>

#include "base/random.h"
#include "support/levels.h"

namespace kvasir::cluster::test {
namespace {

// How often a kind is chosen where it may be.
uint32_t weight(Choice::Kind kind) {
  switch (kind) {
    case Choice::Kind::kDeliver:
      return 60;
    case Choice::Kind::kNews:
      return 30;
    case Choice::Kind::kTick:
      return 20;
    case Choice::Kind::kBorrow:
    case Choice::Kind::kCompute:
      return 10;
    case Choice::Kind::kReturn:
    case Choice::Kind::kRead:
    case Choice::Kind::kEndRead:
    case Choice::Kind::kDisuse:
    case Choice::Kind::kRejoin:
    case Choice::Kind::kHeal:
    case Choice::Kind::kBack:
    case Choice::Kind::kPrompt:
    case Choice::Kind::kPrefix:
      return 6;
    case Choice::Kind::kRecall:
    case Choice::Kind::kUse:
    case Choice::Kind::kKeep:
    case Choice::Kind::kStep:
    case Choice::Kind::kLose:
    case Choice::Kind::kLate:
      return 3;
    case Choice::Kind::kKill:
    case Choice::Kind::kCut:
    case Choice::Kind::kElect:
    case Choice::Kind::kLeave:
    case Choice::Kind::kOutage:
    case Choice::Kind::kForget:
      return 1;
  }
  return 1;
}

Choice pick(const std::vector<Choice>& choices, Random& random) {
  // First the kind, then one of it: how many messages wait does not decide what happens.
  uint32_t total = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    bool first = true;
    for (size_t j = 0; j < i && first; ++j) first = choices[j].kind != choices[i].kind;
    if (first) total += weight(choices[i].kind);
  }
  auto at = static_cast<uint32_t>(random.below(total));
  for (size_t i = 0; i < choices.size(); ++i) {
    bool first = true;
    for (size_t j = 0; j < i && first; ++j) first = choices[j].kind != choices[i].kind;
    if (!first) continue;
    if (at >= weight(choices[i].kind)) {
      at -= weight(choices[i].kind);
      continue;
    }
    std::vector<Choice> of_kind;
    for (const Choice& choice : choices) {
      if (choice.kind == choices[i].kind) of_kind.push_back(choice);
    }
    return of_kind[random.below(of_kind.size())];
  }
  return choices.front();
}

}  // namespace

uint64_t scaled(uint64_t n) {
  return kvasir::test::at_long_level() ? 30 * n : n;
}

Exploration wander(const WorldConfig& config, uint64_t seed, uint64_t runs, uint64_t choices) {
  Exploration out;
  std::unordered_set<uint64_t> seen;
  for (uint64_t run = 0; run < runs; ++run) {
    World world(config);
    Random random(seed + run);
    for (uint64_t i = 0; i < choices && world.violation().empty(); ++i) {
      world.apply(pick(world.choices(), random));
      ++out.steps;
      if (run % 8 == 0) seen.insert(world.hash());
    }
    if (world.violation().empty()) {
      world.settle_down();
      ++out.runs;
    }
    out.counts.add(world.counts());
    if (!world.violation().empty()) {
      out.violation = world.violation();
      out.where = fmt::format("seed {}", seed + run);
      break;
    }
  }
  out.states = seen.size();
  return out;
}

Exploration exhaust(const WorldConfig& config, size_t depth, uint64_t states, uint64_t rests) {
  Exploration out;
  std::unordered_map<uint64_t, size_t> seen;  // and how deep
  std::vector<size_t> path;                   // of choices by their number
  std::vector<size_t> breadths;               // how many there were
  while (true) {
    // A world cannot be copied, but done again.
    World world(config);
    for (const size_t choice : path) world.apply(world.choices()[choice]);
    out.steps += path.size();
    const auto [it, inserted] = seen.emplace(world.hash(), path.size());
    const bool fresh = inserted || path.size() < it->second;
    it->second = std::min(it->second, path.size());
    const size_t breadth = world.choices().size();
    if (inserted && world.violation().empty() && seen.size() % rests == 0) {
      world.settle_down();
      ++out.runs;
    }
    out.counts.add(world.counts());
    if (!world.violation().empty()) {
      out.violation = world.violation();
      for (const size_t choice : path) out.where += fmt::format("{} ", choice);
      break;
    }
    if (seen.size() >= states) break;
    if (fresh && path.size() < depth) {
      path.push_back(0);
      breadths.push_back(breadth);
      continue;
    }
    // The next one beside the last choice, or beside the one before it.
    while (!path.empty() && ++path.back() == breadths.back()) {
      path.pop_back();
      breadths.pop_back();
    }
    if (path.empty()) break;
  }
  out.states = seen.size();
  return out;
}

}  // namespace kvasir::cluster::test
