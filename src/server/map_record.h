// The files that `kvasir view` shows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace kvasir {

// A file with lines of the cache map (engine/map_lines.h), and others beside them.
struct MapRecord {
  std::string name;  // for people
  std::string path;
  uint64_t most_bytes = 256ull * 1024 * 1024;  // of the map's lines: the page has all of them in memory
};

// Calls `take` with each line of the map, without its end, until it returns false. A last line that has no
// end is left out, since it is still being written. kIo: the file cannot be read; kInvalidArgument: it is not
// a regular file, or the map has more than record.most_bytes, of which `take` gets no more than that.
Status each_map_line(const MapRecord& record, const std::function<bool(const std::string& line)>& take);

}  // namespace kvasir
