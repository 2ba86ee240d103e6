// The two ends of one gRPC stream. Users include grpc_transport.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/transport/grpc_links.h"
#include "cluster/transport/socket_address.h"

namespace kvasir {

// A socket that connects asynchronously; a failure to connect shows when it is used. kIo: too many sockets
// are open.
Result<int> connecting_socket(const SocketAddress& at);
// Uses a duplicate of the socket. kIo: too many sockets are open.
Result<std::shared_ptr<grpc::Channel>> channel_over(int socket_fd);

// Thread-safe. Lives until gRPC has ended the call, which is soon after end().
class GrpcTransport::Link final : public grpc::ClientBidiReactor<Frame, Frame> {
 public:
  // `socket_fd` is connecting or connected to the peer; the link takes ownership of it.
  Link(GrpcTransport& transport, LinkId id, uint64_t life, PeerId peer, int socket_fd,
       const std::shared_ptr<grpc::Channel>& channel);
  ~Link() override;
  // Call once. `self` keeps the link alive.
  void begin(std::shared_ptr<Link> self);
  void push(FrameKind kind, std::vector<std::byte> message);
  // Ends the link for the given reason; empty: the reason that gRPC gives.
  void end(const std::string& why);
  // Ends the link if the far end takes nothing.
  void check(Nanos run_now);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void write_locked();

  GrpcTransport& transport_;
  const LinkId id_;
  const uint64_t life_;  // of ours
  const PeerId peer_;
  // The connection, which gRPC uses too. gRPC ends no call while a write waits for a peer that hangs;
  // shutting down the socket ends the write.
  const int socket_;
  const std::unique_ptr<cluster::PeerStream::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<Link> self_;
  Frame incoming_;  // of the read under way

  std::mutex mutex_;  // guards what follows
  struct Waiting {
    FrameKind kind;
    std::vector<std::byte> message;
  };
  std::deque<Waiting> queue_;
  Frame outgoing_;  // of the write under way
  size_t outgoing_bytes_ = 0;
  bool writing_ = false;
  bool ended_ = false;
  std::string why_;
  SendProgress progress_;
};

// Thread-safe. Deletes itself when gRPC has ended the call.
class GrpcTransport::Arrival final : public grpc::ServerBidiReactor<Frame, Frame> {
 public:
  // The context is gRPC's, and outlives it.
  Arrival(GrpcTransport& transport, grpc::CallbackServerContext& context)
      : transport_(transport), context_(context) {}
  void begin() { StartRead(&incoming_); }
  // Reports newly taken frames to the sender; cuts the sender off if the life that it sends to is over.
  void look_after();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  // Takes the frame that was read. Not ok: the frame is refused.
  grpc::Status take();
  void finish(const grpc::Status& status);

  GrpcTransport& transport_;
  grpc::CallbackServerContext& context_;
  Frame incoming_;  // of the read under way
  PeerId from_;     // only read callbacks write it, before the first report
  uint64_t next_ = 0;

  std::mutex mutex_;  // guards what follows
  // The life of ours to which it sends; 0: nothing has arrived yet. Only read callbacks write it, so they
  // read it without the lock.
  uint64_t life_ = 0;
  TakenReports reports_;
  Frame outgoing_;
  bool writing_ = false;
  bool finished_ = false;
  grpc::Status last_word_;
};

}  // namespace kvasir
