// The debtor's side of lent memory: the cells that this instance has borrowed, which lie at peers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "cluster/memory/cell_tables.h"
#include "cluster/memory/data_wire.h"
#include "cluster/memory/fetched_share.h"
#include "cluster/memory/leaf_shares.h"
#include "cluster/memory/lent_memory.h"
#include "cluster/memory/memory_shape.h"
#include "cluster/memory/ship_or_fetch.h"
#include "contract/interval.h"
#include "contract/peer_memory.h"
#include "contract/peer_transport.h"

namespace kvasir {

// When K and V of leaves at a peer are fetched and attended to here, instead of shipping the query to the
// peer.
enum class Fetch : uint8_t {
  kNever,   // only where necessary: a leaf lies at two creditors, or its creditor gives no more compute
  kByCost,  // also where it was measured to be cheaper
  kAlways,
};

struct BorrowedMemoryOptions {
  // Cells that may be borrowed: cells x geometry.kv_cell_bytes() bytes in all.
  uint32_t cells = 0;
  // An operation that has not ended by then fails; it counts from its beginning, queueing included.
  Nanos deadline = 2 * kNanosPerSecond;
  // Bytes of requests and of their replies that may be in flight to and from one creditor; further messages
  // wait. A larger message goes alone.
  uint64_t max_in_flight_bytes = 16 * kMiB;
  // A query whose request or reply would be larger is split by rows into several messages.
  uint64_t max_message_bytes = 4 * kMiB;
  Fetch fetch = Fetch::kByCost;
  // Room for fetched K and V, from the request for them until they have been attended to; at least one layer
  // of a leaf. Further fetches wait.
  uint64_t max_fetch_bytes = 32 * kMiB;
  // Attend to fetched K and V on a thread of this object, which is started when it is first needed. False:
  // on the threads that call attend_one().
  bool own_thread = true;
};

// Bytes do not include the transport's own.
struct BorrowedMemoryStats {
  uint64_t queries = 0;  // that succeeded
  uint64_t leaf_rows = 0;
  uint64_t query_bytes = 0;          // queries (q), of all that were sent
  uint64_t query_extra_bytes = 0;    // headers and the lists of cells, of these
  uint64_t partial_bytes = 0;        // partial records (m, l, o) that came back
  uint64_t partial_extra_bytes = 0;  // their headers
  // Shares of queries, one for each creditor: the query was shipped, or K and V were fetched and why. A
  // share that was shipped and refused counts as both.
  uint64_t shipped = 0;
  uint64_t fetched_cost = 0;     // it was cheaper, or Fetch::kAlways
  uint64_t fetched_busy = 0;     // the creditor gave no more compute
  uint64_t fetched_split = 0;    // leaves at several creditors; all such of a query count once
  uint64_t fetched_bytes = 0;    // K and V that came for these
  uint64_t local_leaf_rows = 0;  // attended to here
  double local_s = 0;            // seconds spent on these
  uint64_t scratch_bytes = 0;    // memory allocated for fetched K and V so far
  uint64_t written_bytes = 0;    // by operations that succeeded
  uint64_t read_bytes = 0;
  uint64_t failed = 0;         // operations
  uint64_t deadlines = 0;      // of these, because no answer came in time
  uint64_t busy = 0;           // messages that a creditor refused, having no compute or no room
  uint64_t retold = 0;         // queries that were sent again with all of their cells
  uint64_t late_replies = 0;   // and duplicates: dropped
  uint64_t wrong_replies = 0;  // of another life, of an unexpected size, or not replies: dropped
  uint64_t in_flight_bytes = 0;
  uint64_t queued = 0;     // messages that wait to be sent
  uint64_t creditors = 0;  // lives of peers that it has room to remember
};

// A request is sent again only if its creditor refused it, having no room or not knowing a list of cells
// that the query named. A reply counts only for the operation that sent the request, while that operation
// waits for it. All failures are kUnavailable. Thread-safe.
class BorrowedMemory final : public PeerMemory {
 public:
  // shape, kernels and clock outlive it. self: this life.
  BorrowedMemory(BorrowedMemoryOptions options, PeerId self, const MemoryShape& shape,
                 const ops::Kernels& kernels, const Clock& clock, SendData send);
  // Operations that have not ended fail. REQUIRES: no call into it runs on another thread.
  ~BorrowedMemory() override;
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;

  // From now on the borrowed cells [first_cell, + count) are the creditor's [first_index, + count) of
  // that contract. A contract may come in several parts. If another life of the creditor was known, that
  // life is lost. REQUIRES: the cells are below options.cells and not mapped; no two contracts of one life
  // of a creditor have the same number.
  void map(const PeerId& creditor, uint64_t contract, uint32_t first_index, uint32_t first_cell,
           uint32_t count);
  // The contract has ended: its cells are unmapped, and operations that need them fail. An unknown
  // contract is ignored.
  void unmap(const PeerId& creditor, uint64_t contract);
  // The same for the creditor's [first_index, + count) of it. These and the borrowed cells may be mapped
  // anew at once: no operation that began before sees what is written there afterwards.
  void unmap(const PeerId& creditor, uint64_t contract, uint32_t first_index, uint32_t count);
  // The same for all contracts with a peer, which is dead.
  void lost(const PeerId& creditor);
  // The same for all peers.
  void lost_all();

