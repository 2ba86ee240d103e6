// The link between the tiers. It moves bytes between device and host by memcpy, in units; pieces to and from
// the disk's file; and cells, or pieces of them, between the device and memory lent by peers. The most urgent
// transfer goes first.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cache/tiers/disk_lane.h"
#include "cache/tiers/token_bucket.h"
#include "contract/link.h"
#include "contract/mover.h"
#include "contract/peer_memory.h"

namespace kvasir {

struct MemoryLinkOptions {
  // The memory of each tier, which outlives the link; empty: this link does not reach that tier.
  std::array<std::span<std::byte>, kTiers> memory;
  // Copies between these memories; outlives the link. Null: the link does, by memcpy. With a mover no address
  // of the device's memory is followed, and nothing is borrowed.
  Mover* mover = nullptr;
  int threads = 1;
  // What goes to the device has a queue and as many threads of its own, so that both directions move at once.
  bool duplex = false;
  // A transfer moves in units of at most this many bytes. Between two units a more urgent transfer goes
  // first.
  uint64_t unit_bytes = 256 * kKiB;
  // 0: as fast as the machine. Otherwise all threads together, of a duplex link those of each direction, move
  // at this rate, and sleep in between: at the end of a transfer, and within it for every second unit. A
  // sleep costs about 20 us of CPU time.
  double emulated_bytes_per_s = 0;
  std::vector<int> cpus;              // for its threads; empty: any
  DiskFile* disk = nullptr;           // outlives the link, which alone begins and ends pieces; null: no disk
  std::span<std::byte> disk_buffers;  // as DiskLane has it: with a mover, what that copies to and from
  PeerMemory* peers = nullptr;        // outlives the link; null: nothing is borrowed
  // Where the host tier's own memory ends and `borrowed_bytes` of peers' begin, in bytes of the tier.
  uint64_t borrowed_begin = 0;
  uint64_t borrowed_bytes = 0;
  // The most pieces on their way to or from peers at once.
  size_t peer_depth = 64;
};

// Merges neighbours in the list that are contiguous at both ends of the link, and removes empty segments. A
// segment with an end on the disk stays as it is: it is a piece. So does one with an end in borrowed memory,
// which begins at `borrowed_begin` of the host tier: neighbours there may belong to different peers.
std::vector<Segment> coalesce(std::vector<Segment> segments, uint64_t borrowed_begin = UINT64_MAX);

// Transfers are queued by priority (if the link is duplex, by direction and priority), and first come, first
// served within a priority. A transfer that waits for others (`after`) does not delay those behind it. A
// transfer that has begun ends before another of its priority begins. Threads share the units of one
// transfer.
//
// KV_CHECK: ids are never used twice, and segments lie within the memory of their tiers and do not overlap.
// wait() remembers the last 4,096 transfers that failed.
//
// Memory: start() and completed() may throw std::bad_alloc, and have then done nothing. What happens later to
// a transfer needs no more.
//
// A segment with an end on the disk is one whole piece: it begins there at a multiple of kDiskAlign, and is
// read with the size with which it was written; its other end is in memory. Pieces have a thread of their own
// and a queue of the same kind, so that the disk and the memories do not delay each other. The device holds
// as many pieces as the file's queue depth, and these cannot be overtaken. A piece that cannot be read or
// written, or has other bytes than were written, fails its transfer only, with the file's Status.
//
// A segment with an end in borrowed memory lies in one cell, and its other end is on the device. The
// PeerMemory moves it, and ends it in any case. These have a queue of the same kind, too.
//
// stats(): busy_s is the time in which some unit was being moved, or, on an emulated link, in which there was
// something to move. bytes_per_s is a mean over about the last 32 units, of bytes per such time in one
// direction. latency_s is a mean over about the last 32 transfers: the time from when a thread takes the
// transfer to its first byte, and from its last byte until its end can be seen. It includes neither the time
// in the queue nor the wake-up of an idle thread. cpu_s lags by a millisecond or a unit while a thread moves
// bytes. These three are about memories alone. For the disk, disk_busy_s is the time in which the device held
// some piece, and disk_bytes_per_s is a mean over about the last 256 pieces. So is peer_bytes_per_s, of
// pieces that went to peers. An emulated link slows neither.
class MemoryLink final : public Link {
 public:
  MemoryLink(MemoryLinkOptions options, const MonotonicClock& clock);
  // Finishes the units being moved. Transfers that have not ended then fail (kUnavailable), and `wake` is
  // called.
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

  // While on, no further unit is moved. For tests and drills only.
  void stand_still(bool on);

 private:
  using Moved = std::array<std::array<uint64_t, kTiers>, kTiers>;  // bytes, [from][to]
  using Turn = std::tuple<TransferPriority, bool, uint64_t>;       // the smallest is next
  // Of memory, the second is for what goes to the device, if the link is duplex.
  enum Lane : size_t { kMemoryLane, kToDeviceLane, kDiskLane, kPeerLane };

  struct Active;
  using Ready = std::map<Turn, Active*>;
  using Failed = std::map<TransferId, bool>;

