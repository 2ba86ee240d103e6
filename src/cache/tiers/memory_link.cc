#include "cache/tiers/memory_link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "base/affinity.h"
#include "base/check.h"

namespace kvasir {
namespace {

constexpr size_t kFailedRemembered = 4096;
constexpr Nanos kCpuSampling = kNanosPerMilli;                     // asking costs as much as a small transfer
constexpr Nanos kLongestWait = 365 * 24 * 3600 * kNanosPerSecond;  // so that a deadline does not overflow

Nanos thread_cpu_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<Nanos>(t.tv_sec) * kNanosPerSecond + t.tv_nsec;
}

size_t index(Tier tier) {
  return static_cast<size_t>(tier);
}

MemoryAddress end_of(MemoryAddress begin, uint64_t bytes) {
  return {begin.offset + bytes, begin.tier};
}

bool touches_disk(const Segment& s) {
  return s.from.tier == Tier::kDisk || s.to.tier == Tier::kDisk;
}

// A status without words, where there is no memory for them.
template <typename... Args>
Status unavailable(fmt::format_string<Args...> format, Args&&... args) {
  try {
    return error(ErrorCode::kUnavailable, format, std::forward<Args>(args)...);
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kUnavailable, {}};
  }
}

bool overlaps_itself(const Segment& s) {
  const uint64_t apart = std::max(s.from.offset, s.to.offset) - std::min(s.from.offset, s.to.offset);
  return s.from.tier == s.to.tier && apart < s.bytes;
}

}  // namespace

std::vector<Segment> coalesce(std::vector<Segment> segments, uint64_t borrowed_begin) {
  const auto borrowed = [&](MemoryAddress a) { return a.tier == Tier::kHost && a.offset >= borrowed_begin; };
  size_t kept = 0;
  for (const Segment& s : segments) {
    if (s.bytes == 0) continue;
    Segment* last = kept > 0 ? &segments[kept - 1] : nullptr;
    if (last && !touches_disk(s) && !borrowed(s.from) && !borrowed(s.to) &&
        s.from == end_of(last->from, last->bytes) && s.to == end_of(last->to, last->bytes)) {
      last->bytes += s.bytes;
    } else {
      segments[kept++] = s;
    }
  }
  segments.resize(kept);
  return segments;
}

MemoryLink::MemoryLink(MemoryLinkOptions options, const MonotonicClock& clock)
    : options_(std::move(options)),
      clock_(clock),
      running_(options_.threads * (options_.duplex ? 2 : 1) + (options_.disk ? 1 : 0) +
               (options_.peers ? 1 : 0)) {
  KV_CHECK(options_.threads > 0 && options_.unit_bytes > 0 && options_.emulated_bytes_per_s >= 0,
           "threads={} unit_bytes={} emulated_bytes_per_s={}", options_.threads, options_.unit_bytes,
           options_.emulated_bytes_per_s);
  KV_CHECK(options_.mover == nullptr || options_.peers == nullptr, "a mover reaches no peers");
  if (is_emulated()) {
    for (std::optional<TokenBucket>& bucket : buckets_) bucket.emplace(options_.emulated_bytes_per_s);
  }
  stats_.emulated = is_emulated();
  failed_order_.resize(kFailedRemembered);
  if (options_.disk) disk_ = std::make_unique<DiskLane>(*options_.disk, options_.disk_buffers);
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { run(kMemoryLane); });
    if (options_.duplex) threads_.emplace_back([this] { run(kToDeviceLane); });
  }
  if (disk_) threads_.emplace_back([this] { run_disk(); });
  if (options_.peers) threads_.emplace_back([this] { run_peers(); });
}

MemoryLink::~MemoryLink() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (std::condition_variable& work : work_) work.notify_all();
    stopped_.notify_all();
    peer_work_.notify_all();
    if (disk_) disk_->wake();
  }
  for (std::thread& t : threads_) t.join();
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return waiters_ == 0; });
}

