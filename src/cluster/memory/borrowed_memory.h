// The debtor's side of lent memory: the tier Tier::kPeer, whose cells lie at peers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
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

// When the K and V of leaves that lie at a peer come here to be attended to, rather than the query goes
// there.
enum class Fetch : uint8_t {
  kNever,   // only where it must be: a leaf lies at two creditors, or one gives no more compute
  kByCost,  // and where it was measured to be cheaper
  kAlways,
};

struct BorrowedMemoryOptions {
  // Cells of the tier: its bytes are cells x geometry.kv_cell_bytes().
  uint32_t cells = 0;
  // An operation that has not ended by then fails; it counts from its beginning, queueing included.
  Nanos deadline = 2 * kNanosPerSecond;
  // Bytes of requests and of their replies that may be on their way to and from one creditor; what is more
  // waits. A larger message goes alone.
  uint64_t max_in_flight_bytes = 16 * kMiB;
  // A query whose rows make a larger request or reply goes in several messages.
  uint64_t max_message_bytes = 4 * kMiB;
  Fetch fetch = Fetch::kByCost;
  // Room for K and V that are fetched, from when they are asked for until they were attended to; a layer of a
  // leaf at least. What is more waits.
  uint64_t max_fetch_bytes = 32 * kMiB;
  // What was fetched is attended to on a thread that begins when it is first needed. False: by whoever calls
  // attend_one().
  bool own_thread = true;
};

// Bytes without the transport's own.
struct BorrowedMemoryStats {
  uint64_t queries = 0;  // that ended well
  uint64_t leaf_rows = 0;
  uint64_t query_bytes = 0;          // queries (q), of all that were sent
  uint64_t query_extra_bytes = 0;    // headers and the lists of cells, of these
  uint64_t partial_bytes = 0;        // partial records (m, l, o) that came back
  uint64_t partial_extra_bytes = 0;  // their headers
  // Of queries, what lies at one creditor: the query went there, or K and V came here and why. What was
  // refused counts as both.
  uint64_t shipped = 0;
  uint64_t fetched_cost = 0;     // it was cheaper, or Fetch::kAlways
  uint64_t fetched_busy = 0;     // the creditor gave no more compute
  uint64_t fetched_split = 0;    // leaves at several creditors; all such of a query count once
  uint64_t fetched_bytes = 0;    // K and V that came for these
  uint64_t local_leaf_rows = 0;  // attended to here
  double local_s = 0;            // doing so
  uint64_t scratch_bytes = 0;    // the room for K and V, as far as it was needed so far
  uint64_t written_bytes = 0;    // by operations that ended well
  uint64_t read_bytes = 0;
  uint64_t failed = 0;         // operations
  uint64_t deadlines = 0;      // of these, for want of an answer
  uint64_t busy = 0;           // messages that a creditor refused for want of compute or of room
  uint64_t retold = 0;         // queries that were sent again with all of their cells
  uint64_t late_replies = 0;   // and those that came twice: dropped
  uint64_t wrong_replies = 0;  // of another life, not of the expected size, or no replies at all: dropped
  uint64_t in_flight_bytes = 0;
  uint64_t queued = 0;  // messages that wait to be sent
};

// A request is sent again only if its creditor refused it, having no room or not knowing a list of cells that
// the query named; a reply counts only for the
// operation that asked, while that waits for it. All failures are kUnavailable. Thread-safe.
class BorrowedMemory final : public PeerMemory {
 public:
  // shape, kernels and clock outlive it. self: this life.
  BorrowedMemory(BorrowedMemoryOptions options, PeerId self, const MemoryShape& shape,
                 const ops::Kernels& kernels, const Clock& clock, SendData send);
  // What has not ended fails. REQUIRES: nothing of it runs on a thread that is not its own.
  ~BorrowedMemory() override;
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;

