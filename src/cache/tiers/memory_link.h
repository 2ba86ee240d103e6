// The link between memories, between them and the disk, and between the device and what peers have lent:
// moves bytes of device and host by memcpy, in units, pieces to and from the disk's file, and cells or pieces
// of them to and from peers, the most urgent first.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cache/tiers/disk_lane.h"
#include "cache/tiers/token_bucket.h"
#include "contract/link.h"
#include "contract/peer_memory.h"

namespace kvasir {

struct MemoryLinkOptions {
  // The memory of each tier, which outlives the link; empty: this link does not reach that tier.
  std::array<std::span<std::byte>, kTiers> memory;
  int threads = 1;
  // A transfer moves in units of at most this many bytes. Between two of them a more urgent one goes first.
  uint64_t unit_bytes = 256 * kKiB;
  // 0: as fast as the machine. Otherwise all threads together move so many, and sleep in between: at the end
  // of a transfer, and within it for every second unit. A sleep costs about 20 us of CPU time.
  double emulated_bytes_per_s = 0;
  std::vector<int> cpus;        // to which its threads keep; empty: any
  DiskFile* disk = nullptr;     // outlives the link, which alone begins and ends pieces; null: no disk
  PeerMemory* peers = nullptr;  // outlives the link; null: nothing is borrowed
  // Where the host tier's own memory ends and `borrowed_bytes` of peers' begin, in bytes of the tier.
  uint64_t borrowed_begin = 0;
  uint64_t borrowed_bytes = 0;
  // So many pieces are on their way to or from peers at once, at the most.
  size_t peer_depth = 64;
};

// Segments whose neighbour in the list goes on where they end, at both ends of the link, become one; empty
// ones go. One with an end on the disk stays as it is: it is a piece. So does one with an end in borrowed
// memory, which begins at that byte of the host tier: neighbours there may be different peers'.
std::vector<Segment> coalesce(std::vector<Segment> segments, uint64_t borrowed_begin = UINT64_MAX);

// Queues by priority, and first come, first served within one; what waits for others (`after`) holds up
// nobody behind it, and what has begun ends before another of its priority begins. Threads share the units of
// one transfer.
//
// Ids are never used twice, and segments lie within the memory of their tiers and do not overlap themselves:
// else a KV_CHECK. Of those that failed, wait() remembers the last 4,096.
//
// A segment with an end on the disk is one whole piece: it begins there at a multiple of kDiskAlign, and is
// read with the size with which it was written; its other end is in memory. Pieces have a thread of their own
// and a queue of the same kind, so that neither the disk nor the memories hold up each other; as many are
// with the device as the file's queue depth says. What is there cannot be overtaken. A piece that cannot be
// read or written, or is not what was written, fails its transfer with the file's Status, and nothing else.
//
// A segment with an end in borrowed memory lies in one cell, its other end is on the device, and it goes by
// the PeerMemory, which ends it in any case: those have a queue of the same kind, too.
//
// stats(): busy_s is time in which some unit was in hand, or, on an emulated link, in which there was
// something to move. bytes_per_s is a mean over about the last 32 units, of bytes per such time. latency_s is
// a mean over about the last 32 transfers, each from the moment when a thread takes it up to its first byte,
// and from its last byte until its end can be seen; it holds neither the time in the queue nor that in which
// a thread that had nothing to do wakes up. cpu_s lags by a millisecond or a unit while a thread moves bytes.
// These three are about memories alone; for the disk there are disk_busy_s, in which some piece was with the
// device, and disk_bytes_per_s, a mean over about the last 256 pieces. An emulated link does not slow it.
class MemoryLink final : public Link {
 public:
  MemoryLink(MemoryLinkOptions options, const MonotonicClock& clock);
  // Ends the units at hand; whatever has not ended then fails (kUnavailable), of which `wake` is told.
  ~MemoryLink() override;
  MemoryLink(const MemoryLink&) = delete;
  MemoryLink& operator=(const MemoryLink&) = delete;

  void start(Transfer transfer) override;
  void cancel(TransferId id) override;
  TransferState wait(TransferId id, Nanos timeout) override;
  std::vector<TransferDone> completed() override;
  // Waits while `wake` runs. REQUIRES: not called by `wake`, nor with a lock held that `wake` takes
  void set_wake(std::function<void()> wake) override;
  LinkStats stats() const override;

  // While on, nothing moves; units at hand are moved to their end. For tests and drills only.
  void stand_still(bool on);

 private:
  using Moved = std::array<std::array<uint64_t, kTiers>, kTiers>;  // bytes, [from][to]
  using Turn = std::tuple<TransferPriority, bool, uint64_t>;       // the smallest is next
  enum Lane : size_t { kMemoryLane, kDiskLane, kPeerLane };

