// The creditor's side of lent memory: peers write into cells that they were lent, read them, and have
// attention computed over them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "cluster/memory/cell_tables.h"
#include "cluster/memory/compute_budget.h"
#include "cluster/memory/data_wire.h"
#include "cluster/memory/memory_shape.h"
#include "cluster/memory/ship_or_fetch.h"
#include "contract/peer_transport.h"

namespace kvasir {

// Sends a message of this folder to a peer. Thread-safe; never calls back into the sender.
using SendData = std::function<Status(const PeerId& to, std::vector<std::byte> message)>;

// The lent cells. Their owner implements this and alone decides over them. Thread-safe; outlives the
// LentMemory.
class LentCells {
 public:
  virtual ~LentCells() = default;
  // Adds the first byte of each cell of the runs, of the geometry's kv_cell_bytes(), to `at`, and what
  // unpin() is to be given to `pins`. False: one of them is not lent to this debtor, or no longer, and none
  // is pinned. The memory keeps its use until unpin().
  virtual bool pin(const PeerId& debtor, std::span<const CellRun> runs, std::vector<std::byte*>& at,
                   std::vector<uint32_t>& pins) = 0;
  virtual void unpin(std::span<const uint32_t> pins) = 0;
  // Of a contract that is only for reading nothing is overwritten.
  virtual bool may_write(uint64_t) const { return true; }
};

struct LentMemoryOptions {
  // Threads that serve queries. 0: the callers of serve_one() serve them.
  int threads = 1;
  // The part of these threads' time that may go into attention for peers: 0 (none: each query is refused)
  // .. 1.
  double share = 0.5;
  // The most unused time that may be saved up.
  Nanos burst = 20 * kNanosPerMilli;
  // A query is refused as busy if the queries before it would take longer than max_wait at the share, if
  // max_queued requests of its debtor wait, or if max_queued_bytes of all debtors wait.
  Nanos max_wait = 500 * kNanosPerMilli;
  size_t max_queued = 64;
  uint64_t max_queued_bytes = 64 * kMiB;
};

struct LentMemoryStats {
  uint64_t queries = 0;      // answered with partial results
  uint64_t leaf_rows = 0;    // of these, leaves x rows
  double busy_s = 0;         // attending
  uint64_t busy = 0;         // queries that were refused because compute was short
  uint64_t too_late = 0;     // that had waited longer than their debtor waits
  uint64_t malformed = 0;    // messages, answered or not
  uint64_t stale_epoch = 0;  // addressed to another life, or sent by one
  uint64_t no_cell = 0;
  uint64_t no_table = 0;  // queries whose debtor must send their cells again
  uint64_t writes = 0;
  uint64_t reads = 0;
  uint64_t written_bytes = 0;
  uint64_t read_bytes = 0;
  uint64_t queued = 0;  // now
};

// Every request gets one reply, possibly an error, unless its header cannot be read or its sender was lost.
// Requests of one debtor take effect in the order of their arrival, except that queries and reads between
// two writes may be served in any order; debtors take turns. A copy needs no share of compute. A read is
// served at once if its debtor has no write waiting, a write if its debtor has nothing waiting. Thread-safe.
class LentMemory {
 public:
  // shape, kernels, cells, clock outlive it. self: this life.
  LentMemory(LentMemoryOptions options, PeerId self, const MemoryShape& shape, const ops::Kernels& kernels,
             LentCells& cells, const Clock& clock, SendData send);
  // Waiting requests are not answered.
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // Stops serving; when this returns nothing is pinned. REQUIRES: not called by handle() or serve_one()
  void stop();

  // A message that is no reply (is_reply()). Never waits for a query.
  void handle(const PeerId& from, std::span<const std::byte> message);
  // The peer is dead: its requests are no longer served or answered.
  void lost(const PeerId& debtor);
  // share: as in the options.
  void set_share(double share);
  // Serves the next request on the calling thread. False: none may begin now.
  bool serve_one();

  LentMemoryStats stats() const;

 private:
  struct Debtor;
  struct Request {
    std::shared_ptr<Debtor> debtor;
    DataHeader header;
    CellSpan at;
    std::span<const std::byte> payload;  // of a write; in `bytes` if it was queued
    std::vector<std::byte> bytes;
    AttendBody body;
    std::vector<float> q;
    uint64_t leaves = 0;
    Nanos arrived = 0;
    Nanos waited = 0;
    Nanos worked = 0;
    DataCode refusal = DataCode::kOk;

    bool is_query() const { return header.kind == DataKind::kAttend; }
    bool is_write() const { return header.kind == DataKind::kWrite; }
    double leaf_rows() const { return static_cast<double>(leaves) * body.rows; }
    // Bytes that the request holds while it waits.
    uint64_t held_bytes() const { return bytes.size() + q.size() * sizeof(float) + attend_body_bytes(body); }
  };
  struct Debtor {
    PeerId id;
    std::deque<Request> queue;
    int running = 0;
    bool writing = false;
    size_t writes = 0;  // in the queue
    std::atomic<bool> gone{false};
  };

  // kOk, or what is wrong with the message.
  DataCode parse(const PeerId& from, std::span<const std::byte> message, Request& request) const;
  DataCode parse_query(std::span<const std::byte> message, Request& request) const;
  // Serves a request that has begun, and answers it.
  void serve(Request& request, bool may_pause);
  DataCode copy(const Request& request, std::vector<std::byte>& reply);
  DataCode attend(Request& request, std::vector<std::byte>& reply, bool may_pause);
  DataCode attend_pinned(Request& request, std::span<const std::byte* const> cells,
                         std::vector<std::byte>& reply, bool may_pause);
  void reply_error(const PeerId& to, const DataHeader& request, DataCode code);
  DataHeader reply_header(const Request& request) const;
  void run();
  // These with mutex_ held.
  std::shared_ptr<Debtor> debtor_of(const PeerId& id);
  // Whether the request is a copy that need not wait.
  static bool at_once(const Debtor& debtor, const Request& request);
  bool too_busy(const Debtor& debtor, const Request& request, Nanos now) const;
  void queue(Request request, std::span<const std::byte> message);
  bool take(Request& out, Nanos now);
  void begin(Request& request, Nanos now);
  void end(const Request& request);
  void count(const Request& request, DataCode code);
  void count_error(DataCode code);
  // kOk: the query goes on; else how it ends.
  DataCode verdict(const Request& request, Nanos now) const;
  // Waits until the budget allows more work, or the query need not go on.
  void pause(std::unique_lock<std::mutex>& lock, const Request& request);

  const LentMemoryOptions options_;
  const PeerId self_;
  const MemoryShape& shape_;
  const ops::Kernels& kernels_;
  LentCells& cells_;
  const Clock& clock_;
  const SendData send_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  int running_ = 0;  // requests that have begun and not ended
  ComputeBudget budget_;
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<Debtor>> debtors_;
  std::map<std::pair<std::string, uint64_t>, CellTables> tables_;  // that debtors told us
  std::deque<std::shared_ptr<Debtor>> turns_;  // those with something in their queue, the next one first
  double open_leaf_rows_ = 0;                  // of queries that have not ended
  uint64_t queued_bytes_ = 0;
  RunningMean leaf_row_s_;
  LentMemoryStats stats_;

  std::vector<std::thread> threads_;
};

}  // namespace kvasir