void MemoryLink::check(const Transfer& transfer) const {
  for (const Segment& s : transfer.segments) {
    for (MemoryAddress address : {s.from, s.to}) {
      if (address.tier == Tier::kDisk) {
        KV_CHECK(options_.disk && options_.disk->has_place_for(address.offset, s.bytes),
                 "transfer {}: {} bytes at {} of the disk tier's {}", raw(transfer.id), s.bytes,
                 address.offset, options_.disk ? options_.disk->bytes() : 0);
        continue;
      }
      if (is_borrowed(address)) {
        const uint64_t at = address.offset - options_.borrowed_begin;
        KV_CHECK(at <= options_.borrowed_bytes && s.bytes <= options_.borrowed_bytes - at &&
                     (s.from.tier == Tier::kDevice || s.to.tier == Tier::kDevice),
                 "transfer {}: {} bytes at {} of {} borrowed", raw(transfer.id), s.bytes, at,
                 options_.borrowed_bytes);
        continue;
      }
      const uint64_t size = options_.memory[index(address.tier)].size();
      KV_CHECK(address.offset <= size && s.bytes <= size - address.offset,
               "transfer {}: {} bytes at {} of the {} tier's {}", raw(transfer.id), s.bytes, address.offset,
               name(address.tier), size);
    }
    KV_CHECK(s.from.tier != Tier::kDisk || s.to.tier != Tier::kDisk, "transfer {}: from disk to disk",
             raw(transfer.id));
    KV_CHECK(!overlaps_itself(s), "transfer {}: {} bytes from {} to {} of the {} tier", raw(transfer.id),
             s.bytes, s.from.offset, s.to.offset, name(s.from.tier));
  }
}

void MemoryLink::start(Transfer transfer) {
  transfer.segments =
      coalesce(std::move(transfer.segments), options_.peers ? options_.borrowed_begin : UINT64_MAX);
  check(transfer);
  auto active = std::make_shared<Active>();
  active->transfer = std::move(transfer);
  const Transfer& t = active->transfer;
  make_entries(*active);

  std::lock_guard lock(mutex_);
  if (const size_t most = done_.size() + live_.size() + 1; done_.capacity() < most) done_.reserve(2 * most);
  for (const auto* before : {&t.after, &t.needs}) {
    for (TransferId id : *before) {
      const auto other = live_.find(id);
      if (other == live_.end()) continue;
      other->second->waiting.push_back(t.id);
      ++active->waits_for;
    }
  }
  // Those that the lists name as waiting, and that are not there, are passed over.
  const bool is_new = live_.try_emplace(t.id, active).second;
  KV_CHECK(is_new, "transfer {} was started before", raw(t.id));
  active->order = ++started_;
  stats_.queued_bytes += t.bytes();
  if (active->waits_for == 0) make_ready(*active);
}

void MemoryLink::make_entries(Active& active) {
  Ready ready;
  ready.emplace(Turn(), &active);
  active.ready_entry = ready.extract(ready.begin());
  Failed failed;
  failed.emplace(active.transfer.id, false);
  active.failed_entry = failed.extract(failed.begin());
}

void MemoryLink::enter(Lane lane, Active& active) {
  active.ready_entry.key() = turn(active);
  ready_[lane].insert(std::move(active.ready_entry));
}

// The first of the lane.
MemoryLink::Active& MemoryLink::leave(Lane lane) {
  Ready::node_type entry = ready_[lane].extract(ready_[lane].begin());
  Active& active = *entry.mapped();
  active.ready_entry = std::move(entry);
  return active;
}

void MemoryLink::cancel(TransferId id) {
  std::lock_guard lock(mutex_);
  const auto found = live_.find(id);
  if (found == live_.end() || found->second->begun) return;
  found->second->cancelled = true;
  if (found->second->waits_for > 0) return;
  ready_[lane_of(*found->second)].erase(turn(*found->second));
  end(*found->second, unavailable("transfer {} was cancelled before it began", raw(id)));
  have_it_told();
}