  // A transfer that has not ended.
  struct Active {
    Transfer transfer;   // constant once started
    uint64_t order = 0;  // of starting, from 1
    bool begun = false;
    size_t waits_for = 0;             // transfers
    std::vector<TransferId> waiting;  // for this one
    size_t segment = 0;               // the first byte that no unit took yet
    uint64_t offset = 0;
    int in_hand = 0;  // units
    Nanos started = 0;
    Nanos to_first_byte = 0;
    TransferState state = TransferState::kPending;
    bool cancelled = false;  // before it began, or what it needs was
    Status failure;          // the first of its pieces'
  };
  // What a thread moves at a time.
  struct Unit {
    Active* of = nullptr;
    size_t segment = 0;  // where it begins
    uint64_t offset = 0;
    uint64_t bytes = 0;
    bool first = false;  // of its transfer
    Nanos backlog_since = 0;
    Nanos taken = 0;
    Nanos through = 0;  // of an emulated link
    Nanos first_byte = 0;
    Nanos last_byte = 0;
    Moved moved{};
  };
  // A mean that forgets.
  struct RecentMean {
    double last = 32;  // over about so many
    double sum = 0;
    double weight = 0;
    void add(double value, double of) {
      sum += value - sum / last;
      weight += of - weight / last;
    }
    double get() const { return weight > 0 ? sum / weight : 0; }
  };

  // What a thread has used, and up to when.
  struct CpuTime {
    Nanos used = 0;
    Nanos sampled = 0;
  };

  // What is on its way to or from a peer.
  struct PeerPiece {
    Active* of = nullptr;
    size_t segment = 0;
  };

  void check(const Transfer& transfer) const;
  void run();
  void run_disk();
  void run_peers();
  void begin_piece(const PeerPiece& piece);
  void finish_piece(const PeerPiece& piece, Status status);
  bool is_borrowed(MemoryAddress a) const {
    return options_.peers && a.tier == Tier::kHost && a.offset >= options_.borrowed_begin;
  }
  bool touches_peer(const Segment& s) const { return is_borrowed(s.from) || is_borrowed(s.to); }
  void copy(Unit& unit) const;
  std::byte* at(MemoryAddress address) const;
  // These with mutex_ held.
  bool can_move(Lane lane) const;
  Turn turn(const Active& active) const { return {active.transfer.priority, !active.begun, active.order}; }
  // Of the transfer's next segment.
  Lane lane_of(const Active& active) const;
  void make_ready(Active& active);
  // Into the lane of its next segment, of which a thread is told.
  void queue(Active& active);
  void begin(Active& active, Nanos now);
  void resume();
  void wake_disk();
  Unit take();
  DiskJob take_piece();
  PeerPiece take_peer_piece();
  void fail(Active& active, Status status);
  void sleep_until_through(std::unique_lock<std::mutex>& lock, Unit& unit);
  void finish(const Unit& unit);
  void finish_piece(DiskLane::Ended& ended, Nanos now);
  // A unit or piece of it is no longer in hand. Whether that was its end; then it is gone.
  bool put_down(Active& active);
  void add_cpu_time(CpuTime& cpu, Nanos now);
  void end_thread(std::unique_lock<std::mutex>& lock);
  void end(Active& active, Status status);
  void tell(std::unique_lock<std::mutex>& lock);

  const MemoryLinkOptions options_;
  const MonotonicClock& clock_;

  std::mutex wake_mutex_;  // guards wake_; taken without mutex_
  std::function<void()> wake_;

  mutable std::mutex mutex_;           // guards what follows
  std::condition_variable work_;       // there is something for a thread to do
  std::condition_variable peer_work_;  // for that of the peers
  std::condition_variable stopped_;    // ends the sleep of an emulated link
  std::condition_variable ended_;      // a transfer, or the last call of wait()
  std::map<TransferId, std::shared_ptr<Active>> live_;
  // Those of live_ with bytes that no unit or piece took, whose `after` are over; by Lane.
  std::array<std::map<Turn, Active*>, 3> ready_;
  std::vector<TransferDone> done_;
  std::unordered_map<TransferId, bool> failed_;  // true: because it was cancelled, or what it needs was
  std::deque<TransferId> failed_order_;
  std::optional<TokenBucket> bucket_;
  uint64_t started_ = 0;  // transfers
  bool standing_still_ = false;
  bool stopping_ = false;
  bool wake_owed_ = false;
  int running_;              // threads
  int waiters_ = 0;          // calls of wait()
  Nanos backlog_since_ = 0;  // when bytes that wait could have begun to move
  Nanos busy_until_ = 0;
  Nanos disk_busy_until_ = 0;
  bool disk_waits_ = false;  // its thread could begin more
  size_t at_peers_ = 0;      // pieces
  LinkStats stats_;
  RecentMean bytes_per_s_;
  RecentMean latency_s_;
  RecentMean disk_bytes_per_s_{.last = 256};

  std::unique_ptr<DiskLane> disk_;  // used by its thread; null: no disk
  std::vector<std::thread> threads_;
};

}  // namespace kvasir
