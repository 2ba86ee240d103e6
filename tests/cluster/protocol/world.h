// A cluster in one thread, on the network in memory and a clock that stands still: a test picks what happens
// next, and after each thing that has happened the world is checked.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/protocol/control_plane.h"
#include "fakes/fake_network.h"

namespace kvasir::cluster::test {

using kvasir::test::FakeNetwork;

// Where a run begins; all instances know each other, and instance 0 leads.
enum class Start {
  kFresh,     // nothing is lent
  kLent,      // each owes the one before it a block, and the first the last
  kSettling,  // and that is being settled: the first messages are under way
};

struct WorldConfig {
  Start start = Start::kFresh;
  uint32_t instances = 3;
  uint32_t blocks = 4;  // of each instance
  uint32_t lend_cap = 3;
  uint32_t settle_min = 1;
  bool own_use = true;  // the instances use blocks themselves
  // How often each may happen in a run.
  int kills = 1000000;
  int cuts = 1000000;
  int losses = 1000000;
  int elections = 1000000;
  int leaves = 1;
  int outages = 1000000;  // of the directory
  int borrows = 1000000;
  int recalls = 1000000;
  int prompts = 1000000;
  int prefixes = 1000000;
};

struct Choice {
  enum class Kind {
    kDeliver,  // the next message of pair `a` of held()
    kLose,     // it vanishes
    kNews,     // instance `a` learns the next thing about membership
    kTick,     // instance `a` ticks; if no instance's time has come, it comes first
    kLate,     // time goes on, and no instance ticks
    kBorrow,   // instance `a` wants `n`: all at once, if `b` & 1; for a known time, if `b` & 2; 0: no more
    kReturn,   // instance `a` returns `n` slots of its contract number `b`
    kRecall,   // instance `a` wants `n` blocks back
    kKeep,     // a request of instance `a` needs `n` of its blocks; 0: none does any more
    kUse,      // instance `a` takes one of its own blocks
    kDisuse,   // and gives it back
    kRead,     // instance `a` reads the first slot of its contract number `b`
    kEndRead,  // the oldest reading at instance `a` ends
    kKill,     // instance `a` dies
    kRejoin,   // and begins a new life
    kCut,      // instances `a` and `b` do not hear each other
    kHeal,     // and do again
    kElect,    // instance `a` leads
    kLeave,    // instance `a` wants to leave
    kOutage,   // instance `a` loses its directory
    kBack,     // and finds it again
    kPrompt,   // instance `a` asks for the rows of `n` leaves of a prompt
    kForget,   // and has no use for the answer any more
    kStep,  // the engine of instance `a` begins a step, or ends it: none of its blocks can be taken meanwhile
    kCompute,  // instance `a` has computed the rows that it was asked for; `b`: it cannot
    kPrefix,   // instance `a` asks for `n` blocks of a prefix, and has what is found kept
  };
  static constexpr size_t kKinds = 25;
  Kind kind = Kind::kDeliver;
  size_t a = 0;
  size_t b = 0;
  uint32_t n = 0;
};

// Not thread-safe.
class World {
 public:
  explicit World(const WorldConfig& config);
  ~World();

  // In a fixed order; never empty.
  std::vector<Choice> choices() const;
  void apply(const Choice& choice);
  std::string violation() const { return violation_; }  // the first; empty: none

  // No more faults: every living instance hears everything, gives back what is recalled, and a time passes in
  // which everything must come to rest. Then all must agree.
  void settle_down();

  // Two worlds of one configuration with the same value go on alike.
  uint64_t hash() const;
  std::string describe() const;

  struct Counts {
    std::map<Choice::Kind, uint64_t> choices;
    uint64_t granted = 0;
    uint64_t granted_late = 0;  // after the lender's step, and taken
    uint64_t refused = 0;
    uint64_t recalled = 0;
    uint64_t lost = 0;
    uint64_t advised = 0;
    uint64_t atomic = 0;  // grants of several blocks at once
    uint64_t reads = 0;
    uint64_t reads_refused = 0;
    uint64_t settlements = 0;
    uint64_t leaves = 0;
    uint64_t stale = 0;
    uint64_t messages = 0;
    uint64_t prompts_computed = 0;
    uint64_t prompts_refused = 0;
    uint64_t prompts_dropped = 0;  // by those that computed them
    uint64_t prefixes_kept = 0;
    uint64_t prefixes_refused = 0;
    void add(const Counts& other);
  };
  const Counts& counts() const { return counts_; }

