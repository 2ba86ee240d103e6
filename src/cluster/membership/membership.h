// Who is in the cluster, and who leads it.
#pragma once

#include <cstddef>
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

// What an instance says of itself when it joins. Nothing of it changes while it is a member.
struct Member {
  PeerId id;                      // join() ignores the epoch: the directory gives it
  std::string transport;          // "ucx", "grpc"
  std::string transport_version;  // of its library
  std::string transport_address;  // PeerTransport::address()
  int wire_version = 0;           // of the messages between instances
  std::string kvasir_version;
  std::string numerics_id;  // empty: runs no model (a manager that stands alone)
  std::string geometry;     // a digest of the shape of its blocks; empty as above
  bool lends_memory = false;
  std::string http_address;  // for people; may be empty
  friend bool operator==(const Member&, const Member&) = default;
};

// Of what a member publishes.
constexpr size_t kMaxStatusBytes = size_t{256} << 10;

struct Leader {
  PeerId id;
  // Grows with every election: whoever follows the leader refuses what an earlier term has ordered. A
  // directory whose data was thrown away counts anew.
  uint64_t term = 0;
  friend bool operator==(const Leader&, const Leader&) = default;
};

// What changed. Members are others, never the own instance; the leader may be the own instance.
struct MemberJoined {
  Member member;
};
struct MemberLeft {  // has gone, or has not renewed its lease: its memory is lost
  PeerId id;
};
struct LeaderElected {
  Leader leader;
};
struct LeaderGone {};  // nobody leads now
// The directory does not answer; the last view stays, and nobody is taken for dead. An own lease may have
// ended meanwhile, and others may have elected another leader: begin nothing new.
struct DirectoryDown {
  Nanos since = 0;  // when it last answered
  std::string reason;
};
struct DirectoryUp {};  // it answers again; the events before this one have brought the view up to date
// The directory holds this life of the own instance for dead, and so do the others: what it lends they have
// given up, what it has borrowed is free. It joins again by itself.
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
  // timeouts of the directory, or until the lease of a dead instance of this name has run out.
  // kInvalidArgument: a live instance has the name, or the name is none. kUnavailable, kCorrupt: the
  // directory does not answer, or is none. After an error the instance is no member and may try again.
  // REQUIRES: never joined, or no success so far
  virtual Result<uint64_t> join(const Member& self) = 0;

  // The others see the instance gone at once, if the directory answers in time. Blocks for a bounded time;
  // the second call does nothing. The destructor does the same.
  virtual void leave() = 0;

  // Stands for election from now on, in later epochs too, until resign(). Never blocks.
  virtual void campaign() = 0;
  // Stands back, and gives up the lead if it has it. Never blocks.
  virtual void resign() = 0;

  // What whoever looks at the cluster (read_cluster()) is told of this member from now on, in later epochs
  // too: JSON, for people. It is gone when the member is; the next call replaces it. It is written some time
  // later, and if it cannot be written nothing else suffers. One of more than kMaxStatusBytes is dropped.
  // Never blocks.
  virtual void publish(std::string status) = 0;

  // What happened since the last call, in order; after join() first what was there. Never blocks.
  virtual std::vector<MembershipEvent> poll() = 0;

  // Called after there is something new for poll(), on any thread; it must not block. Set before join().
  virtual void notify(std::function<void()> call) = 0;

  // The view that the events make, as of now: the other members, by name.
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
