// The cache map: where the copies of every sequence's cells are at one moment, and what the engine and the
// policy do, as data for people to look at. It has lengths, times and places, and neither text nor tokens.
//
//   engine's thread ── MapWatch (map_watch.h) ── MapFrame ──> MapSink: LiveMap, MapFile, PlanLog
//   a sink ── MapWriter (map_lines.h) ── lines: a whole map, then changes ──> the page in web/cache/
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/blocks/place.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/layer_set.h"
#include "contract/slo.h"
#include "contract/step_plan.h"
#include "engine/attainment.h"

namespace kvasir {

// The copies of one cell, as bits. 0: it is dropped. The copies of a dead one are for other sequences.
// bit p: there is a usable copy at place p (cache/blocks/place.h: KV on device, host, disk; X likewise);
// bit 6 + p: a copy at place p is being filled; and those below.
using CellState = uint16_t;
inline constexpr CellState kFillingShift = kPlaces;
inline constexpr CellState kAtPeer = 1 << 12;  // the KV on the host tier lies in memory of a peer
inline constexpr CellState kStaged = 1 << 13;  // the last step read it through the stage ring
inline constexpr CellState kShared = 1 << 14;  // other sequences have the same block
inline constexpr CellState kDead = 1 << 15;    // the sequence does not read it again: it is behind a window

// The cells of one block.
struct BlockCells {
  std::array<LayerSet, kPlaces> ready{};
  std::array<LayerSet, kPlaces> filling{};
  LayerSet at_peers;
  LayerSet staged;
  LayerSet dead;
  bool shared = false;
  friend bool operator==(const BlockCells&, const BlockCells&) = default;

  CellState state(uint32_t group) const;
};
// Blocks, one behind the other, whose cells are in the same states.
struct BlockRun {
  uint32_t blocks = 0;
  BlockCells cells;
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

// What there is to say of a sequence beside its cells. Lengths are in tokens.
struct SequenceFacts {
  enum class State : uint8_t { kWaiting, kHeld, kRunning, kEnding };  // LiveRequest::State
  static constexpr uint8_t kNoRows = 255;

  uint64_t id = 0;
  State state = State::kWaiting;
  uint32_t prompt_tokens = 0;
  uint32_t known_tokens = 0;
  uint32_t ready_tokens = 0;
  uint32_t max_total_tokens = 0;
  uint32_t cached_tokens = 0;     // of a waiting one: it may adopt so many
  uint32_t predicted_tokens = 0;  // of its output; 0: unknown
  uint32_t preemptions = 0;
  uint32_t late_gaps = 0;
  int32_t priority = 0;
  uint8_t row_kind = kNoRows;  // RowKind of its rows in the last plan
  uint32_t rows = 0;
  Nanos arrival = 0;
  Nanos first_run = 0;    // 0: not yet; likewise
  Nanos first_token = 0;  // this
  Slo slo;
  std::array<uint32_t, kTiers> promised_cells{};
  friend bool operator==(const SequenceFacts&, const SequenceFacts&) = default;
};
struct MapSequence : SequenceFacts {
  std::vector<BlockRun> blocks;  // of its block table
};

// Transfers in flight of one sequence from one place to another, together. A place is a number as in
// CellState; kNowhere as the source: rows write it; as the destination: the stage ring.
struct MapMove {
  static constexpr uint8_t kNowhere = 255;
  uint64_t seq = 0;  // 0: blocks without a sequence, which are saved
  uint8_t from = kNowhere;
  uint8_t to = kNowhere;
  uint32_t cells = 0;
  friend bool operator==(const MapMove&, const MapMove&) = default;
};

// A decision of a plan, in words. The words name sequences by their ids.
struct MapNote {
  Nanos at = 0;
  uint64_t step = 0;
  uint64_t seq = 0;  // 0: of all
  std::string name;  // a short one, as "preempt_latest"
  std::string words;
  friend bool operator==(const MapNote&, const MapNote&) = default;
};

// Counters are sums since the engine began.
struct MapGauges {
  struct TierUse {
    uint64_t bytes = 0, used_bytes = 0;
    uint32_t cached_blocks = 0;  // of no sequence, with a copy there that can be found
    uint32_t promised_cells = 0;
    friend bool operator==(const TierUse&, const TierUse&) = default;
  };
  std::array<TierUse, kTiers> tiers{};
  uint32_t borrowed_cells = 0, recalled_cells = 0, lent_cells = 0;
  uint32_t transfers = 0;  // in flight
  uint64_t queued_bytes = 0;
  uint64_t link_bytes_per_s = 0;                                   // while it moves bytes
  std::array<std::array<uint64_t, kTiers>, kTiers> moved_bytes{};  // [from][to]
  // drain, plan, commit, execute, publish; and of execute, waiting for transfers. Microseconds.
  std::array<uint64_t, 6> phases_us{};
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  uint64_t preemptions = 0, swapped = 0, recomputed = 0;
  std::array<uint64_t, 4> finished{};                           // by FinishReason
  std::array<std::array<uint64_t, 2>, kSloKinds.size()> slo{};  // by SloKind: requests, attained
  std::array<uint64_t, 2> goodput{};                            // requests, attained
  friend bool operator==(const MapGauges&, const MapGauges&) = default;
};

struct MapFrame {
  Nanos at = 0;
  uint64_t step = 0;                   // submitted so far
  std::vector<MapSequence> sequences;  // all that live, by id
  std::vector<MapMove> moves;
  std::vector<Claim> claims;
  std::vector<MapNote> notes;  // since the last frame of this sink
  uint64_t unsaid = 0;         // further notes, which were too many
  MapGauges gauges;
  Nanos cost = 0;  // of this turn's notes and of making it, on the engine's thread; not told
};

// What does not change while an engine runs.
struct MapShape {
  Nanos began = 0;  // on the engine's clock; another value means another engine, with ids of its own
  CacheGeometry geometry;
  std::array<uint32_t, kTiers> cells{};  // of KV, by tier; the host's include what may be borrowed
  uint32_t borrowable_cells = 0;
  uint32_t stage_blocks = 0;
};
// Whose map it is.
struct MapLabels {
  std::string source;  // "serve", "simulate" or "plan log"
  std::string model;
  std::string policy;
};

// Where frames go. All functions but the destructor are called on the engine's thread, and return at once.
class MapSink {
 public:
  virtual ~MapSink() = default;
  // Before the first frame. After a fresh start of the engine once more.
  virtual void begin(const MapShape& shape) = 0;
  // Whether notes are to be collected, and frames may be wanted. Asked in each turn, so it must be cheap.
  virtual bool watched() const = 0;
  // Whether the end of this turn is to be shown. REQUIRES: watched()
  virtual bool wants_frame() const = 0;
  virtual void show(MapFrame frame) = 0;
  // Once the words of a plan have taken some time, none are made for so many times as long. 0: there is no
  // pause.
  virtual uint32_t pause_for_words() const { return 0; }
  // `wake` makes the engine's thread have a turn. Empty: the former one must not be called any more.
  virtual void set_wake(std::function<void()> wake) { (void)wake; }
};

}  // namespace kvasir