  // Cells [first_cell, + count) of the tier are from now on the creditor's [first_index, + count) of that
  // contract. A contract may come in several parts. Another life of the creditor than the one that was known
  // means that the former is lost. REQUIRES: the cells are within the tier and mapped nowhere; a creditor's
  // life has no two contracts of one number.
  void map(const PeerId& creditor, uint64_t contract, uint32_t first_index, uint32_t first_cell,
           uint32_t count);
  // The contract has ended: its cells are nowhere, and operations that need them fail. Nothing if unknown.
  void unmap(const PeerId& creditor, uint64_t contract);
  // The same for the creditor's [first_index, + count) of it. They, and the cells of the tier, may be mapped
  // anew at once: no operation that began before sees what is written there after.
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
  // Ends what is beyond its deadline, and asks again where a creditor had no room. When to call it again: the
  // next time of either, INT64_MAX if there is none.
  Nanos tick();
  // Attends, on the calling thread, to the next leaves that have come here. False: there are none.
  bool attend_one();

  BorrowedMemoryStats stats() const;
  // What the creditor's path and compute were measured to cost; null: not enough was.
  std::optional<PeerCost> cost(const PeerId& creditor) const;

 private:
  // Cells of the tier, and which they are of a contract.
  struct Part {
    uint32_t first_cell;
    uint32_t first_index;
    uint32_t count;
  };
  // One life of a peer from which something is, or was, borrowed: its place is never another's.
  struct Creditor {
    PeerId id;
    bool there = true;
    std::map<uint64_t, std::vector<Part>> contracts;
    std::deque<uint64_t> queue;  // of messages, by sequence
    uint64_t in_flight_bytes = 0;
    bool sending = false;     // some thread is: messages leave in the order of the queue
    Nanos resume_at = 0;      // it had no room: nothing is sent before
    uint32_t cheap_here = 0;  // shares that would have been cheaper to fetch, so far
    CellTables tables;        // what it was told, by queries that were sent
    PeerCostEstimate estimate;
  };
  // Cells that are no more: of a creditor, of one contract, or a range of that.
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
  // How far a share of a query is.
  struct ShareState {
    std::vector<float> records;
    bool done = false;
    size_t open = 0;                        // messages with the query, without a reply
    Interval refused;                       // rows, by the creditor
    std::unique_ptr<FetchedShare> fetched;  // null: it was shipped, so far
    std::vector<Window> windows;            // its
    uint32_t next = 0;                      // window to be attended to
  };
  struct Operation {
    DataKind kind = DataKind::kRead;
    Done done;
    uint64_t age = 0;  // its name among operations_
    Nanos deadline = 0;
    Status status;
    std::atomic<bool> failed{false};  // the same for who does not hold the lock
    std::vector<uint64_t> sequences;  // of its messages
    size_t open = 0;                  // shares that are not done; of a copy, 1
    int in_use = 0;  // threads that read or write its memory; while there are any, it does not end
    bool settled = false;
    CellPlace place;                  // of a copy
    std::span<const std::byte> from;  // of a write
    std::span<std::byte> to;          // of a read
    uint32_t layer = 0;               // of a query
    uint32_t rows = 0;
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
  // What is to be done once the lock is given back.
  struct After {
    std::vector<OperationPtr> ended;
    std::vector<uint32_t> creditors;  // to which something may be sent
  };

  void copy(OperationPtr operation, uint64_t at, uint64_t bytes);
  // Where the leaves lie, and who computes what of them. `as_of`: forgotten_ then.
  Status look_up(const RemoteQuery& query, Operation& operation, uint64_t& as_of) const;
  Status find_places(const RemoteQuery& query, Operation& operation, uint64_t& as_of) const;
  // False: what was looked up may not be so any more.
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
  bool ships(const LeafShare& share, uint32_t rows);
  void ship(const OperationPtr& operation, uint32_t share, After& after);
  void fetch(const OperationPtr& operation, uint32_t share, Interval rows, After& after);
  void start_windows(After& after);
  void release(Window& window);
  void release_all(const OperationPtr& operation, After& after);
  void window_read(const WindowRef& of);
  void window_done(const WindowRef& of, After& after);
  void make_ready(const WindowRef& of);
  MessagePtr match(const PeerId& from, const DataHeader& header, uint64_t payload_bytes) const;
  void learn(const Message& message, const DataHeader& reply);
  void refused(const MessagePtr& message, After& after);
  // Says it again, with all of its cells.
  void tell_again(const MessagePtr& message, After& after);
  // How a query names its cells: one by one, which is the most that it takes, or as its creditor knows them
  // when it is sent.
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
  std::vector<std::unique_ptr<std::byte[]>> slots_;  // null: not needed so far
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
