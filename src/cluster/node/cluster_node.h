// One instance's part in a cluster: membership, messages, contracts and the bytes behind them, behind the
// one interface by which an engine lends and borrows.
//
//   transport ──> dispatcher's thread ──┬─ data ────> BorrowedMemory, LentMemory (threads of their own)
//   membership ─>                       └─ control ─> waits for the engine's next turn() ──> Broker
//
// The protocol runs in the engine's turns, because only there is it known which frames are free to lend.
// During a long step the dispatcher handles what needs no frames. Transfers of bytes never wait for a turn.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/broker/broker.h"
#include "cluster/membership/membership.h"
#include "cluster/memory/borrowed_memory.h"
#include "cluster/memory/lent_memory.h"
#include "cluster/node/node_status.h"
#include "contract/lending.h"
#include "contract/peer_memory.h"
#include "contract/peer_transport.h"

namespace kvasir::cluster {

// An instance that runs a model.
struct NodeMemory {
  MemoryShape shape;
  // The instance's own memory, of which it lends.
  std::array<std::span<std::byte>, kTiers> tiers;
  LentMemoryOptions lent;
  BorrowedMemoryOptions borrowed;  // its cells are those that the broker may borrow
};

struct NodeOptions {
  // What the instance registers in the directory; the epoch and the transport's address are filled in.
  Member self;
  BrokerOptions broker;
  std::optional<NodeMemory> memory;  // none: it only stands for election as gManager
  bool leads = true;                 // stands for election
  // A new member is in the directory a moment before it listens; so the first try to meet it comes later, as
  // does the next try after its connection broke.
  Nanos meet_first = 50 * kNanosPerMilli;
  Nanos meet_again = 200 * kNanosPerMilli;  // twice as long each time, if it breaks again soon
  Nanos meet_again_most = 2 * kNanosPerSecond;
};

class ClusterNode final : public Lending {
 public:
  // Everything given by reference outlives the node. The node owns the transport, which has begun no life,
  // and the directory. An error is that of joining; then nothing runs.
  static Result<std::unique_ptr<ClusterNode>> join(NodeOptions options,
                                                   std::unique_ptr<PeerTransport> transport,
                                                   std::unique_ptr<Membership> membership,
                                                   const ops::Kernels& kernels, const Clock& clock);
  // Leaves the cluster at once; what is lent and borrowed is lost. REQUIRES: the engine's last turn is over,
  // and nothing uses memory() any more
  ~ClusterNode() override;

  // The borrowed memory. The object stays the same over the lives of the instance.
  PeerMemory& memory() { return memory_; }

  LendingEvents turn(const LendingRequest& request, LendableCells& own) override;
  // The instance begins a new life.
  void start_anew() override;
  void set_wake(std::function<void()> wake) override;

  // From now on it lends and borrows no more, calls in what it has lent, and has the engine return what it
  // has borrowed. gone(): this is done. Any thread.
  void begin_to_leave();
  bool gone() const { return gone_; }

  // False after the cluster has taken this life of the instance for dead, until it has joined again. Any
  // thread; returns at once.
  bool is_member() const { return member_; }

  // Any thread.
  NodeStatus status() const;
  // The same as JSON, up to kStatusLives old: however often it is asked for, steps wait for one of them.
  static constexpr Nanos kStatusLives = 250 * kNanosPerMilli;
  std::string status_text() const;
  // Does not wait for the thread that runs the protocol. Any thread.
  NodeFigures figures() const;

 private:
  // The data plane of one life of the instance. Between two lives there is none.
  struct Data;
  // The borrowed memory of the current life.
  class AnyLife final : public PeerMemory {
   public:
    explicit AnyLife(const ClusterNode& node) : node_(node) {}
    void write(uint64_t at, std::span<const std::byte> from, Done done) override;
    void read(uint64_t at, std::span<std::byte> to, Done done) override;
    void attend(const RemoteQuery& query, std::span<float> partials, Done done) override;

