// The two ends of one gRPC stream. Users include grpc_transport.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/transport/grpc_links.h"

namespace kvasir {

// Thread-safe. Lives until gRPC has ended the call. That is soon after end(), or, while a write waits for a
// peer that hangs, when the system has given the connection up.
class GrpcTransport::Link final : public grpc::ClientBidiReactor<Frame, Frame> {
 public:
  Link(GrpcTransport& transport, LinkId id, const std::shared_ptr<grpc::Channel>& channel)
      : transport_(transport), id_(id), stub_(cluster::PeerStream::NewStub(channel)) {}
  // Call once, with the greeting. `self` keeps the link alive.
  void begin(std::shared_ptr<Link> self, Frame hello);
  void push(Frame frame);
  // Ends the link for the given reason; empty: the reason that gRPC gives.
  void end(const std::string& why);
  // Whether the far end takes nothing.
  bool overdue(Nanos run_now);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void write_locked();

  GrpcTransport& transport_;
  const LinkId id_;
  const std::unique_ptr<cluster::PeerStream::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<Link> self_;
  Frame incoming_;  // of the read under way

  std::mutex mutex_;  // guards what follows
  std::deque<Frame> queue_;
  Frame outgoing_;  // of the write under way
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
  // Reports newly taken frames to the sender; ends the call if the life that it sends to is over. Returns
  // false where the sender must be cut off, for it is none of those that are introduced.
  bool look_after(const std::map<std::string, uint64_t>& introduced);
  // The far end's, as gRPC writes it.
  std::string address() const { return context_.peer(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  // Takes the frame that was read. Not ok: the frame is refused.
  grpc::Status take();
  Status greet(const cluster::Hello& hello);
  void finish(const grpc::Status& status);

  GrpcTransport& transport_;
  grpc::CallbackServerContext& context_;
  Frame incoming_;  // of the read under way
  PeerId from_;     // only read callbacks write it, before the first report

  std::mutex mutex_;  // guards what follows
  // The life of ours to which it sends; 0: nothing has arrived yet. Only read callbacks write it, so they
  // read it without the lock.
  uint64_t life_ = 0;
  TakenReports reports_;
  Frame outgoing_;
  bool writing_ = false;
  bool finished_ = false;
  std::optional<Nanos> unknown_since_;  // the sender was not introduced
  grpc::Status last_word_;
};

}  // namespace kvasir
