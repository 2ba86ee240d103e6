// The link's thread for the disk: begins pieces while the device has room, and ends those that it has done.
#include <algorithm>
#include <utility>

#include "base/affinity.h"
#include "cache/tiers/memory_link.h"

namespace kvasir {

void MemoryLink::run_disk() {
  if (!options_.cpus.empty()) keep_on_cpus(options_.cpus);
  CpuTime cpu;
  std::vector<DiskJob> jobs;
  std::vector<DiskLane::Ended> ended;
  jobs.reserve(disk_->room());
  ended.reserve(disk_->room() + DiskLane::kEndedAtOnce);
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!stopping_ && jobs.size() < disk_->room() && can_move(kDiskLane)) jobs.push_back(take_piece());
    if (stopping_ && disk_->idle()) break;
    disk_waits_ = disk_->room() > jobs.size();
    lock.unlock();
    for (const DiskJob& job : jobs) {
      if (Status status = disk_->begin(job); !status.ok()) ended.push_back({job, std::move(status)});
    }
    jobs.clear();
    if (ended.empty()) disk_->wait(ended);
    const Nanos now = clock_.now();
    lock.lock();
    disk_waits_ = false;
    for (DiskLane::Ended& e : ended) finish_piece(e, now);
    if (!ended.empty()) add_cpu_time(cpu, now);
    ended.clear();
    if (wake_owed_) tell(lock);
  }
  end_thread(lock);
}

void MemoryLink::wake_disk() {
  if (std::exchange(disk_waits_, false)) disk_->wake();
}

DiskJob MemoryLink::take_piece() {
  Active& active = leave(kDiskLane);
  const size_t segment = active.segment++;
  const Segment& s = active.transfer.segments[segment];
  const bool writes = s.to.tier == Tier::kDisk;
  const MemoryAddress memory = writes ? s.from : s.to;
  const DiskJob job{.op = writes ? DiskRequest::Op::kWrite : DiskRequest::Op::kRead,
                    .offset = writes ? s.to.offset : s.from.offset,
                    .memory = at(memory),
                    .mover = memory.tier == Tier::kDevice ? options_.mover : nullptr,
                    .bytes = s.bytes,
                    .of = &active,
                    .segment = segment,
                    .taken = clock_.now()};
  begin(active, job.taken);
  ++active.in_hand;
  if (active.segment < active.transfer.segments.size()) queue(active);
  return job;
}

void MemoryLink::finish_piece(DiskLane::Ended& ended, Nanos now) {
  const DiskJob& job = ended.job;
  Active& active = *static_cast<Active*>(job.of);
  const Nanos busy = std::max<Nanos>(0, now - std::max(job.taken, disk_busy_until_));
  disk_busy_until_ = std::max(disk_busy_until_, now);
  stats_.disk_busy_s += to_seconds(busy);
  if (ended.status.ok()) {
    const Segment& s = active.transfer.segments[job.segment];
    stats_.bytes[static_cast<size_t>(s.from.tier)][static_cast<size_t>(s.to.tier)] += job.bytes;
    disk_bytes_per_s_.add(static_cast<double>(job.bytes), to_seconds(busy));
  } else {
    fail(active, std::move(ended.status));
  }
  put_down(active);
}

void MemoryLink::fail(Active& active, Status status) {
  if (!active.failure.ok()) return;
  active.failure = std::move(status);
  if (active.segment == active.transfer.segments.size()) return;
  ready_[lane_of(active)].erase(turn(active));
  active.segment = active.transfer.segments.size();  // the rest of it is of no use
}

}  // namespace kvasir
