// One viewer of the cache map: an event stream of the lines of a LiveMap (engine/map_lines.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/live_map.h"
#include "server/exchange.h"
#include "server/generation.h"

namespace kvasir {

// Used on the I/O thread. A viewer that reads too slowly misses frames, and then gets a whole map again.
class MapStream final : public Activity, public std::enable_shared_from_this<MapStream> {
 public:
  // The map outlives the server; the channel is valid until abort().
  MapStream(LiveMap& map, ResponseChannel* channel, PostToIo post)
      : map_(map), channel_(channel), post_(std::move(post)) {}
  ~MapStream() override { abort(); }

  // REQUIRES: it is attached
  void start();
  void on_drained() override;
  void on_server_drains() override;
  void abort() override;

 private:
  void on_line(const std::string& line);

  LiveMap& map_;
  ResponseChannel* channel_;  // null: the stream has ended
  const PostToIo post_;
  uint64_t viewer_ = 0;       // 0: it has left, or not joined yet
  bool behind_ = false;       // lines are left out until the client has read what it got
  bool out_of_step_ = false;  // and then until a whole map comes
};

}  // namespace kvasir
