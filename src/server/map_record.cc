#include "server/map_record.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/units.h"
#include "engine/map_lines.h"

namespace kvasir {

Status each_map_line(const MapRecord& record, const std::function<bool(const std::string& line)>& take) {
  // It is read again for each page.
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(record.path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return error(ErrorCode::kInvalidArgument, "{}: this is not a regular file", record.path);
  }
  std::ifstream in(record.path);
  if (!in) return error(ErrorCode::kIo, "{}: {}", record.path, std::strerror(errno));
  uint64_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    if (!is_map_line(line)) continue;
    bytes += line.size() + 1;
    if (bytes > record.most_bytes) {
      return error(
          ErrorCode::kInvalidArgument,
          "{}: its cache map has more than {}, which is all that the page takes: record a shorter run",
          record.path, format_bytes(record.most_bytes));
    }
    if (!take(line)) return {};
  }
  if (!in.eof()) return error(ErrorCode::kIo, "{}: {}", record.path, std::strerror(errno));
  return {};
}

}  // namespace kvasir
