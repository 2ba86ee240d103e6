#include "exec/sim/sim_link.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr double kShared = 0.5;              // of the link, for each of two that use it
constexpr uint64_t kUnitBytes = 256 * 1024;  // of a transfer, as real links cut it
constexpr Nanos kLooks = 4;                  // for a free link, during a collective

}  // namespace

LinkCost SimLink::cost_of(const Segment& s) const {
  if (is_borrowed(s.from)) return borrowed_.peers->path(s.from.offset - borrowed_.begin);
  if (is_borrowed(s.to)) return borrowed_.peers->path(s.to.offset - borrowed_.begin);
  return costs_[index_of(s.from.tier)][index_of(s.to.tier)];
}

SimLink::Lane SimLink::lane_of(const Transfer& transfer) const {
  if (transfer.segments.empty()) return kToDevice;
  const Segment& s = transfer.segments.front();
  if (is_borrowed(s.from)) return kFromPeers;
  if (is_borrowed(s.to)) return kToPeers;
  if (s.from.tier == Tier::kDisk || s.to.tier == Tier::kDisk) return kDisk;
  return s.to.tier == Tier::kDevice ? kToDevice : kFromDevice;
}

void SimLink::start(Transfer transfer) {
  run_until(clock_.now());
  const TransferId id = transfer.id;
  KV_CHECK(!jobs_.contains(id), "transfer {} was started before", raw(id));
  Job job;
  job.lane = lane_of(transfer);
  job.number = ++started_;
  for (const Segment& s : transfer.segments) job.latency_s = std::max(job.latency_s, cost_of(s).latency_s);
  double seconds = job.latency_s;
  for (const Segment& s : transfer.segments) {
    const double moving = static_cast<double>(s.bytes) * cost_of(s).seconds_per_byte;
    seconds += moving;
    job.moving_s += moving;
  }
  job.left = std::llround(seconds * static_cast<double>(kNanosPerSecond));
  stats_.queued_bytes += transfer.bytes();
  for (const auto* before : {&transfer.after, &transfer.needs}) {
    for (TransferId other : *before) {
      if (before == &transfer.needs && failed_.contains(other)) job.doomed = true;
      if (!jobs_.contains(other)) continue;
      ++job.waits;
      followers_[other].push_back(id);
    }
  }
  job.transfer = std::move(transfer);
  Job& added = jobs_.emplace(id, std::move(job)).first->second;
  if (added.waits == 0) may_begin(added, clock_.now());
}

void SimLink::may_begin(Job& job, Nanos time) {
  if (job.doomed) {
    end(job.transfer.id, time);
    return;
  }
  LaneState& lane = lanes_[job.lane];
  lane.ready.insert(turn_of(job));
  choose(lane, time);
}

// The most urgent of those that may begin moves.
void SimLink::choose(LaneState& lane, Nanos time) {
  const std::optional<TransferId> next =
      lane.ready.empty() ? std::nullopt : std::optional(lane.ready.begin()->second);
  if (next == lane.moving) return;
  settle(lane, time);
  lane.moving = next;
  lane.since = time;
  if (next && jobs_.at(*next).began < 0) jobs_.at(*next).began = time;
}

void SimLink::settle(LaneState& lane, Nanos time) {
  if (!lane.moving || time <= lane.since) return;
  jobs_.at(*lane.moving).left -= std::llround(static_cast<double>(time - lane.since) * lane.rate);
  lane.since = time;
}

std::optional<Nanos> SimLink::end_of(const LaneState& lane) const {
  if (!lane.moving || lane.rate <= 0) return std::nullopt;
  const Nanos left = jobs_.at(*lane.moving).left;
  return lane.since + static_cast<Nanos>(std::ceil(static_cast<double>(left) / lane.rate));
}

void SimLink::run_until(Nanos time) {
  for (;;) {
    const std::optional<Nanos> next = next_end();
    if (!next || *next > time) return;
    for (LaneState& lane : lanes_) {
      if (end_of(lane) != next) continue;
      end(*lane.moving, *next);
      break;
    }
  }
}

std::optional<Nanos> SimLink::next_end() const {
  std::optional<Nanos> first;
  for (const LaneState& lane : lanes_) {
    const std::optional<Nanos> ends = end_of(lane);
    if (ends && (!first || *ends < *first)) first = ends;
  }
  return first;
}

void SimLink::end(TransferId id, Nanos time) {
  auto node = jobs_.extract(id);
  Job& job = node.mapped();
  LaneState& lane = lanes_[job.lane];
  stats_.queued_bytes -= job.transfer.bytes();
  ++stats_.transfers;
  TransferDone done{id, {}, job.began, time};
  if (job.doomed) {
    failed_.insert(id);
    ++stats_.cancelled;  // in virtual time nothing else fails
    done.started = time;
    done.status = error(ErrorCode::kUnavailable, "transfer {} was given up", raw(id));
  } else {
    count(job);
    lane.ready.erase(turn_of(job));
    lane.moving.reset();
    choose(lane, time);
  }
  done_.push_back(std::move(done));
  if (wake_) wake_();
  auto followers = followers_.extract(id);
  if (followers.empty()) return;
  for (TransferId other : followers.mapped()) {
    Job& follower = jobs_.at(other);
    const auto& needs = follower.transfer.needs;
    if (job.doomed && std::find(needs.begin(), needs.end(), id) != needs.end()) follower.doomed = true;
    if (--follower.waits == 0) may_begin(follower, time);
  }
}