   private:
    std::shared_ptr<BorrowedMemory> now() const;
    const ClusterNode& node_;
  };
  // Passes on where the broker says that cells lie, if that concerns the current life.
  class Places final : public CellPlaces {
   public:
    explicit Places(ClusterNode& node) : node_(node) {}
    void map(const ContractRef& contract, uint32_t first_slot, uint32_t first_cell, uint32_t count) override;
    void unmap(const ContractRef& contract, uint32_t first_slot, uint32_t count) override;
    void unmap(const ContractRef& contract) override;

   private:
    std::shared_ptr<BorrowedMemory> now() const;
    ClusterNode& node_;
  };
  // Sends the control plane's messages by the transport, marked as control messages; the dispatcher receives
  // them.
  class ControlChannel final : public PeerTransport {
   public:
    explicit ControlChannel(PeerTransport& transport) : transport_(transport) {}
    std::string address() const override { return transport_.address(); }
    void begin_life(uint64_t) override {}
    void introduce(const PeerId&, const std::string&) override {}
    void forget(const PeerId&) override {}
    Status send(const PeerId& to, std::vector<std::byte> bytes) override;
    std::vector<PeerMessage> receive() override { return {}; }
    std::vector<PeerId> lost() override { return {}; }
    void wait(Nanos) override {}
    void wake() override {}

   private:
    PeerTransport& transport_;
  };
  // When a member is to be introduced, or was; and how long after the next break it is introduced again.
  struct Meeting {
    Nanos at = 0;
    Nanos pause = 0;
    bool due = true;
  };
  struct PeerDied {
    PeerId peer;
  };
  using Control = std::variant<PeerMessage, MembershipEvent, PeerDied>;

  ClusterNode(NodeOptions options, std::unique_ptr<PeerTransport> transport,
              std::unique_ptr<Membership> membership, const ops::Kernels& kernels, const Clock& clock);

  void dispatch();
  void dispatch_once(Nanos& wait);
  void route(PeerMessage message, const std::shared_ptr<Data>& data, std::vector<Control>& heard);
  void begin_life(uint64_t epoch);
  void end_life();
  std::shared_ptr<Data> data() const;
  void act_without_engine();
  // These with mutex_ held: in a turn, or without one.
  template <typename Change>
  void change_broker(const Change& change);
  Nanos hear_all();
  void set_due();
  void price(LendingEvents& events) const;

  void hear(const Control& control, Nanos now);
  void hear(const MembershipEvent& event, Nanos now);
  void count_lendable();
  void meet(const Member& member, Nanos now);
  void meet_those_due(Nanos now);

  const NodeOptions options_;
  const std::unique_ptr<PeerTransport> transport_;
  const std::unique_ptr<Membership> membership_;
  const ops::Kernels& kernels_;
  const Clock& clock_;
  ControlChannel channel_;
  Places places_;
  AnyLife memory_;

  std::mutex wake_mutex_;  // guards wake_
  std::function<void()> wake_;

  mutable std::mutex text_mutex_;  // guards these, the last status_text(); taken before all others
  mutable std::string text_;
  mutable Nanos text_since_ = 0;

  std::mutex ending_mutex_;        // of end_life(); taken before all others
  mutable std::mutex data_mutex_;  // guards data_, inbox_; taken with mutex_ held, never the other way round
  std::shared_ptr<Data> data_;
  std::vector<Control> inbox_;

  mutable std::mutex mutex_;      // guards broker_ and what follows
  std::optional<Broker> broker_;  // made anew by start_anew()
  // Memory was missing while the broker was changed, and the next turn has the engine start anew; or it is
  // not there.
  bool broken_ = false;
  std::map<std::string, std::string> not_compatible_;  // by instance, why
  std::map<std::string, Meeting> meetings_;            // by instance
  uint32_t lendable_ = UINT32_MAX;                     // LendingEvents::lendable
  std::atomic<Nanos> due_{0};
  std::atomic<Nanos> woken_at_{0};
  std::atomic<Nanos> turned_at_{0};
  std::atomic<bool> woken_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> gone_{false};
  std::atomic<bool> member_{false};
  // As of the last turn, for figures().
  std::atomic<bool> leads_{false};
  std::atomic<uint32_t> peers_{0};
  std::atomic<uint64_t> settlements_{0};
  std::atomic<bool> stopping_{false};

  std::thread dispatcher_;
};

}  // namespace kvasir::cluster
