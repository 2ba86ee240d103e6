// The cache map for those who watch a running engine: at most ten frames a second, made into lines by a
// thread of its own.
//
//   this thread: "a frame is wanted" ──> engine's thread, at the end of its turn: a MapFrame ──> this thread:
//   lines ──> viewers. Without viewers the thread sleeps, and the engine looks at one flag in each turn.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/cache_map.h"
#include "engine/map_lines.h"

namespace kvasir {

// Thread-safe, but for the functions of MapSink, which the engine's thread calls.
class LiveMap final : public MapSink {
 public:
  explicit LiveMap(MapLabels labels);
  // REQUIRES: the engine has stopped
  ~LiveMap() override;

  // Called with each line on the map's thread: a head and a whole map first, then changes. It returns at
  // once.
  using Receive = std::function<void(const std::shared_ptr<const std::string>& line)>;
  // Returns the viewer's number.
  uint64_t join(Receive receive);
  // The viewer has left lines out: it gets a head and a whole map again.
  void send_whole(uint64_t viewer);
  // A call of its function may still be on its way when this returns.
  void leave(uint64_t viewer);
  size_t viewers() const;

  void begin(const MapShape& shape) override;
  bool watched() const override { return watched_.load(std::memory_order_relaxed); }
  uint32_t pause_for_words() const override { return kPauseForWords; }
  bool wants_frame() const override { return wanted_.load(std::memory_order_relaxed); }
  void show(MapFrame frame) override;
  void set_wake(std::function<void()> wake) override;

 private:
  // What has taken the engine's thread some time is followed by a pause of so many times as long: frames take
  // half a percent of its time at the most, and words of plans a quarter.
  static constexpr uint32_t kPauseForFrame = 200;
  static constexpr uint32_t kPauseForWords = 400;
  struct Viewer {
    uint64_t number = 0;
    std::shared_ptr<Receive> receive;
    bool needs_whole = true;
  };
  void run();
  void tell(const MapFrame& frame, const MapShape& shape, const std::vector<Viewer>& viewers);

  const MapLabels labels_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Viewer> viewers_;
  uint64_t last_viewer_ = 0;
  std::optional<MapShape> shape_;
  bool anew_ = true;               // the engine has begun since the last frame
  std::optional<MapFrame> frame_;  // that the thread has not taken
  std::function<void()> wake_;
  bool stopping_ = false;

  std::atomic<bool> watched_{false};
  std::atomic<bool> wanted_{false};

  std::optional<MapWriter> writer_;  // used by the thread
  std::thread thread_;
};

}  // namespace kvasir
