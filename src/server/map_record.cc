#include "server/map_record.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/units.h"
#include "engine/map_lines.h"

namespace kvasir {

Status each_map_line(const MapRecord& record, const std::function<bool(const std::string& line)>& take) {
  std::ifstream in(record.path);
  uint64_t bytes = 0;
  // What is too much is counted to the end, for the message.
  for (std::string line; std::getline(in, line) && !in.eof();) {
    if (!is_map_line(line)) continue;
    bytes += line.size() + 1;
    if (bytes <= record.most_bytes && !take(line)) return {};
  }
  if (!in.eof()) return error(ErrorCode::kIo, "{}: {}", record.path, std::strerror(errno));
  if (bytes <= record.most_bytes) return {};
  return error(ErrorCode::kInvalidArgument,
               "{}: its cache map has {}, and the page takes {} at the most; record a shorter run",
               record.path, format_bytes(bytes), format_bytes(record.most_bytes));
}

}  // namespace kvasir
