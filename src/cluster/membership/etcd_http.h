// HTTP/1.1 with etcd's gateway: one call at a time over a kept connection, and one endless answer.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "base/status.h"
#include "cluster/membership/etcd_address.h"

namespace kvasir {

// Waits for all operations of a client. Not thread-safe except wake() and cancel().
class EtcdLoop {
 public:
  using Time = std::chrono::steady_clock::time_point;

  EtcdLoop();
  ~EtcdLoop();

  // Waits for one piece of work and does it; returns at wake(), cancel() or `until` at the latest.
  void run_one(Time until);

  // Ends the current run_one(), or else the next one. From any thread.
  void wake();
  // Waiting and new calls end with kUnavailable, until resume(). From any thread.
  void cancel();
  void resume();
  bool cancelled() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct EtcdReply {
  int http_status = 0;
  std::string body;
};

// Larger answers, and larger messages of a stream, are refused.
constexpr size_t kMaxEtcdAnswerBytes = 4 << 20;

// A connection to one endpoint, opened when it is first needed and kept. Not thread-safe; the loop outlives
// it.
class EtcdConnection {
 public:
  EtcdConnection(EtcdLoop& loop, HostPort where);
  ~EtcdConnection();

  // POSTs a JSON body and returns the answer, whatever its status. A kept connection that turns out to be
  // closed is reopened once. kUnavailable: it cannot be reached, closes early or is too slow. kCorrupt: the
  // answer is not HTTP, or too large. Messages are half sentences about the endpoint, such as "refuses
  // connections".
  Result<EtcdReply> post(const std::string& path, const std::string& body, EtcdLoop::Time deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An endless answer of lines. Not thread-safe; the loop outlives it.
class EtcdStream {
 public:
  explicit EtcdStream(EtcdLoop& loop);
  ~EtcdStream();

  // POSTs a body and waits for the answer's header; this ends an earlier answer. Errors as
  // EtcdConnection::post().
  Status open(const HostPort& where, const std::string& path, const std::string& body,
              EtcdLoop::Time deadline);
  void close();
  bool is_open() const;

  // The next line, if a whole one has arrived. EtcdLoop::run_one() brings more.
  bool next(std::string& line);
  // Why no more lines will come; ok while some may.
  Status status() const;

 private:
  struct Impl;
  EtcdLoop& loop_;
  std::shared_ptr<Impl> impl_;  // shared with the read under way; null: closed
};

}  // namespace kvasir
