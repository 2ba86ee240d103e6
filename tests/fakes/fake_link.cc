#include "fakes/fake_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvasir::test {
namespace {

// Longer than this is for ever.
constexpr Nanos kLongest = INT64_MAX / 2;
constexpr int kSpoilt = 0xEE;

std::span<std::byte> bytes_at(const FakeLink::Memories& memories, MemoryAddress address, uint64_t bytes) {
  return memories[static_cast<size_t>(address.tier)].subspan(address.offset, bytes);
}

}  // namespace

FakeLink::FakeLink(VirtualClock& clock, const Memories& memories)
    : clock_(clock),
      memories_(memories),
      has_memory_(std::any_of(memories.begin(), memories.end(), [](auto m) { return !m.empty(); })) {}

// ---------------------------------------------------------------- the seam

void FakeLink::start(Transfer transfer) {
  std::unique_lock lock(mutex_);
  require_inside(transfer);
  KV_CHECK(!is_queued(transfer.id), "transfer {} was started twice", raw(transfer.id));
  stats_.queued_bytes += transfer.bytes();
  size_t waits_for = 0;
  for (const auto* before : {&transfer.after, &transfer.needs}) {
    waits_for += static_cast<size_t>(
        std::count_if(before->begin(), before->end(), [&](TransferId id) { return is_queued(id); }));
  }
  if (waits_for == 0) spoil(transfer);
  queue_.push_back({std::move(transfer), clock_.now(), waits_for});
  if (waits_for > 0 || stalled_ || fast_share_ == 0 || fast_.unit() >= fast_share_) return;
  end(queue_.end() - 1, {});
  lock.unlock();
  wake();
}

void FakeLink::cancel(TransferId id) {
  {
    std::lock_guard lock(mutex_);
    const auto it =
        std::find_if(queue_.begin(), queue_.end(), [&](const Queued& q) { return q.transfer.id == id; });
    if (it == queue_.end()) return;
    if (it->waits_for > 0) {
      to_cancel_.insert(id);
      return;
    }
    cancelled_.insert(id);
    end(it, error(ErrorCode::kUnavailable, "transfer {} was cancelled", raw(id)));
  }
  wake();
}

TransferState FakeLink::wait(TransferId id, Nanos timeout) {
  bool ended = false;
  bool queued = false;
  {
    std::lock_guard lock(mutex_);
    const bool finite = timeout <= kLongest;
    if (timeout > 0 && is_queued(id)) {
      const bool late = finite && late_share_ > 0 && late_.unit() < late_share_;
      if (stalled_ || late) {
        KV_CHECK(finite, "transfer {} is waited for for ever, and the link stands still", raw(id));
        clock_.advance(timeout);
      } else {
        while (is_queued(id) && end_next({})) ended = true;
      }
    }
    queued = is_queued(id);
  }
  if (ended) wake();
  if (queued) return TransferState::kPending;
  std::lock_guard lock(mutex_);
  return failed_.contains(id) ? TransferState::kFailed : TransferState::kDone;
}

std::vector<TransferDone> FakeLink::completed() {
  std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

void FakeLink::set_wake(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

LinkStats FakeLink::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void FakeLink::set_peer_bytes_per_s(double speed) {
  std::lock_guard lock(mutex_);
  stats_.peer_bytes_per_s = speed;
}

// ---------------------------------------------------------------- what a test does

bool FakeLink::complete_next(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (!end_next(status)) return false;
  }
  wake();
  return true;
}

size_t FakeLink::complete_all() {
  size_t ended = 0;
  while (complete_next()) ++ended;
  return ended;
}

size_t FakeLink::complete_some(Random& random) {
  size_t ended = 0;
  {
    std::lock_guard lock(mutex_);
    if (stalled_) return 0;
    for (uint64_t n = random.below(queue_.size() + 1); n > 0; --n) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < queue_.size(); ++i) {
        if (queue_[i].waits_for == 0) ready.push_back(i);
      }
      if (ready.empty()) break;
      end(queue_.begin() + static_cast<std::ptrdiff_t>(ready[random.below(ready.size())]), {});
      ++ended;
    }
  }
  if (ended > 0) wake();
  return ended;
}

void FakeLink::stall(bool on) {
  std::lock_guard lock(mutex_);
  stalled_ = on;
}

void FakeLink::be_late(double share, uint64_t seed) {
  std::lock_guard lock(mutex_);
  late_share_ = share;
  late_ = Random(seed);
}

void FakeLink::be_fast(double share, uint64_t seed) {
  std::lock_guard lock(mutex_);
  fast_share_ = share;
  fast_ = Random(seed);
}

void FakeLink::fail(TransferId id) {
  std::lock_guard lock(mutex_);
  to_fail_.insert(id);
}

void FakeLink::set_lost(std::function<bool(MemoryAddress)> lost) {
  std::lock_guard lock(mutex_);
  lost_ = std::move(lost);
}

void FakeLink::fail_share(double share, uint64_t seed) {
  std::lock_guard lock(mutex_);
  failing_share_ = share;
  failing_ = Random(seed);
}

size_t FakeLink::queued() const {
  std::lock_guard lock(mutex_);
  return queue_.size();
}