TransferState MemoryLink::wait(TransferId id, Nanos timeout) {
  std::unique_lock lock(mutex_);
  const auto found = live_.find(id);
  if (found == live_.end()) return failed_.contains(id) ? TransferState::kFailed : TransferState::kDone;
  const std::shared_ptr<Active> active = found->second;
  if (timeout > 0) {
    ++waiters_;
    ended_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout, kLongestWait)),
                    [&] { return active->state != TransferState::kPending; });
    if (--waiters_ == 0 && stopping_) ended_.notify_all();
  }
  return active->state;
}

std::vector<TransferDone> MemoryLink::completed() {
  std::lock_guard lock(mutex_);
  if (done_.empty()) return {};
  std::vector<TransferDone> room;
  room.reserve(live_.size());
  return std::exchange(done_, std::move(room));
}

void MemoryLink::set_wake(std::function<void()> wake) {
  std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
}

LinkStats MemoryLink::stats() const {
  std::lock_guard lock(mutex_);
  LinkStats stats = stats_;
  stats.bytes_per_s = bytes_per_s_.get();
  stats.latency_s = latency_s_.get();
  stats.disk_bytes_per_s = disk_bytes_per_s_.get();
  stats.peer_bytes_per_s = peer_bytes_per_s_.get();
  stats.has_disk = options_.disk != nullptr;
  if (options_.disk) stats.disk = options_.disk->stats();
  return stats;
}

void MemoryLink::stand_still(bool on) {
  std::lock_guard lock(mutex_);
  standing_still_ = on;
  if (!on) resume();
}

void MemoryLink::run(Lane lane) {
  if (!options_.cpus.empty()) keep_on_cpus(options_.cpus);
  CpuTime cpu;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (wake_owed_) {
      tell(lock);
    } else if (stopping_) {
      break;
    } else if (can_move(lane)) {
      Unit unit = take(lane);
      lock.unlock();
      copy(unit);
      lock.lock();
      if (is_emulated()) sleep_until_through(lock, unit);
      finish(unit);
      if (unit.last_byte - cpu.sampled > kCpuSampling) add_cpu_time(cpu, unit.last_byte);
    } else {
      add_cpu_time(cpu, clock_.now());
      work_[lane].wait(lock);
    }
  }
  end_thread(lock);
}

void MemoryLink::add_cpu_time(CpuTime& cpu, Nanos now) {
  const Nanos before = std::exchange(cpu.used, thread_cpu_time());
  stats_.cpu_s += to_seconds(cpu.used - before);
  cpu.sampled = now;
}

void MemoryLink::end_thread(std::unique_lock<std::mutex>& lock) {
  if (--running_ > 0) return;
  while (!live_.empty()) {
    Active& active = *live_.begin()->second;
    end(active, unavailable("the link ended before transfer {}", raw(active.transfer.id)));
  }
  tell(lock);
}

bool MemoryLink::can_move(Lane lane) const {
  return !ready_[lane].empty() && !standing_still_;
}

void MemoryLink::make_ready(Active& active) {
  const TransferId id = active.transfer.id;
  Status status;
  if (active.cancelled) {
    status = unavailable("transfer {} was cancelled before it began", raw(id));
  }
  const bool given_up = active.cancelled;
  for (TransferId before : active.transfer.needs) {
    const auto failed = failed_.find(before);
    if (failed == failed_.end()) continue;
    // Giving up a transfer gives up what was to move its bytes on; a failure among the others is a failure.
    active.cancelled = given_up || (failed->second && (active.cancelled || status.ok()));
    status = unavailable("transfer {} failed, which transfer {} needs", raw(before), raw(id));
  }
  if (!status.ok()) {
    end(active, std::move(status));
    have_it_told();
    return;
  }
  queue(active);
}

