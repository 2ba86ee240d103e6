// What may happen, and what is done when it does.
#include "cluster/protocol/world.h"

#include <algorithm>
#include <cstring>

#include "base/fnv1a.h"
#include "base/leaf_tokens.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/world_memory.h"

namespace kvasir::cluster::test {
namespace {

// A message of the data plane: read a slot of a contract, with the life of the creditor that is meant.
struct ReadOrder {
  uint64_t creditor_epoch = 0;
  uint64_t contract = 0;
  uint32_t slot = 0;
};

// For how long a request says that it keeps its loan, if it knows. Some return it earlier, some are late.
constexpr Nanos kHold = 2 * kNanosPerSecond;

ProtocolSettings settings_of(const WorldConfig& config, size_t which) {
  ProtocolSettings settings;
  settings.location = "zone/rack" + std::to_string(which % 2) + "/" + std::to_string(which);
  settings.lend_cap = config.lend_cap;
  settings.settle_min = config.settle_min;
  settings.lend_to_creditors = true;  // so that there are cycles of two
  // Many settlements and revocations in a short run.
  settings.settle_period = kNanosPerSecond;
  settings.settle_limit = 2 * kNanosPerSecond;
  settings.recall = kNanosPerSecond / 2;
  settings.prompt_asked = 2;
  settings.computes_prompts = true;
  return settings;
}

}  // namespace

World::World(const WorldConfig& config) : config_(config), network_(clock_) {
  network_.hold();
  network_.spy([this](const FakeNetwork::Held& pair, const auto& bytes) { on_sent(pair, bytes); });
  using Kind = Choice::Kind;
  left_ = {{Kind::kKill, config.kills},      {Kind::kCut, config.cuts},       {Kind::kLose, config.losses},
           {Kind::kElect, config.elections}, {Kind::kLeave, config.leaves},   {Kind::kOutage, config.outages},
           {Kind::kBorrow, config.borrows},  {Kind::kRecall, config.recalls}, {Kind::kPrompt, config.prompts},
           {Kind::kPrefix, config.prefixes}};
  instances_.resize(config.instances);
  for (size_t i = 0; i < instances_.size(); ++i) start(i);
  elect(0);
  // All have heard of each other, and the leader of each one's room.
  for (Instance& instance : instances_) {
    while (!instance.news.empty()) {
      hear(instance, instance.news.front());
      instance.news.pop_front();
    }
  }
  begin();
  check_now();
}

void World::deliver_all() {
  while (!network_.held().empty()) deliver(0);
}

void World::begin() {
  deliver_all();
  if (config_.start == Start::kFresh) return;
  for (size_t i = 0; i < instances_.size(); ++i) {
    ControlPlane& creditor = *instances_[i].plane;
    // Straight to the creditor that is to be, whomever the leader would recommend.
    for (Instance& other : instances_) {
      other.plane->rmanager().lender().set_lending(other.plane.get() == &creditor);
      tick_at(other, clock_.now() + kNanosPerSecond / 2);
    }
    deliver_all();
    want(instances_[(i + 1) % instances_.size()], 1, false);
    deliver_all();
    heed_events(instances_[(i + 1) % instances_.size()]);
    KV_CHECK(creditor.rmanager().lender().lent_blocks() == 1, "{}", describe());
  }
  for (Instance& instance : instances_) instance.plane->rmanager().lender().set_lending(true);
  while (config_.start == Start::kSettling && !instances_[0].plane->gmanager().settling()) {
    deliver_all();
    size_t next = 0;
    for (size_t i = 1; i < instances_.size(); ++i) {
      if (instances_[i].plane->next_deadline() < instances_[next].plane->next_deadline()) next = i;
    }
    tick(next);
  }
}

void World::tick_at(Instance& instance, Nanos time) {
  if (time > clock_.now()) clock_.advance(time - clock_.now());
  instance.plane->tick(clock_.now());
}

World::~World() = default;

void World::start(size_t which) {
  Instance& instance = instances_[which];
  instance = Instance();
  instance.id = {std::string(1, static_cast<char>('a' + which)), ++last_epoch_};
  instance.alive = true;
  instance.transport = network_.join(instance.id);
  instance.memory =
      std::make_unique<Memory>(config_.blocks, [this](std::string what) { fail(std::move(what)); });
  instance.plane = std::make_unique<ControlPlane>(
      settings_of(config_, which), *instance.transport, instance.id, *instance.memory,
      [this, which](const PeerId& from, std::span<const std::byte> bytes) {
        on_data(instances_[which], from, bytes);
      });
  want(instance, 0, false);
  for (const Instance& other : instances_) {
    if (other.alive && other.id != instance.id) instance.news.push_back({News::Kind::kJoined, other.id});
  }
  if (leader_) instance.news.push_back({News::Kind::kLeader, *leader_, term_});
  tell_all({News::Kind::kJoined, instance.id}, which);
}

// Whatever it holds it needs.
void World::want(Instance& instance, uint32_t most, bool at_once, Nanos hold) {
  instance.want = {most, at_once ? most : 0, clock_.now(), hold};
  instance.plane->want(instance.want, /*needed_since=*/0, clock_.now());
}

void World::kill(size_t which) {
  Instance& instance = instances_[which];
  instance.alive = false;
  network_.kill(instance.id.instance);
  instance.plane.reset();
  if (leader_ == instance.id) leader_.reset();
  tell_all({News::Kind::kLost, instance.id}, which);
}

void World::elect(size_t which) {
  leader_ = instances_[which].id;
  ++term_;
  tell_all({News::Kind::kLeader, *leader_, term_}, instances_.size());
}

void World::tell_all(const News& news, size_t but) {
  for (size_t i = 0; i < instances_.size(); ++i) {
    if (i != but && instances_[i].alive) instances_[i].news.push_back(news);
  }
}

void World::hear(Instance& instance, const News& news) {
  ControlPlane& plane = *instance.plane;
  switch (news.kind) {
    case News::Kind::kJoined:
      plane.joined(news.peer, clock_.now());
      break;
    case News::Kind::kLost:
      plane.lost(news.peer, clock_.now());
      break;
    case News::Kind::kLeader:
      plane.leader(news.peer, news.term, clock_.now());
      break;
  }
}

std::vector<std::pair<ContractRef, const HeldContract*>> World::contracts_of(const Instance& instance) const {
  std::vector<std::pair<ContractRef, const HeldContract*>> out;
  for (const auto& [creditor, contracts] : instance.plane->rmanager().borrower().contracts()) {
    for (const auto& [id, contract] : contracts) out.push_back({{creditor, id}, &contract});
  }
  return out;
}

std::vector<Choice> World::choices() const {
  using Kind = Choice::Kind;
  std::vector<Choice> out;
  const auto may = [&](Kind kind) {
    const auto it = left_.find(kind);
    return it == left_.end() || it->second > 0;
  };
  const size_t held = network_.held().size();
  for (size_t i = 0; i < held; ++i) out.push_back({Kind::kDeliver, i});
  for (size_t i = 0; i < held && may(Kind::kLose); ++i) out.push_back({Kind::kLose, i});
  Nanos next = INT64_MAX;
  for (const Instance& instance : instances_) {
    if (instance.alive) next = std::min(next, instance.plane->next_deadline());
  }
  if (next != INT64_MAX && next > clock_.now()) out.push_back({Kind::kLate});
  for (size_t i = 0; i < instances_.size(); ++i) {
    const Instance& instance = instances_[i];
    if (!instance.alive) {
      out.push_back({Kind::kRejoin, i});
      continue;
    }
    if (!instance.news.empty()) out.push_back({Kind::kNews, i});
    const Nanos due = instance.plane->next_deadline();
    if (due != INT64_MAX && due <= std::max(clock_.now(), next)) out.push_back({Kind::kTick, i});
    const Lender& lender = instance.plane->rmanager().lender();
    if (instance.want.most == 0 && may(Kind::kBorrow)) {
      const uint32_t at_once = std::min(config_.lend_cap, 3u);
      for (const size_t hold : {0, 2}) {
        out.push_back({Kind::kBorrow, i, hold, 1});
        out.push_back({Kind::kBorrow, i, hold, 3});
        if (at_once > 1) out.push_back({Kind::kBorrow, i, hold + 1, at_once});
      }
    } else if (instance.want.most > 0) {
      out.push_back({Kind::kBorrow, i, 0, 0});
    }
    const auto contracts = contracts_of(instance);
    for (size_t c = 0; c < contracts.size(); ++c) {
      const HeldContract& contract = *contracts[c].second;
      const auto there = static_cast<uint32_t>(contract.held.size());
      if (there > 0) out.push_back({Kind::kReturn, i, c, 1});
      if (there > 1) out.push_back({Kind::kReturn, i, c, there});
      if (there > 0) out.push_back({Kind::kRead, i, c});
    }
    if (lender.lent_blocks() > 0 && may(Kind::kRecall)) {
      out.push_back({Kind::kRecall, i, 0, 1});
      out.push_back({Kind::kRecall, i, 0, lender.lent_blocks()});
    }
    if (config_.own_use && lender.own().blocks == 0) {
      out.push_back({Kind::kKeep, i, 0, 1});
      out.push_back({Kind::kKeep, i, 0, config_.blocks});
    } else if (config_.own_use) {
      out.push_back({Kind::kKeep, i, 0, 0});
    }
    if (config_.own_use && instance.memory->free_blocks() > 0) out.push_back({Kind::kUse, i});
    if (instance.memory->used() > 0) out.push_back({Kind::kDisuse, i});
    if (!instance.readings.empty()) out.push_back({Kind::kEndRead, i});
    if (config_.own_use) out.push_back({Kind::kStep, i});
    if (instance.questions.empty() && may(Kind::kPrompt)) {
      out.push_back({Kind::kPrompt, i, 0, 1});
      out.push_back({Kind::kPrompt, i, 0, 2});
    }
    if (!instance.questions.empty()) out.push_back({Kind::kForget, i});
    if (!instance.asks_for_prefix && may(Kind::kPrefix)) {
      out.push_back({Kind::kPrefix, i, 0, 1});
      out.push_back({Kind::kPrefix, i, 0, 2});
    }
    if (!instance.jobs.empty()) {
      out.push_back({Kind::kCompute, i, 0});
      out.push_back({Kind::kCompute, i, 1});
    }
    if (may(Kind::kKill)) out.push_back({Kind::kKill, i});
    if (may(Kind::kElect)) out.push_back({Kind::kElect, i});
    if (may(Kind::kLeave) && !instance.leaving) out.push_back({Kind::kLeave, i});
    if (!instance.directory) {
      out.push_back({Kind::kBack, i});
    } else if (may(Kind::kOutage)) {
      out.push_back({Kind::kOutage, i});
    }
    for (size_t j = i + 1; j < instances_.size(); ++j) {
      if (cuts_.contains({i, j})) {
        out.push_back({Kind::kHeal, i, j});
      } else if (may(Kind::kCut)) {
        out.push_back({Kind::kCut, i, j});
      }
    }
  }
  return out;
}

void World::apply(const Choice& choice) {
  using Kind = Choice::Kind;
  ++counts_.choices[choice.kind];
  if (const auto it = left_.find(choice.kind); it != left_.end()) --it->second;
  Instance& instance = instances_[choice.kind == Kind::kDeliver || choice.kind == Kind::kLose ? 0 : choice.a];
  const Nanos now = clock_.now();
  switch (choice.kind) {
    case Kind::kDeliver:
      deliver(choice.a);
      break;
    case Kind::kLose:
      network_.lose(network_.held().at(choice.a));
      break;
    case Kind::kNews: {
      const News news = instance.news.front();
      instance.news.pop_front();
      hear(instance, news);
      break;
    }
    case Kind::kTick:
      tick(choice.a);
      break;
    case Kind::kLate: {
      Nanos next = INT64_MAX;
      for (const Instance& other : instances_) {
        if (other.alive) next = std::min(next, other.plane->next_deadline());
      }
      clock_.advance(next - now);
      break;
    }
    case Kind::kBorrow:
      want(instance, choice.n, choice.b % 2 == 1, choice.b >= 2 ? kHold : 0);
      break;
    case Kind::kReturn: {
      const auto [ref, contract] = contracts_of(instance).at(choice.b);
      std::vector<uint32_t> slots;
      for (const uint32_t slot : contract->held) {
        if (slots.size() < choice.n) slots.push_back(slot);
      }
      instance.plane->give_back(ref, slots, now);
      break;
    }
    case Kind::kRecall:
      recall(instance, choice.n);
      break;
    case Kind::kKeep:
      instance.plane->rmanager().lender().keep_for_own(choice.n, now);
      break;
    case Kind::kUse:
      instance.memory->use();
      break;
    case Kind::kDisuse:
      instance.memory->disuse();
      break;
    case Kind::kRead: {
      const auto [ref, contract] = contracts_of(instance).at(choice.b);
      const ReadOrder order{ref.creditor.epoch, ref.id, *contract->held.begin()};
      (void)instance.plane->send_data(ref.creditor, std::as_bytes(std::span(&order, 1)));
      break;
    }
    case Kind::kEndRead:
      end_read(instance);
      break;
    case Kind::kStep:
      instance.memory->in_step = !instance.memory->in_step;
      break;
    case Kind::kKill:
      kill(choice.a);
      break;
    case Kind::kRejoin:
      start(choice.a);
      break;
    case Kind::kCut:
    case Kind::kHeal:
      if (choice.kind == Kind::kCut) {
        cuts_.insert({choice.a, choice.b});
      } else {
        cuts_.erase({choice.a, choice.b});
      }
      network_.cut(instance.id.instance, instances_[choice.b].id.instance, choice.kind == Kind::kCut);
      break;
    case Kind::kElect:
      elect(choice.a);
      break;
    case Kind::kLeave:
      instance.leaving = true;
      instance.plane->leave(now);
      break;
    case Kind::kOutage:
      instance.directory = false;
      instance.plane->directory(false, now);
      break;
    case Kind::kBack:
      instance.directory = true;
      instance.plane->directory(true, now);
      break;
    case Kind::kPrompt:
      ask_prompt(instance, choice.n);
      break;
    case Kind::kForget:
      instance.plane->prompts().forget(instance.questions.begin()->first);
      instance.questions.clear();
      break;
    case Kind::kCompute:
      compute(instance, choice.b != 0);
      break;
    case Kind::kPrefix: {
      PrefixQuestion question{++instance.last_question, {}, {1, 1}, now + 2 * kNanosPerSecond};
      for (uint64_t i = 0; i < choice.n; ++i) question.chain.push_back({i, 1});
      instance.asks_for_prefix = true;
      instance.plane->prefixes().ask(question, now);
      break;
    }
  }
  check_now();
}

// Its tokens say whose it is.
void World::ask_prompt(Instance& instance, uint32_t leaves) {
  PromptQuestion question;
  question.id = ++instance.last_question;
  question.tokens.assign(leaves * kLeafTokens, 0);
  question.tokens[0] = static_cast<Token>(instance.id.epoch);
  question.tokens[1] = static_cast<Token>(question.id);
  question.cells = leaves;
  question.since = clock_.now();
  question.until = clock_.now() + 2 * kNanosPerSecond;
  instance.questions[question.id] = leaves;
  instance.plane->prompts().ask(std::move(question), clock_.now());
}

void World::compute(Instance& instance, bool fails) {
  const PromptJob job = instance.jobs.front();
  instance.jobs.erase(instance.jobs.begin());
  std::vector<PrefixHash> chain;
  for (uint32_t leaf = 0; !fails && leaf < job.tokens.size() / kLeafTokens; ++leaf) {
    chain.push_back(
        rows_of(static_cast<uint64_t>(job.tokens[0]), static_cast<uint64_t>(job.tokens[1]), leaf));
  }
  instance.memory->compute(chain);
  instance.plane->prompts().computed(job.id, std::move(chain), clock_.now());
}

void World::tick(size_t which) {
  tick_at(instances_[which], instances_[which].plane->next_deadline());
}

void World::deliver(size_t index) {
  const FakeNetwork::Held pair = network_.held().at(index);
  wire::Envelope message;
  const std::vector<std::byte> bytes = network_.held_of(pair).front();
  message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  network_.deliver(pair);
  Instance& to = instances_[index_of(pair.to.instance)];
  if (!to.alive) return;
  ++counts_.messages;
  RManager& rmanager = to.plane->rmanager();
  counts_.refused += message.has_refused() ? 1 : 0;
  const uint64_t told = message.has_settle() ? message.settle().term() : UINT64_MAX;
  // What it lends, and no more: any message has it notice the room that there is by now.
  const std::string before = told < rmanager.term() ? rmanager.lender().describe() : "";
  const uint64_t leads = to.plane->gmanager().term();
  // The leader must go by what it is told of lenders. What it tells itself is not seen.
  const bool heard =
      leads != 0 && to.plane->post().knows(pair.from) && message.receiver_epoch() == to.id.epoch;
  if (heard && message.has_denied() && message.denied().term() == leads) {
    const PeerId refuser = get(message.denied().creditor());
    if (refuser != to.id && to.plane->gmanager().ledger().find(refuser)) refusers_.insert({leads, refuser});
  }
  // A heartbeat that is not heard would have been news all the same: then less is checked.
  if (leads != 0 && message.has_heartbeat()) refusers_.erase({leads, pair.from});
  const ContractRef loan = {pair.from, message.granted().contract()};
  const bool late = message.has_granted() && !rmanager.borrower().held(loan) &&
                    !rmanager.borrower().asks(pair.from, message.granted().ask());
  for (const PeerMessage& arrived : to.transport->receive()) to.plane->handle(arrived, clock_.now());
  counts_.granted_late += late && rmanager.borrower().held(loan) ? 1 : 0;
  if (told < rmanager.term() && rmanager.lender().describe() != before) {
    fail(fmt::format("{} obeys term {} in term {}", name_of(to.id), told, rmanager.term()));
  }
}

void World::on_sent(const FakeNetwork::Held& pair, const std::vector<std::byte>& bytes) {
  wire::Envelope message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) fail("a message is malformed");
  const Instance* sender = live(pair.from);
  if (!sender || !sender->plane) return;
  for (const wire::Advice::Share& share : message.advice().shares()) {
    const PeerId creditor = get(share.creditor());
    if (refusers_.contains({message.advice().term(), creditor})) {
      fail(fmt::format("{} recommends {}, which has refused", name_of(pair.from), name_of(creditor)));
    }
    check_turn(*sender, pair.to, creditor);
  }
  counts_.advised += message.has_advice() ? 1 : 0;
  if (message.has_ask() && sender->want.hold > 0) holds_[pair.from].insert(message.ask().ask());
  const Lender& lender = sender->plane->rmanager().lender();
  if (message.has_granted() && lender.settled_blocks() > sender->memory->free_blocks()) {
    fail(fmt::format("{} lends what a settlement has brought back", name_of(pair.from)));
  }
}

