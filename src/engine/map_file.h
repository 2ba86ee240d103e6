// A file of the cache map, of every step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/cache_map.h"
#include "engine/map_lines.h"

namespace kvasir {

// Used by the engine's thread. It writes as the engine goes: for simulations, in which that costs no time
// that counts.
class MapFile final : public MapSink {
 public:
  // Truncates the file. kIo: it cannot be written.
  static Result<std::unique_ptr<MapFile>> create(const std::string& path, MapLabels labels);
  ~MapFile() override;
  MapFile(const MapFile&) = delete;
  MapFile& operator=(const MapFile&) = delete;

  void begin(const MapShape& shape) override;
  bool watched() const override { return file_ != nullptr; }
  bool wants_frame() const override { return true; }
  void show(MapFrame frame) override;

  // Writes what is buffered. kIo: the file is not complete, and why.
  Status close();

 private:
  MapFile(std::FILE* file, std::string path, MapLabels labels)
      : file_(file), path_(std::move(path)), labels_(std::move(labels)) {}
  void write(const std::string& line);

  std::FILE* file_;  // null: closed, or a write has failed
  const std::string path_;
  const MapLabels labels_;
  std::optional<MapWriter> writer_;
  Status failed_;
};

}  // namespace kvasir