MemoryLink::Lane MemoryLink::lane_of(const Active& active) const {
  const std::vector<Segment>& segments = active.transfer.segments;
  if (active.segment == segments.size()) return kMemoryLane;
  if (touches_disk(segments[active.segment])) return kDiskLane;
  if (touches_peer(segments[active.segment])) return kPeerLane;
  return options_.duplex && segments[active.segment].to.tier == Tier::kDevice ? kToDeviceLane : kMemoryLane;
}

void MemoryLink::note_backlog(Lane lane) {
  if (is_memory(lane) && ready_[lane].empty()) backlog_since_[lane] = clock_.now();
}

void MemoryLink::queue(Active& active) {
  const Lane lane = lane_of(active);
  note_backlog(lane);
  enter(lane, active);
  if (lane == kDiskLane) {
    wake_disk();
  } else if (lane == kPeerLane) {
    peer_work_.notify_one();
  } else {
    work_[lane].notify_one();
  }
}

void MemoryLink::have_it_told() {
  for (std::condition_variable& work : work_) work.notify_one();
}

void MemoryLink::begin(Active& active, Nanos now) {
  if (std::exchange(active.begun, true)) return;
  active.started = now;
}

void MemoryLink::resume() {
  backlog_since_.fill(clock_.now());
  for (std::condition_variable& work : work_) work.notify_all();
  peer_work_.notify_all();
  wake_disk();
}

MemoryLink::Unit MemoryLink::take(Lane lane) {
  Active& active = leave(lane);
  Unit unit{
      .lane = lane, .of = &active, .segment = active.segment, .offset = active.offset, .taken = clock_.now()};
  unit.first = !active.begun;
  begin(active, unit.taken);
  const std::vector<Segment>& segments = active.transfer.segments;
  while (active.segment < segments.size() && lane_of(active) == lane && unit.bytes < options_.unit_bytes) {
    const uint64_t left = segments[active.segment].bytes - active.offset;
    const uint64_t bytes = std::min(left, options_.unit_bytes - unit.bytes);
    unit.bytes += bytes;
    active.offset += bytes;
    if (bytes == left) {
      ++active.segment;
      active.offset = 0;
    }
  }
  ++active.in_hand;
  if (active.segment < segments.size()) {
    const Lane next = lane_of(active);
    if (next != lane) note_backlog(next);
    enter(next, active);
  }
  // Another thread finds work, too.
  for (const Lane memory : {kMemoryLane, kToDeviceLane}) {
    if (!ready_[memory].empty()) work_[memory].notify_one();
  }
  if (!ready_[kDiskLane].empty()) wake_disk();
  if (!ready_[kPeerLane].empty()) peer_work_.notify_one();
  unit.backlog_since = backlog_since_[lane];
  if (is_emulated()) unit.through = buckets_[lane]->pass(unit.bytes, unit.backlog_since);
  if (moving_++ == 0) busy_until_ = std::max(busy_until_, is_emulated() ? unit.backlog_since : unit.taken);
  return unit;
}

void MemoryLink::copy(Unit& unit) const {
  unit.first_byte = unit.first ? clock_.now() : unit.taken;
  const Segment* segment = unit.of->transfer.segments.data() + unit.segment;
  uint64_t offset = unit.offset;
  std::array<MovedRun, 16> runs;  // for the mover
  size_t count = 0;
  const auto move_runs = [&] {
    if (count > 0 && unit.failure.ok()) unit.failure = options_.mover->move(std::span(runs).first(count));
    count = 0;
  };
  for (uint64_t left = unit.bytes; left > 0; ++segment, offset = 0) {
    const uint64_t bytes = std::min(left, segment->bytes - offset);
    if (options_.mover != nullptr) {
      if (count == runs.size()) move_runs();
      runs[count++] = {at(segment->to) + offset, at(segment->from) + offset, bytes};
    } else {
      // Stores past the caches gain about a tenth on runs as long as a unit, and lose more on short ones.
      std::memcpy(at(segment->to) + offset, at(segment->from) + offset, bytes);
    }
    unit.moved[index(segment->from.tier)][index(segment->to.tier)] += bytes;
    left -= bytes;
  }
  move_runs();
  unit.last_byte = clock_.now();
}