// Those that are served are no longer in the list: of those that are, none goes first that could have had it.
// Of those that gather memory the first alone is waited for that can have as much at some time; and where it
// is known when something comes back, others may pass it.
void World::check_turn(const Instance& leader, const PeerId& debtor, const PeerId& creditor) {
  const GManager& gmanager = leader.plane->gmanager();
  const LedgerEntry* entry = gmanager.ledger().find(creditor);
  const std::optional<Nanos> served = gmanager.wait_list().served_since(debtor);
  const Demand* gathers = nullptr;
  std::vector<const Demand*> wait;
  const auto lendable_to = [&](const PeerId& to) {
    uint64_t sum = 0;
    for (const auto& [id, each] : gmanager.ledger().entries())
      sum += id.instance == to.instance ? 0 : each.figures.lendable;
    return sum;
  };
  for (const Instance& other : instances_) {
    const Wish* wish = gmanager.wait_list().find(other.id);
    if (!wish) continue;
    const Demand& demand = wish->demand;
    if (demand.least <= 1) {
      wait.push_back(&demand);
    } else if (demand.least > lendable_to(demand.debtor)) {
      continue;
    } else if (!gathers || goes_first(demand.debtor, demand.since, gathers->debtor, gathers->since)) {
      gathers = &demand;
    }
  }
  const auto knows_an_end = [](const auto& each) {
    return !each.second.figures.due.empty() || !each.second.sent_due.empty();
  };
  const auto& entries = gmanager.ledger().entries();
  if (gathers && std::none_of(entries.begin(), entries.end(), knows_an_end)) wait.push_back(gathers);
  for (const Demand* first : wait) {
    if (!entry || !served || !goes_first(first->debtor, first->since, debtor, *served)) continue;
    if (!gmanager.ledger().may_lend(*entry, first->debtor, /*to_creditors=*/true)) continue;
    fail(fmt::format("{} is lent what {} {}, which came earlier", name_of(debtor), name_of(first->debtor),
                     first == gathers ? "gathers" : "waits for"));
  }
}

