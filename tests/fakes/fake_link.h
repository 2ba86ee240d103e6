// A Link in memory, for tests: transfers end when the test says so, or when a thread waits, and can fail, be
// late or stand still.
//
// Bytes are really moved, all at once when a transfer ends; until then its source must keep them. From the
// moment at which a transfer may begin its destination holds 0xEE: a reader that reads too early, or still
// reads what was there, reads that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "base/random.h"
#include "contract/link.h"

namespace kvasir::test {

// Thread-safe; set_wake()'s function is called by the thread that ends a transfer.
class FakeLink final : public Link {
 public:
  using Memories = std::array<std::span<std::byte>, kTiers>;

  // The clock and the memories outlive the link. The clock stamps transfers, and a wait in vain moves it.
  // memories: by tier; all empty: nothing is moved.
  explicit FakeLink(VirtualClock& clock, const Memories& memories = {});

  void start(Transfer transfer) override;
  // Nothing that is queued seems to have begun.
  void cancel(TransferId id) override;
  // Ends what is queued, the most urgent first, until this one has ended. In vain, so that the whole timeout
  // goes by, if the link stands still or be_late() says so. REQUIRES: not in vain for ever.
  TransferState wait(TransferId id, Nanos timeout) override;
  std::vector<TransferDone> completed() override;
  void set_wake(std::function<void()> wake) override;
  // Without times, and without speeds that it was not told.
  LinkStats stats() const override;
  void set_peer_bytes_per_s(double speed);

  // Ends the transfer whose turn it is: the most urgent of those that may begin, and of these the first
  // queued. With an error no bytes are moved. False: there is none, or the link stands still.
  bool complete_next(const Status& status = {});
  // Ends every queued transfer; returns how many.
  size_t complete_all();
  // Ends some transfers, in any order that is allowed; returns how many.
  size_t complete_some(Random& random);

  // While it stands still nothing ends, except what is cancelled.
  void stall(bool on);
  // From now on a share of the waits with a finite timeout is in vain, though the link moves.
  void be_late(double share, uint64_t seed);
  // From now on a share of the transfers ends at once, if they may begin when they are started.
  void be_fast(double share, uint64_t seed);
  // This transfer fails when its turn comes.
  void fail(TransferId id);
  // Transfers with an end where this says so fail: what was there is gone.
  void set_lost(std::function<bool(MemoryAddress)> lost);
  // From now on a share of the transfers fails: for good, if they read the disk. What they should have read
  // cannot be read before it is written again (kCorrupt).
  void fail_share(double share, uint64_t seed);

  size_t queued() const;

 private:
  struct Queued {
    Transfer transfer;
    Nanos started;
    size_t waits_for;  // transfers in `after` that are queued still
  };

  void require_inside(const Transfer& transfer) const;
  void spoil(const Transfer& transfer);
  bool reads_corrupt(const Transfer& transfer) const;
  void move(const Transfer& transfer);
  std::vector<Queued>::iterator next();
  bool is_queued(TransferId id) const;
  void end(std::vector<Queued>::iterator queued, Status status);
  bool end_next(const Status& status);
  void wake();

  VirtualClock& clock_;
  const Memories memories_;
  const bool has_memory_;
  mutable std::mutex mutex_;  // guards what follows
  std::function<void()> wake_;
  std::vector<Queued> queue_;
  std::vector<TransferDone> done_;
  std::set<TransferId> failed_;
  std::set<TransferId> to_fail_;
  std::set<TransferId> to_cancel_;  // as soon as they may begin
  std::set<TransferId> cancelled_;  // of failed_: given up, or what they need was
  std::set<uint64_t> corrupt_;      // pieces of the disk, until they are written again
  LinkStats stats_;
  bool stalled_ = false;
  double late_share_ = 0;
  Random late_{0};
  double fast_share_ = 0;
  Random fast_{0};
  double failing_share_ = 0;
  std::function<bool(MemoryAddress)> lost_;
  Random failing_{0};
};

}  // namespace kvasir::test