std::byte* MemoryLink::at(MemoryAddress address) const {
  return options_.memory[index(address.tier)].data() + address.offset;
}

void MemoryLink::sleep_until_through(std::unique_lock<std::mutex>& lock, Unit& unit) {
  // A sleep costs as much CPU time as a unit's copy. In the middle of a transfer, where it has no effect
  // outside, bytes may be up to a unit ahead of their time: this halves the number of sleeps.
  const bool in_the_middle = unit.of->segment < unit.of->transfer.segments.size();
  const double unit_s = static_cast<double>(options_.unit_bytes) / options_.emulated_bytes_per_s;
  if (in_the_middle && to_seconds(unit.through - unit.last_byte) < unit_s) return;
  while (!stopping_ && unit.last_byte < unit.through) {
    stopped_.wait_for(lock, std::chrono::nanoseconds(unit.through - unit.last_byte));
    unit.last_byte = clock_.now();
  }
}

void MemoryLink::finish(const Unit& unit) {
  for (size_t from = 0; from < kTiers; ++from) {
    for (size_t to = 0; to < kTiers; ++to) stats_.bytes[from][to] += unit.moved[from][to];
  }
  // Threads move at the same time: what lies before the end of another's unit was counted with that. An
  // emulated link is as busy while its thread waits for a CPU, for it makes up for that.
  const auto busy = [&](Nanos begin, Nanos& until) {
    const Nanos time = std::max<Nanos>(0, unit.last_byte - std::max(begin, until));
    until = std::max(until, unit.last_byte);
    return to_seconds(time);
  };
  --moving_;
  stats_.busy_s += busy(0, busy_until_);
  bytes_per_s_.add(static_cast<double>(unit.bytes),
                   busy(is_emulated() ? unit.backlog_since : unit.first_byte, lane_busy_until_[unit.lane]));

  Active& active = *unit.of;
  if (!unit.failure.ok() && active.failure.ok()) active.failure = unit.failure;
  if (unit.first) active.to_first_byte = unit.first_byte - unit.taken;
  const Nanos to_first_byte = active.to_first_byte;
  if (!put_down(active)) return;
  latency_s_.add(to_seconds(to_first_byte + clock_.now() - unit.last_byte), 1);
}

bool MemoryLink::put_down(Active& active) {
  if (--active.in_hand > 0 || active.segment < active.transfer.segments.size()) return false;
  end(active, std::exchange(active.failure, {}));
  return true;
}

void MemoryLink::end(Active& active, Status status) {
  const TransferId id = active.transfer.id;
  ++stats_.transfers;
  stats_.queued_bytes -= active.transfer.bytes();
  active.state = status.ok() ? TransferState::kDone : TransferState::kFailed;
  if (!status.ok()) {
    ++(active.cancelled ? stats_.cancelled : stats_.failed);
    active.failed_entry.mapped() = active.cancelled;
    failed_.insert(std::move(active.failed_entry));
    TransferId& place = failed_order_[failures_ % kFailedRemembered];
    if (++failures_ > kFailedRemembered) failed_.erase(place);
    place = id;
  }
  const Nanos now = clock_.now();
  done_.push_back({id, std::move(status), active.begun ? active.started : now, now});
  for (TransferId waiting : active.waiting) {
    const auto found = live_.find(waiting);  // gone, if it was cancelled
    if (found != live_.end() && --found->second->waits_for == 0) make_ready(*found->second);
  }
  live_.erase(id);
  wake_owed_ = true;
  ended_.notify_all();
}

void MemoryLink::tell(std::unique_lock<std::mutex>& lock) {
  wake_owed_ = false;
  lock.unlock();
  {
    std::lock_guard wake_lock(wake_mutex_);
    if (wake_) wake_();
  }
  lock.lock();
}

}  // namespace kvasir
