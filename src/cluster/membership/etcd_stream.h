// One stream of etcd's, as its user sees it: requests out, responses in, one at a time.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/heap.h"

namespace kvasir {

// What a client waits for: its streams, wake() and cancel(). Shared with the streams, which outlive it.
struct EtcdSignal {
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;
  bool cancelled = false;
  grpc::ClientContext* call = nullptr;  // the call under way
};

// How a stream ended; nothing: it goes on. Guarded by the signal's mutex.
class EtcdStreamEnd {
 public:
  const std::optional<grpc::Status>& status() const { return status_; }

 protected:
  std::optional<grpc::Status> status_;
};

// Its state is guarded by the signal's mutex. Its owner keeps it until status() says how it ended, and
// releases it on a thread that is not gRPC's: with it goes a channel, and releasing the last channel joins
// gRPC's threads.
template <typename Request, typename Response>
class EtcdStream final : public grpc::ClientBidiReactor<Request, Response>, public EtcdStreamEnd {
 public:
  EtcdStream(std::shared_ptr<EtcdSignal> signal, std::shared_ptr<grpc::Channel> channel)
      : signal_(std::move(signal)), channel_(std::move(channel)) {}

  // `start` gives the call to gRPC.
  template <typename Start>
  void begin(const Start& start) {
    start(&context_, this);
    this->AddHold();  // until end(): reads and writes begin outside gRPC's calls
    this->StartRead(&incoming_);
    this->StartCall();
  }
  void write(Request request) {
    const std::lock_guard lock(signal_->mutex);
    queue_.push_back(std::move(request));
    if (!writing_) write_locked();
  }
  void end() {
    context_.TryCancel();
    const std::lock_guard lock(signal_->mutex);
    end_locked();
  }

  // These with the signal's mutex held. The next response; the one after it is read from now on.
  std::optional<Response> next() {
    if (!arrived_) return std::nullopt;
    arrived_ = false;
    std::optional<Response> out = std::move(incoming_);
    incoming_.Clear();
    if (!ended_) this->StartRead(&incoming_);
    return out;
  }
  bool has_next() const { return arrived_; }

  // gRPC's threads call these, and do not survive an exception.
  void OnReadDone(bool ok) override {
    const WaitsForMemory patient;
    const std::lock_guard lock(signal_->mutex);
    arrived_ = ok;
    if (!ok) end_locked();
    signal_->changed.notify_all();
  }
  void OnWriteDone(bool ok) override {
    const WaitsForMemory patient;
    const std::lock_guard lock(signal_->mutex);
    writing_ = false;
    if (ok) write_locked();
  }
  void OnDone(const grpc::Status& status) override {
    const WaitsForMemory patient;
    const std::shared_ptr<EtcdSignal> signal = signal_;
    const std::lock_guard lock(signal->mutex);  // when it is released, this object may be gone
    status_ = status;
    signal->changed.notify_all();
  }

 private:
  void write_locked() {
    if (ended_ || queue_.empty()) return;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    this->StartWrite(&outgoing_);
  }
  void end_locked() {
    if (std::exchange(ended_, true)) return;
    this->RemoveHold();
  }

  const std::shared_ptr<EtcdSignal> signal_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::deque<Request> queue_;
  Request outgoing_;
  Response incoming_;
  bool writing_ = false;
  bool arrived_ = false;
  bool ended_ = false;
};

}  // namespace kvasir
