// What must be so after each thing that happens, and when all has come to rest.
#include <algorithm>

#include "cluster/protocol/world.h"
#include "cluster/protocol/world_memory.h"

namespace kvasir::cluster::test {

void World::Counts::add(const Counts& other) {
  for (const auto& [kind, count] : other.choices) choices[kind] += count;
  granted += other.granted;
  granted_late += other.granted_late;
  refused += other.refused;
  recalled += other.recalled;
  lost += other.lost;
  advised += other.advised;
  atomic += other.atomic;
  reads += other.reads;
  reads_refused += other.reads_refused;
  settlements += other.settlements;
  leaves += other.leaves;
  stale += other.stale;
  messages += other.messages;
  prompts_computed += other.prompts_computed;
  prompts_refused += other.prompts_refused;
  prompts_dropped += other.prompts_dropped;
  prefixes_kept += other.prefixes_kept;
  prefixes_refused += other.prefixes_refused;
}

void World::fail(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

size_t World::index_of(const std::string& instance) const {
  return static_cast<size_t>(instance.front() - 'a');
}

const World::Instance* World::live(const PeerId& id) const {
  const Instance& instance = instances_[index_of(id.instance)];
  return instance.alive && instance.id == id ? &instance : nullptr;
}

World::Instance* World::live(const PeerId& id) {
  return const_cast<Instance*>(std::as_const(*this).live(id));
}

void World::heed_events(Instance& instance) {
  using Kind = BorrowEvent::Kind;
  const uint32_t at_once = instance.want.least;
  uint32_t granted = 0;
  for (const BorrowEvent& event : instance.plane->take_events()) {
    const auto question = instance.plane->prompts().take_question(event.contract);
    if (event.kind == Kind::kGranted && question) {
      check_computed(instance, event, *question);
    } else if (event.kind == Kind::kGranted && instance.plane->prefixes().take_kept(event.contract)) {
      ++counts_.prefixes_kept;
    } else if (event.kind == Kind::kGranted) {
      ++counts_.granted;
      granted += event.blocks;
    }
    counts_.recalled += event.kind == Kind::kRecalled ? 1 : 0;
    counts_.lost += event.kind == Kind::kLost ? 1 : 0;
  }
  heed_prompts(instance);
  heed_prefixes(instance);
  if (granted == 0) return;
  if (granted < at_once) {
    fail(fmt::format("{} is granted {} of the {} that it wants at once", name_of(instance.id), granted,
                     at_once));
  }
  counts_.atomic += at_once > 1 ? 1 : 0;
  instance.want.most -= std::min(instance.want.most, granted);
  instance.want.least = 0;
}

// What has been computed for a question answers it, once, with its own rows in their order.
void World::check_computed(Instance& instance, const BorrowEvent& event, uint64_t question) {
  ++counts_.prompts_computed;
  const std::string what = fmt::format("question {} of {}", question, name_of(instance.id));
  const auto asked = instance.questions.find(question);
  if (asked == instance.questions.end()) return fail(what + " is answered without being asked");
  if (event.blocks == 0 || event.blocks > asked->second)
    fail(fmt::format("{}, of {} leaves, is answered by {}", what, asked->second, event.blocks));
  instance.questions.erase(asked);
  const Instance* creditor = live(event.contract.creditor);
  const Contract* contract =
      creditor ? creditor->plane->rmanager().lender().lent(instance.id, event.contract.id) : nullptr;
  if (!contract) return;
  for (uint32_t slot = 0; slot < event.blocks; ++slot) {
    const uint32_t block = contract->blocks.at(slot);
    if (block == Contract::kGone) continue;
    if (creditor->memory->rows_in(block) != rows_of(instance.id.epoch, question, slot))
      fail(fmt::format("{} gets other rows in slot {}", what, slot));
  }
}

void World::heed_prompts(Instance& instance) {
  PromptLoans& prompts = instance.plane->prompts();
  for (const uint64_t question : prompts.take_refused()) {
    ++counts_.prompts_refused;
    if (instance.questions.erase(question) == 0) {
      fail(fmt::format("question {} of {} is refused without being open", question, name_of(instance.id)));
    }
  }
  for (PromptJob& job : prompts.take_jobs()) instance.jobs.push_back(std::move(job));
  for (const uint64_t dropped : prompts.take_dropped()) {
    ++counts_.prompts_dropped;
    std::erase_if(instance.jobs, [&](const PromptJob& job) { return job.id == dropped; });
  }
  if (instance.jobs.size() > 1) fail(fmt::format("{} computes two prompts", name_of(instance.id)));
}

// Of two cells that are shown it has one kept.
void World::heed_prefixes(Instance& instance) {
  PrefixExchange& prefixes = instance.plane->prefixes();
  for (const PrefixExchange::Answer& answer : prefixes.take_answers()) {
    instance.asks_for_prefix = false;
    if (answer.cells > 0) prefixes.keep(answer.shown, (answer.cells + 1) / 2, clock_.now(), clock_.now());
  }
  for (const ContractRef& shown : prefixes.take_refused()) {
    ++counts_.prefixes_refused;
    prefixes.done(shown);
  }
}

void World::check_now() {
  for (Instance& instance : instances_) {
    if (!instance.alive) continue;
    const Lender& lender = instance.plane->rmanager().lender();
    std::set<uint32_t> lent;
    uint32_t count = 0;
    for (const auto& [id, contract] : lender.contracts()) {
      truth_.emplace(std::pair(id, instance.id), contract.debtor);
      uint32_t there = 0;
      for (const uint32_t block : contract.blocks) {
        if (block == Contract::kGone) continue;
        ++there;
        if (!lent.insert(block).second)
          fail(fmt::format("{} lends block {} twice", name_of(instance.id), block));
      }
      if (there != contract.lent || there == 0) {
        fail(fmt::format("contract {} of {} has {} blocks and says {}", id, name_of(instance.id), there,
                         contract.lent));
      }
      count += there;
    }
    if (count != lender.lent_blocks()) {
      fail(fmt::format("{} lends {} and says {}", name_of(instance.id), count, lender.lent_blocks()));
    }
    const Memory& memory = *instance.memory;
    if (memory.taken().size() !=
            count + lender.pinned_leftovers() + instance.plane->prefixes().shown_cells() ||
        !std::includes(memory.taken().begin(), memory.taken().end(), lent.begin(), lent.end())) {
      fail(fmt::format("{} has taken {} blocks and lends {}", name_of(instance.id), memory.taken().size(),
                       count));
    }
    if (memory.free_blocks() + memory.used() + memory.taken().size() != memory.total_blocks()) {
      fail(fmt::format("blocks of {} are not conserved", name_of(instance.id)));
    }
    if (memory.taken().size() > config_.lend_cap + instance.plane->prefixes().shown_cells()) {
      fail(fmt::format("{} lends more than its cap", name_of(instance.id)));
    }
    // What the debtor holds the creditor lends, as long as it knows the contract.
    for (const auto& [ref, held] : contracts_of(instance)) {
      if (!held->announced && !instance.plane->rmanager().borrower().asking()) {
        fail(fmt::format("{} keeps a part of what it wanted at once", name_of(instance.id)));
      }
      const Instance* creditor = live(ref.creditor);
      const Contract* contract =
          creditor ? creditor->plane->rmanager().lender().lent(instance.id, ref.id) : nullptr;
      if (!contract) continue;
      for (const uint32_t slot : held->held) {
        if (contract->blocks.at(slot) != Contract::kGone) continue;
        fail(fmt::format("{} holds slot {} of contract {}, which {} has back", name_of(instance.id), slot,
                         ref.id, name_of(ref.creditor)));
      }
    }
    heed_events(instance);
  }
}

// For a request as old as the latest of those that blocks are lent for: from it nothing is taken, nor from
// earlier ones. Or for one that is older than all.
void World::recall(Instance& instance, uint32_t blocks) {
  Lender& lender = instance.plane->rmanager().lender();
  const Nanos since = blocks % 2 == 1 || lender.contracts().empty()
                          ? INT64_MIN
                          : lender.came(lender.contracts().rbegin()->second);
  const std::map<uint64_t, Contract> before = lender.contracts();
  instance.plane->recall(blocks, clock_.now(), since);
  for (const auto& [id, contract] : lender.contracts()) {
    const bool earlier = lender.came(contract) < since;
    if (earlier && contract.keep != before.at(id).keep) {
      fail(fmt::format("contract {} of {} is called back for a later request", id, name_of(instance.id)));
    }
  }
}

void World::give_back_recalled(Instance& instance) {
  for (const auto& [ref, held] : contracts_of(instance)) {
    const auto there = static_cast<uint32_t>(held->held.size());
    const uint32_t keep = instance.leaving ? 0 : held->keep.value_or(there);
    std::vector<uint32_t> slots;
    for (const uint32_t slot : held->held) {
      if (slots.size() + keep < there) slots.push_back(slot);
    }
    if (!slots.empty()) instance.plane->give_back(ref, slots, clock_.now());
  }
}

void World::settle_down() {
  for (const auto& [a, b] : cuts_) network_.cut(instances_[a].id.instance, instances_[b].id.instance, false);
  cuts_.clear();
  for (size_t i = 0; i < instances_.size(); ++i) {
    if (!instances_[i].alive) start(i);
    if (!instances_[i].directory) instances_[i].plane->directory(true, clock_.now());
    instances_[i].directory = true;
    instances_[i].memory->in_step = false;
    while (!instances_[i].readings.empty()) end_read(instances_[i]);
  }
  if (!leader_) elect(0);
  const Nanos end = clock_.now() + 60 * kNanosPerSecond;
  while (violation_.empty()) {
    bool moved = false;
    for (Instance& instance : instances_) {
      while (!instance.news.empty()) {
        hear(instance, instance.news.front());
        instance.news.pop_front();
        moved = true;
      }
    }
    while (!network_.held().empty()) {
      deliver(0);
      moved = true;
    }
    for (Instance& instance : instances_) {
      while (!instance.readings.empty()) end_read(instance);
      give_back_recalled(instance);
      if (!instance.jobs.empty()) compute(instance, false);
    }
    check_now();
    if (moved || !network_.held().empty()) continue;
    size_t next = 0;
    for (size_t i = 1; i < instances_.size(); ++i) {
      if (instances_[i].plane->next_deadline() < instances_[next].plane->next_deadline()) next = i;
    }
    // A settlement that is under way may end.
    if (clock_.now() >= end && !instances_[index_of(leader_->instance)].plane->gmanager().settling()) break;
    tick(next);
  }
  if (violation_.empty()) check_rest();
}

// By the loans that it has made for requests that knew for how long they keep them: nothing that the leader
// says goes into it.
std::vector<Due> World::due_at(const Instance& instance) const {
  std::vector<Due> out;
  for (const auto& [id, contract] : instance.plane->rmanager().lender().contracts()) {
    const auto its = holds_.find(contract.debtor);
    if (its != holds_.end() && its->second.contains(contract.ask))
      out.push_back({contract.due, contract.lent});
  }
  return out;
}

void World::check_rest() {
  const ControlPlane& leader = *instances_[index_of(leader_->instance)].plane;
  for (const Instance& instance : instances_) {
    const RManager& rmanager = instance.plane->rmanager();
    const std::string name = name_of(instance.id);
    if (!instance.questions.empty()) fail(fmt::format("{} waits for rows without end", name));
    if (instance.plane->prompts().next_deadline() != INT64_MAX)
      fail(fmt::format("{} has questions without end", name));
    if (instance.plane->prefixes().next_deadline() != INT64_MAX || instance.asks_for_prefix)
      fail(fmt::format("{} shows prefixes, or waits for some, without end", name));
    if (rmanager.settling()) fail(fmt::format("{} settles without end", name));
    if (rmanager.borrower().asking()) fail(fmt::format("{} waits for answers without end", name));
    if (instance.want.most > 0 && !instance.leaving) {
      const Wish* wish = leader.gmanager().wait_list().find(instance.id);
      if (!wish || wish->demand.most != instance.want.most) {
        fail(fmt::format("the leader does not know what {} wants", name));
      }
    }
    if (rmanager.lender().pinned_leftovers() > 0) fail(fmt::format("{} waits for readers", name));
    if (instance.leaving && !rmanager.gone()) fail(fmt::format("{} cannot leave", name));
    counts_.leaves += instance.leaving ? 1 : 0;
    counts_.stale += instance.plane->post().counts().stale;
    if (instance.plane->post().counts().malformed > 0)
      fail(fmt::format("{} was sent malformed messages", name));
    for (const auto& [id, contract] : rmanager.lender().contracts()) {
      if (contract.keep) fail(fmt::format("contract {} of {} is recalled", id, name));
      const Instance* debtor = live(contract.debtor);
      const HeldContract* held =
          debtor ? debtor->plane->rmanager().borrower().held({instance.id, id}) : nullptr;
      if (!held || held->held.size() != contract.lent) {
        fail(fmt::format("{} lends {} blocks by contract {} to {}, which holds {}", name, contract.lent, id,
                         name_of(contract.debtor), held ? held->held.size() : 0));
      }
    }
    for (const auto& [ref, held] : contracts_of(instance)) {
      const Instance* creditor = live(ref.creditor);
      if (!creditor || !creditor->plane->rmanager().lender().lent(instance.id, ref.id)) {
        fail(fmt::format("{} holds contract {} of {}, which does not", name, ref.id, name_of(ref.creditor)));
      }
    }
    const LedgerEntry* entry = leader.gmanager().ledger().find(instance.id);
    if (!entry || entry->figures.lent != rmanager.lender().by_debtor() ||
        entry->figures.owed != rmanager.borrower().by_creditor()) {
      fail(fmt::format("the ledger is wrong about {}", name));
    }
    if (entry && entry->figures.due != due_at(instance)) {
      fail(fmt::format("the leader does not know when what {} lends is due", name));
    }
  }
  // No wish waits for memory that is there.
  WaitList waiting;
  DebtLedger ledger;
  for (const PeerId& id : leader.gmanager().ledger().instances()) {
    const LedgerEntry& entry = *leader.gmanager().ledger().find(id);
    ledger.update(id, entry.figures, clock_.now());
    if (entry.refused) ledger.refused(id);
  }
  for (const Instance& instance : instances_) {
    if (const Wish* wish = leader.gmanager().wait_list().find(instance.id))
      waiting.put(*wish, clock_.now(), 1);
  }
  for (const Turn& turn : waiting.serve(ledger, clock_.now(), /*to_creditors=*/true)) {
    fail(fmt::format("{} waits although there is room", name_of(turn.wish.demand.debtor)));
  }
  counts_.settlements += leader.gmanager().counts().settlements;
  const auto debts = leader.gmanager().ledger().debts();
  if (!plan_settlements(config_.instances, debts, config_.settle_min).empty())
    fail("a cycle of debts is left");
}

std::string World::describe() const {
  std::string out = fmt::format("at {}, term {}\n", clock_.now(), term_);
  for (const Instance& instance : instances_) {
    out += fmt::format("{} {}{}\n", name_of(instance.id), instance.alive ? "lives" : "is dead",
                       instance.directory ? "" : ", no directory");
    if (!instance.alive) continue;
    for (const News& news : instance.news) {
      out += fmt::format("  news {} {} {}\n", static_cast<int>(news.kind), name_of(news.peer), news.term);
    }
    out += fmt::format("  uses {}{}, {} jobs, reads", instance.memory->used(),
                       instance.memory->in_step ? " in a step" : "", instance.jobs.size());
    for (const Reading& reading : instance.readings)
      out += fmt::format(" {}:{}", reading.contract, reading.block);
    out += "\n" + instance.plane->describe();
  }
  for (const FakeNetwork::Held& pair : network_.held()) {
    out += fmt::format("{} to {}:", name_of(pair.from), name_of(pair.to));
    for (const auto& bytes : network_.held_of(pair)) {
      out += " ";
      out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    out += "\n";
  }
  for (const auto& [a, b] : cuts_) out += fmt::format("cut {} {}\n", a, b);
  for (const auto& [kind, left] : left_) out += fmt::format("{}:{} ", static_cast<int>(kind), left);
  return out;
}

}  // namespace kvasir::cluster::test
