#include "cluster/transport/grpc_streams.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/heap.h"

namespace kvasir {
namespace {

constexpr int kReportBytes = 4096;  // more than any report takes

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

Result<int> connecting_socket(const SocketAddress& at) {
  const int fd = socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return error(ErrorCode::kIo, "socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (connect(fd, at.get(), at.length) != 0 && errno != EINPROGRESS) shutdown(fd, SHUT_RDWR);
  return fd;
}

Result<std::shared_ptr<grpc::Channel>> channel_over(int socket_fd) {
  const int own = fcntl(socket_fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return error(ErrorCode::kIo, "dup: {}", std::strerror(errno));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReportBytes);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomInsecureChannelFromFd("peer", own, arguments);
}

GrpcTransport::Link::Link(GrpcTransport& transport, LinkId id, uint64_t life, PeerId peer, int socket_fd,
                          const std::shared_ptr<grpc::Channel>& channel)
    : transport_(transport),
      id_(id),
      life_(life),
      peer_(std::move(peer)),
      socket_(socket_fd),
      stub_(cluster::PeerStream::NewStub(channel)) {}

GrpcTransport::Link::~Link() {
  close(socket_);
}

void GrpcTransport::Link::begin(std::shared_ptr<Link> self) {
  self_ = std::move(self);
  stub_->async()->Carry(&context_, this);
  AddHold();  // until end(): writes begin outside gRPC's calls
  StartRead(&incoming_);
  StartCall();
  push(FrameKind::kHello, {});
}

void GrpcTransport::Link::push(FrameKind kind, std::vector<std::byte> message) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  queue_.push_back({kind, std::move(message)});
  if (!writing_) write_locked();
}

void GrpcTransport::Link::write_locked() {
  const Waiting next = std::move(queue_.front());
  queue_.pop_front();
  outgoing_ = transport_.frame(next.kind, life_, peer_, progress_.frames_sent(), next.message);
  outgoing_bytes_ = next.message.size();
  progress_.sent(transport_.run_now_);
  writing_ = true;
  StartWrite(&outgoing_);
}

void GrpcTransport::Link::end(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    why_ = why;
  }
  context_.TryCancel();
  shutdown(socket_, SHUT_RDWR);
  RemoveHold();
}

void GrpcTransport::Link::check(Nanos run_now) {
  bool overdue = false;
  {
    std::lock_guard lock(mutex_);
    overdue = !ended_ && progress_.overdue(run_now, transport_.options().send_deadline);
  }
  if (overdue) {
    end(fmt::format("it took nothing for {:.0f} ms", to_millis(transport_.options().send_deadline)));
  }
}

// gRPC's threads call what is named On…, and do not survive an exception.

void GrpcTransport::Link::OnReadDone(bool ok) {
  const WaitsForMemory patient;
  if (!ok) return end("");
  const auto frame = transport_.admit(bytes_of(incoming_.header()), incoming_.payload().size());
  bool sound = frame.ok() && frame->kind == FrameKind::kTaken && frame->from == peer_;
  if (sound) {
    std::lock_guard lock(mutex_);
    sound = progress_.taken(frame->sequence, transport_.run_now_);
  }
  if (!sound) end("it answers what it was not asked");
  StartRead(&incoming_);
}

void GrpcTransport::Link::OnWriteDone(bool ok) {
  const WaitsForMemory patient;
  size_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
    bytes = outgoing_bytes_;
    if (ok && !ended_ && !queue_.empty()) write_locked();
  }
  transport_.settled(id_, bytes);
}

void GrpcTransport::Link::OnDone(const grpc::Status& status) {
  const WaitsForMemory patient;
  const std::string why = why_.empty() ? "gRPC: " + status.error_message() : why_;
  transport_.link_done(id_, std::exchange(self_, nullptr), why);  // this object may be gone when it returns
}

void GrpcTransport::Arrival::look_after() {
  std::lock_guard lock(mutex_);
  if (finished_) return;
  if (life_ != 0 && life_ != transport_.life()) return context_.TryCancel();  // which ends the read
  if (writing_) return;
  const uint64_t taken = reports_.due();
  if (taken == 0) return;
  outgoing_ = transport_.frame(FrameKind::kTaken, life_, from_, taken, {});
  writing_ = true;
  StartWrite(&outgoing_);
}

void GrpcTransport::Arrival::OnReadDone(bool ok) {
  const WaitsForMemory patient;
  if (!ok) return finish(grpc::Status::OK);
  const grpc::Status status = take();
  if (!status.ok()) {
    transport_.count_refused();
    return finish(status);
  }
  StartRead(&incoming_);
}

grpc::Status GrpcTransport::Arrival::take() {
  const auto frame = transport_.admit(bytes_of(incoming_.header()), incoming_.payload().size());
  if (!frame.ok()) return {grpc::StatusCode::PERMISSION_DENIED, frame.status().message()};
  const FrameKind due = next_ == 0 ? FrameKind::kHello : FrameKind::kMessage;
  if (next_ == 0) {
    from_ = frame->from;
    const std::lock_guard lock(mutex_);
    life_ = frame->to_epoch;
  }
  if (frame->from != from_ || frame->to_epoch != life_ || frame->sequence != next_ || frame->kind != due ||
      frame->payload_bytes != frame->message_bytes) {
    transport_.count_rejected();
    return {grpc::StatusCode::INVALID_ARGUMENT, "a frame out of turn"};
  }
  ++next_;
  if (frame->kind == FrameKind::kMessage) {
    const std::string& payload = incoming_.payload();
    std::vector<std::byte> message(payload.size());
    if (!payload.empty()) std::memcpy(message.data(), payload.data(), payload.size());
    const Status taken = transport_.deliver(from_, frame->to_epoch, std::move(message));
    if (!taken.ok()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, taken.message()};
  }
  std::lock_guard lock(mutex_);
  reports_.took();
  return grpc::Status::OK;
}

void GrpcTransport::Arrival::OnWriteDone(bool) {
  const WaitsForMemory patient;
  std::lock_guard lock(mutex_);
  writing_ = false;
  if (finished_) Finish(last_word_);
}

void GrpcTransport::Arrival::finish(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  if (std::exchange(finished_, true)) return;
  last_word_ = status;
  if (!writing_) Finish(last_word_);
}

void GrpcTransport::Arrival::OnDone() {
  transport_.arrival_done(this);
}

}  // namespace kvasir
