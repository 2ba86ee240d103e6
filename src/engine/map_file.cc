#include "engine/map_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvasir {

Result<std::unique_ptr<MapFile>> MapFile::create(const std::string& path, MapLabels labels) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) return error(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  return std::unique_ptr<MapFile>(new MapFile(file, path, std::move(labels)));
}

MapFile::~MapFile() {
  if (file_) std::fclose(file_);
}

void MapFile::begin(const MapShape& shape) {
  if (!file_) return;
  writer_.emplace(shape.geometry.groups());
  write(map_head(labels_, shape));
}

void MapFile::show(MapFrame frame) {
  if (file_) write(writer_->next(frame));
}

void MapFile::write(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fputc('\n', file_) != EOF)
    return;
  failed_ = error(ErrorCode::kIo, "{}: {}; the file is not complete", path_, std::strerror(errno));
  std::fclose(std::exchange(file_, nullptr));
}

Status MapFile::close() {
  if (file_ && std::fclose(std::exchange(file_, nullptr)) != 0) {
    failed_ = error(ErrorCode::kIo, "{}: {}; the file is not complete", path_, std::strerror(errno));
  }
  return failed_;
}

}  // namespace kvasir
