// The cache map as lines of JSON: one format for the live stream, for the files of `simulate --record`, and
// for plan logs, in which these lines stand between others. docs/seeing.md describes the format.
//
//   {"kvasir_map":1,...}          first, and again when an engine has started anew: what does not change
//   {"f":8,"whole":true,...}      a whole map
//   {"f":9,...}                   what has changed since frame 8
//
// The cells of a sequence are coded as runs of equal states, by layer group; a change has those layer groups
// whose runs are not what they were.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/cache_map.h"

namespace kvasir {

inline constexpr int kMapFormat = 1;

// The cells of a sequence in one layer group: runs of blocks in the same state, from block 0 on.
using CellRuns = std::vector<std::pair<CellState, uint32_t>>;
struct DrawnSequence : SequenceFacts {
  std::vector<CellRuns> groups;
  friend bool operator==(const DrawnSequence&, const DrawnSequence&) = default;
};
// A frame, as its reader has it. Times are of whole microseconds.
struct DrawnMap {
  Nanos at = 0;
  uint64_t step = 0;
  std::map<uint64_t, DrawnSequence> sequences;
  std::vector<MapMove> moves;
  std::vector<Claim> claims;
  MapGauges gauges;
  friend bool operator==(const DrawnMap&, const DrawnMap&) = default;
};
DrawnMap draw(const MapFrame& frame, uint32_t groups);

// One line, which tells what does not change.
std::string map_head(const MapLabels& labels, const MapShape& shape);

// Whether a line of a file that has others, too, belongs to the map.
bool is_map_line(std::string_view line);

// Makes lines of frames. Used by one thread at a time.
class MapWriter {
 public:
  explicit MapWriter(uint32_t groups) : groups_(groups) {}

  // The frame as what has changed since the one before it; the first one of all whole.
  std::string next(const MapFrame& frame);
  // The last frame, whole and without notes, for a reader that joins. REQUIRES: next() was called
  std::string whole() const;

 private:
  const uint32_t groups_;
  uint64_t number_ = 0;  // of the last frame
  DrawnMap last_;
};

// Reads such lines, and keeps the map as it is after the last one.
class MapReader {
 public:
  // kCorrupt: it is no line of a map, or a change of another frame than the last.
  Status read(std::string_view line);

  const DrawnMap& map() const { return map_; }
  uint64_t frame() const { return number_; }
  uint32_t groups() const { return groups_; }  // 0: there was no head yet
  // Of the last line.
  const std::vector<MapNote>& notes() const { return notes_; }
  uint64_t unsaid() const { return unsaid_; }

 private:
  uint32_t groups_ = 0;
  uint64_t number_ = 0;
  DrawnMap map_;
  std::vector<MapNote> notes_;
  uint64_t unsaid_ = 0;
};

}  // namespace kvasir