  // A transfer that has not ended.
  struct Active {
    Transfer transfer;   // constant once started
    uint64_t order = 0;  // of starting, from 1
    bool begun = false;
    size_t waits_for = 0;             // transfers
    std::vector<TransferId> waiting;  // for this one
    size_t segment = 0;               // the first byte that is in no unit yet
    uint64_t offset = 0;
    int in_hand = 0;  // units
    Nanos started = 0;
    Nanos to_first_byte = 0;
    TransferState state = TransferState::kPending;
    bool cancelled = false;  // before it began, or what it needs was
    Status failure;          // the first of its pieces'
    // Its entries in the lists below, while it is in none.
    Ready::node_type ready_entry;
    Failed::node_type failed_entry;
  };
  // What a thread moves at a time.
  struct Unit {
    Lane lane = kMemoryLane;
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
    Status failure{};
  };
  // A moving mean.
  struct RecentMean {
    double last = 32;  // over about the last 32 values
    double sum = 0;
    double weight = 0;
    void add(double value, double of) {
      sum += value - sum / last;
      weight += of - weight / last;
    }
    double get() const { return weight > 0 ? sum / weight : 0; }
  };

  // The CPU time of a thread, and when it was read.
  struct CpuTime {
    Nanos used = 0;
    Nanos sampled = 0;
  };

  // A piece on its way to or from a peer.
  struct PeerPiece {
    Active* of = nullptr;
    size_t segment = 0;
    Nanos taken = 0;
  };

  void check(const Transfer& transfer) const;
  void run(Lane lane);
  void run_disk();
  void run_peers();
  void begin_piece(const PeerPiece& piece);
  void finish_piece(const PeerPiece& piece, Status status);
  bool is_borrowed(MemoryAddress a) const {
    return options_.peers && a.tier == Tier::kHost && a.offset >= options_.borrowed_begin;
  }
  bool touches_peer(const Segment& s) const { return is_borrowed(s.from) || is_borrowed(s.to); }
  bool is_emulated() const { return options_.emulated_bytes_per_s > 0; }
  void copy(Unit& unit) const;
  std::byte* at(MemoryAddress address) const;
  // These with mutex_ held.
  bool can_move(Lane lane) const;
  Turn turn(const Active& active) const { return {active.transfer.priority, !active.begun, active.order}; }
  // Of the transfer's next segment.
  Lane lane_of(const Active& active) const;
  void make_ready(Active& active);
  void make_entries(Active& active);
  void enter(Lane lane, Active& active);
  Active& leave(Lane lane);
  // Before a transfer enters the lane: if nothing waits there, what does waits from now on.
  void note_backlog(Lane lane);
  // Queues it in the lane of its next segment, and wakes a thread.
  void queue(Active& active);
  void begin(Active& active, Nanos now);
  void resume();
  void wake_disk();
  Unit take(Lane lane);
  bool is_memory(Lane lane) const { return lane == kMemoryLane || lane == kToDeviceLane; }
  // Wakes a thread that has to tell what has ended.
  void have_it_told();
  DiskJob take_piece();
  PeerPiece take_peer_piece();
  void fail(Active& active, Status status);
  void sleep_until_through(std::unique_lock<std::mutex>& lock, Unit& unit);
  void finish(const Unit& unit);
  void finish_piece(DiskLane::Ended& ended, Nanos now);
  // A unit or piece of it has been moved. True if the transfer has ended; then it is removed.
  bool put_down(Active& active);
  void add_cpu_time(CpuTime& cpu, Nanos now);
  void end_thread(std::unique_lock<std::mutex>& lock);
  void end(Active& active, Status status);
  void tell(std::unique_lock<std::mutex>& lock);

  const MemoryLinkOptions options_;
  const MonotonicClock& clock_;

  std::mutex wake_mutex_;  // guards wake_; taken without mutex_
  std::function<void()> wake_;

  mutable std::mutex mutex_;  // guards what follows
  // There is something for a thread to do, by lane.
  std::array<std::condition_variable, 2> work_;
  std::condition_variable peer_work_;  // for that of the peers
  std::condition_variable stopped_;    // ends the sleep of an emulated link
  std::condition_variable ended_;      // a transfer, or the last call of wait()
  std::map<TransferId, std::shared_ptr<Active>> live_;
  // By Lane: transfers with bytes that are in no unit or piece yet, and whose `after` have ended.
  std::array<Ready, 4> ready_;
  std::vector<TransferDone> done_;        // with room for all that have not ended
  Failed failed_;                         // true: because it was cancelled, or what it needs was
  std::vector<TransferId> failed_order_;  // a ring
  uint64_t failures_ = 0;
  std::array<std::optional<TokenBucket>, 2> buckets_;  // by lane, of an emulated link
  uint64_t started_ = 0;                               // transfers
  bool standing_still_ = false;
  bool stopping_ = false;
  bool wake_owed_ = false;
  int running_;      // threads
  int waiters_ = 0;  // calls of wait()
  int moving_ = 0;   // units of memory
  // By lane, since when waiting bytes could have moved.
  std::array<Nanos, 2> backlog_since_{};
  Nanos busy_until_ = 0;  // counted in busy_s
  std::array<Nanos, 2> lane_busy_until_{};
  Nanos disk_busy_until_ = 0;
  bool disk_waits_ = false;  // its thread could begin more
  size_t at_peers_ = 0;      // pieces
  Nanos peers_busy_until_ = 0;
  LinkStats stats_;
  RecentMean bytes_per_s_;
  RecentMean latency_s_;
  RecentMean disk_bytes_per_s_{.last = 256};
  RecentMean peer_bytes_per_s_{.last = 256};

  std::unique_ptr<DiskLane> disk_;  // used by its thread; null: no disk
  std::vector<std::thread> threads_;
};

}  // namespace kvasir
