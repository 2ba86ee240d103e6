// The members of the cluster, and its leader.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/peer_transport.h"

namespace kvasir {

// The description that an instance gives of itself when it joins. It does not change while the instance is a
// member.
struct Member {
  PeerId id;                      // join() ignores the epoch: the directory assigns it
  std::string transport;          // "grpc"
  std::string transport_version;  // of its library
  std::string transport_address;  // PeerTransport::address()
  int wire_version = 0;           // of the messages between instances
  std::string kvasir_version;
  std::string numerics_id;   // empty: runs no model (a manager that stands alone)
  std::string geometry;      // a digest of the shape of its blocks; empty as above
  uint32_t lends_cells = 0;  // the most at one time; 0: it lends none
  std::string http_address;  // for people; may be empty
  // URL of the port that serves /cluster/status; empty: none does.
  std::string status_address;
  friend bool operator==(const Member&, const Member&) = default;
};

struct Leader {
  PeerId id;
  // Grows with every election: instances refuse orders of an earlier term. A directory whose data was
  // deleted starts to count again.
  uint64_t term = 0;
  friend bool operator==(const Leader&, const Leader&) = default;
};

// What changed. Members are other instances, never the own one; the leader may be the own instance.
struct MemberJoined {
  Member member;
};
struct MemberLeft {  // it left, or did not renew its lease: its memory is lost
  PeerId id;
};
struct LeaderElected {
  Leader leader;
};
struct LeaderGone {};  // there is no leader now
// The directory does not answer; the last view stays, and no member is considered dead. The own lease may
// have ended meanwhile, and others may have elected another leader: begin nothing new.
struct DirectoryDown {
  Nanos since = 0;  // when it last answered
  std::string reason;
};
struct DirectoryUp {};  // it answers again; the events before this one have brought the view up to date
// The directory and the other members consider this life of the own instance dead: they have given up what
// it lends, and what it has borrowed is free. It joins again by itself.
struct EpochLost {
  PeerId id;
};
struct Rejoined {
  PeerId id;  // with the new epoch
};
using MembershipEvent = std::variant<MemberJoined, MemberLeft, LeaderElected, LeaderGone, DirectoryDown,
                                     DirectoryUp, EpochLost, Rejoined>;

// Thread-safe.
class Membership {
 public:
  virtual ~Membership() = default;

  // Makes the instance a member; returns its epoch when members() and leader() are known. Blocks for a few
  // timeouts of the directory, or until the lease of a dead instance of this name has expired.
  // kInvalidArgument: a live instance has the name, or the name is invalid. kUnavailable, kCorrupt: the
  // directory does not answer, or is no directory. After an error the instance is no member and may try
  // again.
  // REQUIRES: never joined, or no success so far
  virtual Result<uint64_t> join(const Member& self) = 0;

  // The other members see at once that the instance is gone, if the directory answers in time. Blocks for a
  // bounded time; the second call does nothing. The destructor does the same.
  virtual void leave() = 0;

  // Stands for election from now on, in later epochs too, until resign(). Never blocks.
  virtual void campaign() = 0;
  // Stops standing for election, and gives up the lead if it has it. Never blocks.
  virtual void resign() = 0;

  // Gives this life up, as if the others had taken it for dead: EpochLost and Rejoined follow. Between lives
  // it changes nothing. Never blocks.
  virtual void rejoin() = 0;

  // The events since the last call, in order; the first after join() describe the state at that time. Never
  // blocks.
  virtual std::vector<MembershipEvent> poll() = 0;

  // `call` is called, on any thread, when there are new events for poll(); it must not block. Set before
  // join().
  virtual void notify(std::function<void()> call) = 0;

  // The current view, which the events lead to: the other members, by name.
  virtual std::vector<Member> members() const = 0;
  virtual std::optional<Leader> leader() const = 0;
  // The own name and epoch; epoch 0 while it is no member.
  virtual PeerId self() const = 0;
  // Since when the directory does not answer; nothing if it does.
  virtual std::optional<Nanos> down_since() const = 0;
};

// Whether two members may exchange memory: the same wire and Kvasir version, the same transport and version
// of its library, and, where both run a model, the same numerics id and geometry. kUnsupported: what differs,
// and what to do.
Status check_compatible(const Member& self, const Member& other);

}  // namespace kvasir