// ---------------------------------------------------------------- with the lock held

void FakeLink::require_inside(const Transfer& transfer) const {
  if (!has_memory_) return;
  for (const Segment& s : transfer.segments) {
    for (const MemoryAddress& a : {s.from, s.to}) {
      const uint64_t size = memories_[static_cast<size_t>(a.tier)].size();
      KV_CHECK(a.offset <= size && s.bytes <= size - a.offset,
               "transfer {}: {} bytes at {} of the {} tier, which has {}", raw(transfer.id), s.bytes,
               a.offset, name(a.tier), size);
    }
  }
}

void FakeLink::spoil(const Transfer& transfer) {
  if (!has_memory_) return;
  for (const Segment& s : transfer.segments) {
    const std::span<std::byte> to = bytes_at(memories_, s.to, s.bytes);
    std::memset(to.data(), kSpoilt, to.size());
  }
}

void FakeLink::move(const Transfer& transfer) {
  for (const Segment& s : transfer.segments) {
    stats_.bytes[static_cast<size_t>(s.from.tier)][static_cast<size_t>(s.to.tier)] += s.bytes;
    if (s.to.tier == Tier::kDisk) corrupt_.erase(s.to.offset);
    if (!has_memory_) continue;
    const std::span<std::byte> from = bytes_at(memories_, s.from, s.bytes);
    std::memcpy(bytes_at(memories_, s.to, s.bytes).data(), from.data(), from.size());
  }
}

bool FakeLink::reads_corrupt(const Transfer& transfer) const {
  return std::any_of(transfer.segments.begin(), transfer.segments.end(), [&](const Segment& s) {
    return s.from.tier == Tier::kDisk && corrupt_.contains(s.from.offset);
  });
}

bool FakeLink::is_queued(TransferId id) const {
  return std::any_of(queue_.begin(), queue_.end(), [&](const Queued& q) { return q.transfer.id == id; });
}

std::vector<FakeLink::Queued>::iterator FakeLink::next() {
  auto best = queue_.end();
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    if (it->waits_for > 0) continue;
    if (best == queue_.end() || it->transfer.priority < best->transfer.priority) best = it;
  }
  return best;
}

bool FakeLink::end_next(const Status& status) {
  if (stalled_) return false;
  const auto it = next();
  if (it == queue_.end()) return false;
  end(it, status);
  return true;
}

void FakeLink::end(std::vector<Queued>::iterator queued, Status status) {
  const Transfer transfer = std::move(queued->transfer);
  const Nanos started = queued->started;
  queue_.erase(queued);
  if (to_cancel_.erase(transfer.id) > 0) {
    cancelled_.insert(transfer.id);
    status = error(ErrorCode::kUnavailable, "transfer {} was cancelled", raw(transfer.id));
  }
  const bool told = to_fail_.erase(transfer.id) > 0;
  if (status.ok() && (told || (failing_share_ > 0 && failing_.unit() < failing_share_))) {
    status = error(ErrorCode::kIo, "transfer {} was told to fail", raw(transfer.id));
    // What was read of a disk and is not what was written there is lost for good.
    for (const Segment& s : transfer.segments) {
      if (s.from.tier == Tier::kDisk) corrupt_.insert(s.from.offset);
    }
  }
  const bool in_vain = std::any_of(transfer.needs.begin(), transfer.needs.end(),
                                   [&](TransferId before) { return failed_.contains(before); });
  if (status.ok() && in_vain) {
    const bool given_up = std::all_of(transfer.needs.begin(), transfer.needs.end(), [&](TransferId before) {
      return !failed_.contains(before) || cancelled_.contains(before);
    });
    if (given_up) cancelled_.insert(transfer.id);
    status = error(ErrorCode::kUnavailable, "what transfer {} needs failed", raw(transfer.id));
  }
  const bool lost = lost_ && std::any_of(transfer.segments.begin(), transfer.segments.end(),
                                         [&](const Segment& s) { return lost_(s.from) || lost_(s.to); });
  if (status.ok() && lost) {
    status = error(ErrorCode::kUnavailable, "what transfer {} moves is gone", raw(transfer.id));
  }
  if ((status.ok() || status.code() == ErrorCode::kIo) && reads_corrupt(transfer)) {
    status = error(ErrorCode::kCorrupt, "what transfer {} read is not what was written", raw(transfer.id));
  }
  if (status.ok()) {
    move(transfer);
  } else {
    failed_.insert(transfer.id);
    ++(cancelled_.contains(transfer.id) ? stats_.cancelled : stats_.failed);
  }
  ++stats_.transfers;
  stats_.queued_bytes -= transfer.bytes();
  for (Queued& other : queue_) {
    size_t named = 0;
    for (const auto* before : {&other.transfer.after, &other.transfer.needs}) {
      named += static_cast<size_t>(std::count(before->begin(), before->end(), transfer.id));
    }
    if (named == 0) continue;
    other.waits_for -= named;
    if (other.waits_for == 0) spoil(other.transfer);
  }
  done_.push_back({transfer.id, std::move(status), started, clock_.now()});
}

// Without the lock: the function may call the link.
void FakeLink::wake() {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    wake = wake_;
  }
  if (wake) wake();
}

}  // namespace kvasir::test