  void write(uint64_t at, std::span<const std::byte> from, Done done) override;
  void read(uint64_t at, std::span<std::byte> to, Done done) override;
  // Blocks of one leaf may lie at several creditors.
  void attend(const RemoteQuery& query, std::span<float> partials, Done done) override;

  // A message that is_reply().
  void handle(const PeerId& from, std::span<const std::byte> message);
  // Fails operations that are beyond their deadline, and sends again what a creditor had no room for.
  // Returns when to call it again: the earliest time at which either is due, INT64_MAX if none is.
  Nanos tick();
  // Attends, on the calling thread, to the next leaves that have been fetched. False: there are none.
  bool attend_one();

  BorrowedMemoryStats stats() const;
  // The measured cost of the creditor's path and compute; null: too little was measured.
  std::optional<PeerCost> cost(const PeerId& creditor) const;
  std::optional<PeerCost> believed_cost(const PeerId& creditor) const;  // PeerCostEstimate::believed()

 private:
  // A run of borrowed cells, and the slots of their contract.
  struct Part {
    uint32_t first_cell;
    uint32_t first_index;
    uint32_t count;
  };
  // One life of a peer from which something is, or was, borrowed. Its index is reused when it is gone and
  // nothing to it is under way.
  struct Creditor {
    PeerId id;
    bool there = true;
    std::map<uint64_t, std::vector<Part>> contracts;
    std::deque<uint64_t> queue;  // of messages, by sequence
    uint64_t in_flight_bytes = 0;
    bool sending = false;     // a thread is sending: messages leave in the order of the queue
    Nanos resume_at = 0;      // it had no room: nothing is sent before this time
    uint32_t cheap_here = 0;  // shares so far that would have been cheaper to fetch
    CellTables tables;        // the lists of cells that queries have told it
    PeerCostEstimate estimate;
  };
  // Cells that are no longer mapped: all of a creditor, of one contract, or of a range of a contract.
  struct Gone {
    uint32_t creditor;
    std::optional<uint64_t> contract;
    uint64_t first_index = 0;
    uint64_t end_index = UINT64_MAX;
    bool has(const CellPlace& place) const;
  };
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  struct Window {
    uint32_t slot = kNoSlot;
    size_t open = 0;         // reads without a reply
    bool attending = false;  // a thread is reading the slot
  };
  // Progress of one share of a query.
  struct ShareState {
    std::vector<float> records;
    bool done = false;
    size_t open = 0;                        // messages with the query, without a reply
    Interval refused;                       // rows, by the creditor
    std::unique_ptr<FetchedShare> fetched;  // null: it is shipped, so far
    std::vector<Window> windows;            // its
    uint32_t next = 0;                      // the next window to attend to
  };
  struct Operation {
    DataKind kind = DataKind::kRead;
    Done done;
    uint64_t age = 0;  // its key in operations_
    Nanos deadline = 0;
    Status status;
    std::atomic<bool> failed{false};  // the same, readable without the lock
    std::vector<uint64_t> sequences;  // of its messages
    size_t open = 0;                  // shares that are not done; of a copy, 1
    int in_use = 0;  // threads that read or write its memory; while there are any, it does not end
    bool settled = false;
    CellPlace place;                  // of a copy
    std::span<const std::byte> from;  // of a write
    std::span<std::byte> to;          // of a read
    uint32_t layer = 0;               // of a query
    uint32_t rows = 0;
    double own_leaf_rows = 0;
    std::vector<float> q;           // [rows][q_dim]
    std::vector<CellPlace> places;  // of the leaves' blocks
    LeafShares shares;
    std::vector<ShareState> states;  // of these
    std::span<float> partials;
  };
  using OperationPtr = std::shared_ptr<Operation>;
  struct WindowRef {
    OperationPtr operation;
    uint32_t share = 0;
    uint32_t window = 0;
  };
  struct Message {
    DataKind kind = DataKind::kRead;
    OperationPtr operation;
    PeerId to;
    uint32_t creditor = 0;
    uint64_t sequence = 0;
    uint64_t request_bytes = 0;
    uint64_t reply_payload = 0;
    bool sent = false;
    bool alone = false;  // nothing else was on its way to the creditor
    Nanos sent_at = 0;
    // Of a copy.
    CellSpan at;
    std::span<std::byte> into;
    // Of a query, or of what is fetched for one.
    uint32_t share = 0;
    uint32_t window = 0;
    uint32_t first_row = 0;
    uint32_t rows = 0;
    AttendBody body;  // as it was sent

