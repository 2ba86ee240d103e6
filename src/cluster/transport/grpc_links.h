// The gRPC transport's insides: its links and their lives. Users include grpc_transport.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/transport/cluster_transport.h"
#include "cluster/transport/connection_gate.h"
#include "cluster/transport/link_state.h"
#include "cluster/transport/peer_stream.grpc.pb.h"

namespace kvasir {

// Of the frames of peer_stream.proto.
constexpr uint32_t kFramesVersion = 3;

class GrpcTransport final : public ClusterTransport {
 public:
  // REQUIRES: check_options(options).ok()
  explicit GrpcTransport(TransportOptions options);
  ~GrpcTransport() override;
  // Listens and starts the thread. Call once, before anything else.
  Status start();
  std::string wire() const override;

 protected:
  void open_link(LinkId link, uint64_t life, const PeerId& peer, const std::string& address) override;
  void close_link(LinkId link) override;
  void post(LinkId link, std::vector<std::byte> message) override;

 private:
  using Frame = cluster::PeerFrame;
  class Link;     // a link of ours: to a peer
  class Arrival;  // an incoming link: from a peer, or from an unknown sender
  class Service;

  // gRPC has ended the link. Runs on gRPC's threads, which must not release its channel: releasing the last
  // channel joins gRPC's threads, and such a thread would wait for itself.
  void link_done(LinkId id, std::shared_ptr<Link> link, const std::string& why);
  // gRPC has ended the call.
  void arrival_done(Arrival* arrival);
  grpc::ServerBidiReactor<Frame, Frame>* make_arrival(grpc::CallbackServerContext& context);
  Result<std::shared_ptr<grpc::Channel>> channel_to(const PeerId& peer, const std::string& address) const;
  void run();

  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionGate> gate_;
  std::thread thread_;

  // Taken inside ClusterTransport's lock, never the other way round; a link's own lock is taken inside this
  // one.
  mutable std::mutex links_mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<LinkId, std::shared_ptr<Link>> links_;
  std::set<Arrival*> arrivals_;                        // each deletes itself when gRPC has ended it
  size_t living_links_ = 0;                            // outgoing links that gRPC has not ended
  std::vector<std::shared_ptr<Link>> done_;            // to be released by a thread of ours, under no lock
  std::vector<std::pair<LinkId, std::string>> ended_;  // links of which link_lost() is to be told, and why
  bool stop_ = false;

  RunTime run_time_;  // of the thread
  std::atomic<Nanos> run_now_{0};
};

}  // namespace kvasir
