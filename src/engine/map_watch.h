// Takes frames of the cache map for its viewers. Without viewers it does nothing and keeps nothing.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/link.h"
#include "contract/step_plan.h"
#include "contract/view.h"
#include "engine/cache_map.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"

namespace kvasir {

// Used by the engine's thread. Where memory is missing, a frame or a note is left out: the engine does not
// notice.
class MapWatch {
 public:
  // What it reads. All outlive it; link: null where there is no tier but the device's.
  struct Parts {
    const Clock& clock;
    const KvCache& cache;
    const View& view;
    LiveRequests& requests;
    EngineMetrics& metrics;
    const Link* link;
  };
  // Sinks that are null are left out; the others outlive it.
  MapWatch(const Parts& parts, std::initializer_list<MapSink*> sinks);

  // The plan of the view as it is will be committed.
  void planned(const StepPlan& plan);
  // The turn is over. step: the newest one that was submitted.
  void turn_ended(uint64_t step);

 private:
  // Notes of one frame; further ones are only counted.
  static constexpr size_t kMostNotes = 64;
  // A plan is kept if a frame is wanted already, or if the last one that was kept is so old. So steps that
  // take longer are all kept.
  static constexpr Nanos kBetweenKept = 50 * kNanosPerMilli;
  // Notes that a sink has not got yet.
  struct Viewer {
    MapSink* sink;
    std::vector<MapNote> notes = {};
    uint64_t unsaid = 0;
    size_t room() const { return kMostNotes - notes.size(); }
  };
  // What the last plan wanted of a sequence.
  struct Planned {
    uint64_t seq = 0;
    uint8_t row_kind = SequenceFacts::kNoRows;
    uint32_t rows = 0;
    std::vector<CopyChange> staged = {};
  };

  bool watched() const;
  // Makes planned_ of a plan.
  void keep(const StepPlan& plan);
  void note(const StepPlan& plan);
  // Counts what a plan has decided as not said, but for admissions and copies, which frames show.
  void leave_unsaid(const StepPlan& plan);
  uint32_t pause_for_words() const;
  const Planned* planned_for(uint64_t seq) const;
  MapFrame take(uint64_t step);
  MapSequence take(const LiveRequest& live) const;
  void add_blocks(SeqId id, const Planned* planned, std::vector<BlockRun>& out) const;
  BlockCells cells_of(const BlockMap::Block& block) const;
  std::vector<MapMove> moves() const;
  MapGauges gauges() const;

  const Parts p_;
  std::vector<size_t> places_;  // those that have memory
  std::vector<Viewer> viewers_;
  std::vector<Planned> planned_;  // by id
  bool has_plan_ = false;         // this turn has one
  bool kept_ = false;             // planned_ is of the last plan
  Nanos kept_at_ = 0;
  Nanos planning_ = 0;    // what planned() took in this turn
  Nanos words_from_ = 0;  // until then no words are made
};

}  // namespace kvasir
