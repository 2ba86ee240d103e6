// What the transports share: the peers that are introduced, the messages that have arrived, the peers that
// are lost. A transport adds the links.
//
// A *link* carries frames one way, from introduce() to forget() or loss; acknowledgements come back along it.
// Only the link to a peer decides whether the peer is alive, never the link from it: that one also ends when
// the peer forgets us.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/transport/transport_options.h"
#include "contract/peer_transport.h"

namespace kvasir {

// kInvalidArgument: an option that no transport can work with.
Status check_options(const TransportOptions& options);

class ClusterTransport : public PeerTransport {
 public:
  std::string address() const final { return address_; }
  // Peers' links to an earlier life end too, so that the peers find that life lost.
  void begin_life(uint64_t epoch) final;
  // A call after a loss tries again. If the address cannot be parsed, the peer is lost. Does nothing while
  // the epoch is 0.
  void introduce(const PeerId& peer, const std::string& address) final;
  void forget(const PeerId& peer) final;
  // Beyond the interface: kInvalidArgument for a message over max_message_bytes, kExhausted while
  // max_waiting_bytes wait for this peer.
  Status send(const PeerId& to, std::vector<std::byte> bytes) final;
  std::vector<PeerMessage> receive() final;
  std::vector<PeerId> lost() final;
  void wait(Nanos timeout) final;
  void wake() final;

  TransportStats stats() const;
  // The library, its version and ours. Instances that differ in it must not be introduced to each other.
  virtual std::string wire() const = 0;

 protected:
  using LinkId = uint64_t;

  // REQUIRES: check_options(options).ok()
  explicit ClusterTransport(TransportOptions options);

  // What a transport implements. These are called in the order of the events, under a lock: they must not
  // block, and must not call back. A link and all its frames belong to one life of ours: frames that its
  // thread sends late must not be taken for those of the next life.
  virtual void open_link(LinkId link, uint64_t life, const PeerId& peer, const std::string& address) = 0;
  virtual void close_link(LinkId link) = 0;
  virtual void post(LinkId link, std::vector<std::byte> message) = 0;

  // What a transport reports, from any thread, holding no lock that the calls above take.
  // Whether a sender may begin a link to that life of ours. `certified`: whom its certificate names; null:
  // there is no TLS. kUnavailable: that life is over; kInvalidArgument: it claims to be another. An error is
  // counted.
  Status admit(const PeerId& from, uint64_t life, const std::vector<std::string>* certified);
  // The next message in order that arrived for that life of ours. An error: the sender must be cut off,
  // because too much waits (kExhausted) or that life is over (kUnavailable).
  Status deliver(const PeerId& from, uint64_t life, std::vector<std::byte> message);
  // The link has ended by itself.
  void link_lost(LinkId link, const std::string& why);
  // A message of the link has left the queue.
  void settled(LinkId link, size_t bytes);
  // The peers that are introduced: the epoch of each instance.
  std::map<std::string, uint64_t> introduced() const;
  void count_rejected();
  void count_refused();

  // Call once, before the transport is shared.
  void set_address(std::string address) { address_ = std::move(address); }
  const TransportOptions& options() const { return options_; }
  // Our epoch; 0: none. Epochs never repeat, so a link with another epoch belongs to a life that is over:
  // the transport cuts off peers' links to it.
  uint64_t life() const { return life_; }
  Nanos now() const { return clock_.now(); }
  // How often the links are checked, and how much time between two checks counts as run time at most.
  Nanos tick() const { return tick_; }
  Nanos stride() const { return 3 * tick_; }

 private:
  struct Peer {
    uint64_t epoch = 0;
    std::string address;
    LinkId link = 0;  // 0: lost
    size_t waiting_bytes = 0;
  };
  void drop_locked(const std::string& instance);
  // kUnavailable: it is not the current life.
  Status check_life(const PeerId& from, uint64_t life) const;

  const TransportOptions options_;
  const Nanos tick_;
  const MonotonicClock clock_;
  std::string address_;  // constant after construction

  std::atomic<uint64_t> life_;  // written under the lock

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::string, Peer> peers_;  // by instance
  std::unordered_map<LinkId, std::string> linked_;
  LinkId next_link_ = 1;
  std::vector<PeerMessage> inbox_;
  size_t inbox_bytes_ = 0;
  std::vector<PeerId> lost_;
  bool woken_ = false;
  std::set<std::string> told_of_names_;  // certificates with names that are not theirs
  TransportStats stats_;
};

}  // namespace kvasir