void SimLink::count(const Job& job) {
  uint64_t& reads = stats_.disk.read_bytes;
  uint64_t& writes = stats_.disk.written_bytes;
  const double seconds = job.moving_s, latency = job.latency_s;
  for (const Segment& s : job.transfer.segments) {
    stats_.bytes[index_of(s.from.tier)][index_of(s.to.tier)] += s.bytes;
    if (job.lane == kFromPeers || job.lane == kToPeers) peer_bytes_ += s.bytes;
    if (s.from.tier == Tier::kDisk) reads += s.bytes;
    if (s.to.tier == Tier::kDisk) writes += s.bytes;
  }
  if (job.lane == kDisk) {
    stats_.has_disk = true;
    stats_.disk_busy_s += seconds + latency;
    ++(job.transfer.segments.front().from.tier == Tier::kDisk ? stats_.disk.reads : stats_.disk.writes);
    stats_.disk_bytes_per_s = static_cast<double>(reads + writes) / stats_.disk_busy_s;
    return;
  }
  if (job.lane == kToPeers) {
    to_peers_bytes_ += static_cast<double>(job.transfer.bytes());
    to_peers_s_ += seconds + latency;
    if (to_peers_s_ > 0) stats_.peer_bytes_per_s = to_peers_bytes_ / to_peers_s_;
  }
  stats_.busy_s += seconds + latency;
  stats_.latency_s = latency;
  if (seconds > 0) stats_.bytes_per_s = static_cast<double>(job.transfer.bytes()) / seconds;
}

void SimLink::cancel(TransferId id) {
  run_until(clock_.now());
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second.began >= 0) return;
  Job& job = found->second;
  job.doomed = true;
  if (job.waits > 0) return;
  lanes_[job.lane].ready.erase(turn_of(job));
  end(id, clock_.now());
}

TransferState SimLink::wait(TransferId id, Nanos timeout) {
  const Nanos now = clock_.now();
  const Nanos deadline = timeout > INT64_MAX - now ? INT64_MAX : now + timeout;
  run_until(now);
  while (jobs_.contains(id)) {
    const std::optional<Nanos> next = next_end();
    if (!next || *next > deadline) {
      KV_CHECK(deadline < INT64_MAX, "transfer {} never ends", raw(id));
      clock_.advance(deadline - clock_.now());
      return TransferState::kPending;
    }
    clock_.advance(*next - clock_.now());
    run_until(*next);
  }
  return failed_.contains(id) ? TransferState::kFailed : TransferState::kDone;
}

void SimLink::set_rate(double rate, Nanos time) {
  for (Lane lane : {kToDevice, kFromDevice}) {
    settle(lanes_[lane], time);
    lanes_[lane].rate = rate;
  }
}

bool SimLink::any_beside_collectives() const {
  return end_of(lanes_[kToDevice]) || end_of(lanes_[kFromDevice]);
}

Nanos SimLink::collective(Nanos alone, bool yields) {
  const Nanos began = clock_.now();
  run_until(began);
  const double unit_s = kUnitBytes * costs_[index_of(Tier::kHost)][index_of(Tier::kDevice)].seconds_per_byte;
  Nanos unit_ends = INT64_MAX;
  if (yields) unit_ends = began + std::llround(unit_s / 2 / kShared * kNanosPerSecond);
  const bool moved = any_beside_collectives();
  bool stopped = yields && !moved;
  set_rate(stopped ? 0 : kShared, began);
  double left = static_cast<double>(alone);
  while (left > 0) {
    const Nanos now = clock_.now();
    const bool beside = any_beside_collectives();
    const double speed = beside ? kShared : 1;
    Nanos until = now + static_cast<Nanos>(std::ceil(left / speed));
    if (beside) until = std::min(until, unit_ends);
    if (const std::optional<Nanos> next = next_end()) until = std::min(until, *next);
    left -= static_cast<double>(until - now) * speed;
    clock_.advance(until - now);
    run_until(until);
    if (until < unit_ends) continue;
    set_rate(0, until);
    stopped = true;
  }
  const Nanos ended = clock_.now();
  set_rate(1, ended);
  for (Lane lane : {kToDevice, kFromDevice}) {
    if (stopped && lanes_[lane].moving) lanes_[lane].since = ended + alone / kLooks / 2;
  }
  return ended - began;
}

std::vector<TransferDone> SimLink::completed() {
  run_until(clock_.now());
  return std::exchange(done_, {});
}

}  // namespace kvasir