    bool is_query() const { return kind == DataKind::kAttend; }
    uint64_t flight_bytes() const { return request_bytes + kDataHeaderBytes + reply_payload; }
  };
  using MessagePtr = std::shared_ptr<Message>;
  // What is to be done after the lock is released.
  struct After {
    std::vector<OperationPtr> ended;
    std::vector<uint32_t> creditors;  // to which something may be sent
  };

  void copy(OperationPtr operation, uint64_t at, uint64_t bytes);
  // Finds where the leaves lie, and which side computes which of them. `as_of`: the value of forgotten_
  // at that time.
  Status look_up(const RemoteQuery& query, Operation& operation, uint64_t& as_of) const;
  Status find_places(const RemoteQuery& query, Operation& operation, uint64_t& as_of) const;
  // False: the places that were looked up may be outdated.
  bool begin(const OperationPtr& operation, uint64_t as_of);
  void drive(After after);
  void send_next(uint32_t creditor, After& after);
  Status send(Message& message);
  std::vector<std::byte> make_request(const Message& message) const;
  void take_in(const Message& message, std::span<const std::byte> payload);
  void merge(Operation& operation);
  void work();
  std::span<const CellPlace> places_of(const Operation& operation, LeafRun run) const;
  // These with mutex_ held.
  uint32_t creditor_of(const PeerId& id);
  std::optional<uint32_t> find(const PeerId& id) const;
  void add(const OperationPtr& operation);
  void enqueue(const MessagePtr& message, After& after);
  MessagePtr copy_message(const OperationPtr& operation, DataKind kind, const CellPlace& place,
                          uint64_t offset, uint64_t bytes) const;
  MessagePtr first_queued(Creditor& creditor);
  bool ships(const LeafShare& share, const Operation& operation);
  void ship(const OperationPtr& operation, uint32_t share, After& after);
  void fetch(const OperationPtr& operation, uint32_t share, Interval rows, After& after);
  // Gives a slot its memory. False: there is none.
  bool fill_slot(uint32_t slot);
  void start_windows(After& after);
  void release(Window& window);
  void release_all(const OperationPtr& operation, After& after);
  void window_read(const WindowRef& of);
  void window_done(const WindowRef& of, After& after);
  void make_ready(const WindowRef& of);
  MessagePtr match(const PeerId& from, const DataHeader& header, uint64_t payload_bytes) const;
  void learn(const Message& message, const DataHeader& reply);
  void refused(const MessagePtr& message, After& after);
  // Sends the query again, naming all of its cells.
  void tell_again(const MessagePtr& message, After& after);
  // How a query names its cells: name_all_cells() lists each of them, which is the longest form;
  // name_cells() refers to the table that its creditor knows when the query is sent.
  void name_all_cells(Message& message) const;
  void name_cells(Message& message);
  void answered(const Message& message, After& after);
  void query_answered(const OperationPtr& operation, uint32_t share, After& after);
  void remove(const Message& message, After& after);
  void fail(const OperationPtr& operation, Status status, After& after);
  void settle(const OperationPtr& operation, After& after);
  bool needs(const Operation& operation, const Gone& gone) const;
  void fail_all(const Gone& gone, const Status& why, After& after);
  void forget(uint32_t creditor, uint64_t contract);
  void lose(uint32_t creditor, After& after);
  // Why an operation has not ended by its deadline.
  Status too_late(const Operation& operation) const;

  const BorrowedMemoryOptions options_;
  const PeerId self_;
  const MemoryShape& shape_;
  const ops::Kernels& kernels_;
  const Clock& clock_;
  const SendData send_;
  const uint32_t window_leaves_;  // at most; a slot has room for so many

  mutable std::mutex mutex_;  // guards what follows
  std::vector<CellPlace> places_;
  uint64_t forgotten_ = 0;                             // times that cells ceased to be somewhere
  std::vector<Creditor> creditors_;                    // CellPlace::creditor is an index of it
  std::map<uint64_t, OperationPtr> operations_;        // that have not ended, by age
  std::unordered_map<uint64_t, MessagePtr> messages_;  // theirs, by sequence
  uint64_t next_age_ = 1;
  uint64_t next_sequence_ = 1;
  struct FreeSlot {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<std::byte[], FreeSlot>> slots_;  // null: not needed so far
  std::vector<uint32_t> free_slots_;
  std::deque<WindowRef> waiting_;  // for a slot
  std::deque<WindowRef> ready_;    // to be attended to
  RunningMean own_leaf_row_s_;
  BorrowedMemoryStats stats_;
  bool stopping_ = false;
  std::condition_variable changed_;  // ready_ or stopping_
  std::thread worker_;
};

}  // namespace kvasir