 private:
  class Memory;
  struct Reading {
    uint64_t contract;
    uint32_t block;
  };
  struct News {
    enum class Kind { kJoined, kLost, kLeader } kind;
    PeerId peer;
    uint64_t term = 0;
  };
  struct Instance {
    PeerId id;
    bool alive = false;
    bool leaving = false;
    bool directory = true;
    std::unique_ptr<PeerTransport> transport;
    std::unique_ptr<Memory> memory;
    std::unique_ptr<ControlPlane> plane;
    std::deque<News> news;
    std::deque<Reading> readings;
    Want want;  // as it is told its plane
    uint64_t last_question = 0;
    std::map<uint64_t, uint32_t> questions;  // for rows of prompts, without an answer: the leaves
    std::vector<PromptJob> jobs;             // of its engine
    bool asks_for_prefix = false;
  };
  struct ByTerm {
    bool operator()(const std::pair<uint64_t, PeerId>& a, const std::pair<uint64_t, PeerId>& b) const {
      return a.first == b.first ? ByPeer{}(a.second, b.second) : a.first < b.first;
    }
  };

  void start(size_t which);
  void begin();
  void deliver_all();
  void kill(size_t which);
  void elect(size_t which);
  void tell_all(const News& news, size_t but);
  void hear(Instance& instance, const News& news);
  void deliver(size_t pair);
  void tick(size_t which);
  void tick_at(Instance& instance, Nanos time);
  void on_data(Instance& instance, const PeerId& from, std::span<const std::byte> bytes);
  void on_sent(const FakeNetwork::Held& pair, const std::vector<std::byte>& bytes);
  void end_read(Instance& instance);
  void heed_events(Instance& instance);
  void heed_prompts(Instance& instance);
  void heed_prefixes(Instance& instance);
  void ask_prompt(Instance& instance, uint32_t leaves);
  void compute(Instance& instance, bool fails);
  // The rows of a leaf of a question, which an instance asks in a life.
  static PrefixHash rows_of(uint64_t epoch, uint64_t question, uint32_t leaf) {
    return {epoch << 32 | question, leaf};
  }
  void check_computed(Instance& instance, const BorrowEvent& event, uint64_t question);
  void recall(Instance& instance, uint32_t blocks);
  void give_back_recalled(Instance& instance);
  std::vector<std::pair<ContractRef, const HeldContract*>> contracts_of(const Instance& instance) const;
  size_t index_of(const std::string& instance) const;
  Instance* live(const PeerId& id);
  const Instance* live(const PeerId& id) const;
  void fail(std::string what);
  void check_now();
  void want(Instance& instance, uint32_t most, bool at_once, Nanos hold = 0);
  void check_turn(const Instance& leader, const PeerId& debtor, const PeerId& creditor);
  std::vector<Due> due_at(const Instance& instance) const;
  void check_rest();

  const WorldConfig config_;
  VirtualClock clock_;
  FakeNetwork network_;
  std::vector<Instance> instances_;
  std::set<std::pair<size_t, size_t>> cuts_;
  std::optional<PeerId> leader_;
  uint64_t term_ = 0;
  uint64_t last_epoch_ = 0;
  std::map<Choice::Kind, int> left_;
  // What must be so, kept apart from the classes that are tested.
  std::map<std::pair<uint64_t, PeerId>, PeerId, ByTerm> truth_;  // contract and creditor -> its debtor
  std::set<std::pair<uint64_t, PeerId>, ByTerm> refusers_;       // as the leader of that term has been told
  // Asks for requests that know for how long they keep what they borrow, by debtor and ask.
  std::map<PeerId, std::set<uint64_t>, ByPeer> holds_;
  std::string violation_;
  Counts counts_;
};

}  // namespace kvasir::cluster::test
