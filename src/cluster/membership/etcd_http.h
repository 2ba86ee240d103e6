// HTTP/1.1 with etcd's gateway: one call at a time over a kept connection, and one answer that never ends.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "base/status.h"
#include "cluster/membership/etcd_address.h"

namespace kvasir {

// Waits for everything that a client has under way. Not thread-safe but for wake() and cancel().
class EtcdLoop {
 public:
  using Time = std::chrono::steady_clock::time_point;

  EtcdLoop();
  ~EtcdLoop();

  // Waits for something to do, and does it: until wake(), cancel() or `until` at the latest.
  void run_one(Time until);

  // Ends a run_one() of now, or the next one. From any thread.
  void wake();
  // Calls that wait end with kUnavailable, and so do new ones, until resume(). From any thread.
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

// Answers larger than this are refused, and so are messages of a stream.
constexpr size_t kMaxEtcdAnswerBytes = 4 << 20;

// A connection to one endpoint, made when it is needed and kept. Not thread-safe; the loop outlives it.
class EtcdConnection {
 public:
  EtcdConnection(EtcdLoop& loop, HostPort where);
  ~EtcdConnection();

  // POSTs a JSON body; the answer, whatever its status. A kept connection that turns out to be closed is made
  // anew once. kUnavailable: it cannot be reached, closes early or is too slow. kCorrupt: what answers speaks
  // no HTTP, or answers too much. Messages are half sentences about the endpoint, such as "refuses
  // connections".
  Result<EtcdReply> post(const std::string& path, const std::string& body, EtcdLoop::Time deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// An answer of lines without end. Not thread-safe; the loop outlives it.
class EtcdStream {
 public:
  explicit EtcdStream(EtcdLoop& loop);
  ~EtcdStream();

  // POSTs a body and waits for the answer's header; an earlier answer ends. Errors as EtcdConnection::post().
  Status open(const HostPort& where, const std::string& path, const std::string& body,
              EtcdLoop::Time deadline);
  void close();
  bool is_open() const;

  // The next line, if one has come whole. EtcdLoop::run_one() brings more.
  bool next(std::string& line);
  // Why nothing more will come; ok while something may.
  Status status() const;

 private:
  struct Impl;
  EtcdLoop& loop_;
  std::shared_ptr<Impl> impl_;  // shared with the read under way; null: closed
};

}  // namespace kvasir
