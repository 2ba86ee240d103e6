#include "cluster/transport/grpc_streams.h"

#include <cstring>
#include <utility>

#include "base/heap.h"
#include "cluster/tls/grpc_credentials.h"

namespace kvasir {

void GrpcTransport::Link::begin(std::shared_ptr<Link> self, Frame hello) {
  self_ = std::move(self);
  stub_->async()->Carry(&context_, this);
  AddHold();  // until end(): writes begin outside gRPC's calls
  StartRead(&incoming_);
  StartCall();
  push(std::move(hello));
}

void GrpcTransport::Link::push(Frame frame) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  queue_.push_back(std::move(frame));
  if (!writing_) write_locked();
}

void GrpcTransport::Link::write_locked() {
  outgoing_ = std::move(queue_.front());
  queue_.pop_front();
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
  RemoveHold();
}

bool GrpcTransport::Link::overdue(Nanos run_now) {
  std::lock_guard lock(mutex_);
  return !ended_ && progress_.overdue(run_now, transport_.options().send_deadline);
}

// gRPC's threads call what is named On…, and do not survive an exception.

void GrpcTransport::Link::OnReadDone(bool ok) {
  const WaitsForMemory patient;
  if (!ok) return end("");
  bool sound = incoming_.has_taken();
  if (sound) {
    std::lock_guard lock(mutex_);
    sound = progress_.taken(incoming_.taken(), transport_.run_now_);
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
    bytes = outgoing_.message().size();
    if (ok && !ended_ && !queue_.empty()) write_locked();
  }
  transport_.settled(id_, bytes);
}

void GrpcTransport::Link::OnDone(const grpc::Status& status) {
  const WaitsForMemory patient;
  const std::string why = why_.empty() ? "gRPC: " + status.error_message() : why_;
  transport_.link_done(id_, std::exchange(self_, nullptr), why);  // this object may be gone when it returns
}

bool GrpcTransport::Arrival::look_after(const std::map<std::string, uint64_t>& introduced) {
  std::lock_guard lock(mutex_);
  if (finished_ || life_ == 0) return true;
  if (life_ != transport_.life()) {
    context_.TryCancel();  // which ends the read
    return true;
  }
  const auto sender = introduced.find(from_.instance);
  if (sender != introduced.end() && sender->second == from_.epoch) {
    unknown_since_.reset();
  } else if (!unknown_since_) {
    unknown_since_ = transport_.run_now_;
  } else if (transport_.run_now_ - *unknown_since_ > transport_.options().unknown_deadline) {
    return false;
  }
  if (writing_) return true;
  const uint64_t taken = reports_.due();
  if (taken == 0) return true;
  outgoing_.set_taken(taken);
  writing_ = true;
  StartWrite(&outgoing_);
  return true;
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

Status GrpcTransport::Arrival::greet(const cluster::Hello& hello) {
  if (hello.version() != kFramesVersion) {
    transport_.count_rejected();
    return error(ErrorCode::kUnsupported, "frames of version {}: run the same release on every instance",
                 hello.version());
  }
  PeerId from{hello.instance(), hello.epoch()};
  const std::vector<std::string> names = certified_names(*context_.auth_context());
  const bool tls = transport_.options().tls != nullptr;
  KV_RETURN_IF_ERROR(transport_.admit(from, hello.to_epoch(), tls ? &names : nullptr));
  transport_.gate_->known(context_.peer(), from.instance);
  from_ = std::move(from);
  const std::lock_guard lock(mutex_);
  life_ = hello.to_epoch();
  return {};
}

grpc::Status GrpcTransport::Arrival::take() {
  Status taken;
  if (life_ == 0 && incoming_.has_hello()) {
    taken = greet(incoming_.hello());
  } else if (life_ != 0 && incoming_.has_message()) {
    const std::string& payload = incoming_.message();
    std::vector<std::byte> message(payload.size());
    if (!payload.empty()) std::memcpy(message.data(), payload.data(), payload.size());
    taken = transport_.deliver(from_, life_, std::move(message));
  } else {
    transport_.count_rejected();
    taken = {ErrorCode::kInvalidArgument, "a frame out of turn"};
  }
  if (!taken.ok()) return {grpc::StatusCode::PERMISSION_DENIED, taken.message()};
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
