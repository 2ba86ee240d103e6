#include "engine/live_map.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace kvasir {
namespace {

constexpr Nanos kBetweenFrames = 100 * kNanosPerMilli;

}  // namespace

LiveMap::LiveMap(MapLabels labels) : labels_(std::move(labels)) {
  thread_ = std::thread([this] { run(); });
}

LiveMap::~LiveMap() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

uint64_t LiveMap::join(Receive receive) {
  auto shared = std::make_shared<Receive>(std::move(receive));
  std::lock_guard lock(mutex_);
  viewers_.push_back({last_viewer_ + 1, std::move(shared)});
  watched_ = true;
  changed_.notify_all();
  return ++last_viewer_;
}

void LiveMap::send_whole(uint64_t viewer) {
  std::lock_guard lock(mutex_);
  for (Viewer& v : viewers_) v.needs_whole |= v.number == viewer;
}

void LiveMap::leave(uint64_t viewer) {
  std::lock_guard lock(mutex_);
  std::erase_if(viewers_, [&](const Viewer& v) { return v.number == viewer; });
  if (!viewers_.empty()) return;
  watched_ = wanted_ = false;
  frame_.reset();
  anew_ = true;
  changed_.notify_all();
}

size_t LiveMap::viewers() const {
  std::lock_guard lock(mutex_);
  return viewers_.size();
}

void LiveMap::begin(const MapShape& shape) {
  std::lock_guard lock(mutex_);
  shape_ = shape;
  anew_ = true;
  frame_.reset();
  // What was wanted of the engine before is wanted of this one.
  wanted_ = !viewers_.empty();
}

void LiveMap::show(MapFrame frame) {
  {
    std::lock_guard lock(mutex_);
    if (viewers_.empty()) return;
    frame_ = std::move(frame);
    wanted_ = false;
  }
  changed_.notify_all();
}

void LiveMap::set_wake(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void LiveMap::run() {
  const MonotonicClock clock;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return stopping_ || !viewers_.empty(); });
    if (stopping_) return;
    const Nanos asked = clock.now();
    wanted_ = true;
    if (wake_) wake_();
    // Where the last viewer has left, no frame is wanted any more. Another viewer may have come since: it is
    // asked again.
    changed_.wait(lock, [this] { return stopping_ || frame_ || !wanted_; });
    if (stopping_ || !frame_) continue;
    const MapFrame frame = *std::exchange(frame_, std::nullopt);
    if (std::exchange(anew_, false)) {
      writer_.reset();
      for (Viewer& v : viewers_) v.needs_whole = true;
    }
    const MapShape shape = shape_.value();
    bool told = false;
    try {
      const std::vector<Viewer> viewers = viewers_;
      for (Viewer& v : viewers_) v.needs_whole = false;
      lock.unlock();
      tell(frame, shape, viewers);
      told = true;
    } catch (const std::bad_alloc&) {
      // The next frame is told whole.
    }
    if (!lock.owns_lock()) lock.lock();
    if (!told) anew_ = true;
    const Nanos rest = std::max(kBetweenFrames, frame.cost * kPauseForFrame) - (clock.now() - asked);
    changed_.wait_for(lock, std::chrono::nanoseconds(std::max<Nanos>(0, rest)), [this] { return stopping_; });
  }
}

void LiveMap::tell(const MapFrame& frame, const MapShape& shape, const std::vector<Viewer>& viewers) {
  if (!writer_) writer_.emplace(shape.geometry.groups());
  const auto change = std::make_shared<const std::string>(writer_->next(frame));
  std::shared_ptr<const std::string> head, whole;
  for (const Viewer& v : viewers) {
    if (!v.needs_whole) {
      (*v.receive)(change);
      continue;
    }
    if (!head) {
      head = std::make_shared<const std::string>(map_head(labels_, shape));
      whole = std::make_shared<const std::string>(writer_->whole());
    }
    (*v.receive)(head);
    (*v.receive)(whole);
  }
}

}  // namespace kvasir