void World::on_data(Instance& instance, const PeerId& from, std::span<const std::byte> bytes) {
  ReadOrder order;
  if (bytes.size() != sizeof order) return fail("an order is cut short");
  std::memcpy(&order, bytes.data(), sizeof order);
  const LoanTable::Slots slot = {order.contract, order.slot, 1, 1};
  std::vector<uint32_t> blocks;
  if (!instance.plane->rmanager().lender().loans()->pin(from, {&slot, 1}, blocks).ok()) {
    ++counts_.reads_refused;
    return;
  }
  ++counts_.reads;
  const uint32_t block = blocks.front();
  instance.readings.push_back({order.contract, block});
  instance.memory->begin_read(block);
  const auto truth = truth_.find({order.contract, instance.id});
  if (order.creditor_epoch != instance.id.epoch || truth == truth_.end() || truth->second != from) {
    fail(fmt::format("{} reads contract {} of life {} at {}", name_of(from), order.contract,
                     order.creditor_epoch, name_of(instance.id)));
  }
}

void World::end_read(Instance& instance) {
  const uint32_t block = instance.readings.front().block;
  instance.readings.pop_front();
  instance.memory->end_read(block);
  instance.plane->rmanager().lender().loans()->unpin({&block, 1});
}

uint64_t World::hash() const {
  Fnv1a hash;
  hash.add(describe());
  return hash.value();
}

}  // namespace kvasir::cluster::test
