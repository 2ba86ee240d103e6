// A plan for one step: data only, made of rectangles (sequence, tokens, layer groups).
//
// A policy writes it through PlanBuilder; check_plan() judges it; the committer alone makes it so. It can be
// printed, logged and replayed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"

namespace kvasir {

enum class RowKind : uint8_t { kPrefill, kDecode, kRecompute };

// What rows leave behind, by layer group and form, and where. An empty set for a form: none of it is kept.
struct Writes {
  LayerSet kv;
  LayerSet x;
  Tier tier = Tier::kDevice;
  friend bool operator==(const Writes&, const Writes&) = default;
};

// Forward passes over tokens [begin, end) of a sequence. A token that a step in flight is still sampling is
// named by its position like any other: the executor puts the id in.
struct Rows {
  SeqId seq{};
  Interval tokens;
  LayerSet layers;
  RowKind kind = RowKind::kPrefill;
  Writes writes;
  // The last row yields logits and samples the token at position tokens.end.
  // REQUIRES: tokens.end is the sequence's known length.
  bool samples = false;
  friend bool operator==(const Rows&, const Rows&) = default;
};

// A sequence names the existing blocks of [0, tokens): identity only, no copy is made.
struct Adoption {
  SeqId seq{};
  uint32_t tokens = 0;
  friend bool operator==(const Adoption&, const Adoption&) = default;
};

enum class Verb : uint8_t { kAdd, kDrop, kStage };

// When a copy change happens. `layer` is read for the two kinds that name one.
struct Trigger {
  enum class Kind : uint8_t { kNow, kBeforeLayer, kAfterLayerWrites, kWhenReady, kBackground };
  Kind kind = Kind::kNow;
  uint16_t layer = 0;
  friend bool operator==(const Trigger&, const Trigger&) = default;
};

// Add a copy, give up the interest in one, or stage one for a step. Tokens are whole blocks, except that the
// end may be the sequence's.
struct CopyChange {
  Verb verb = Verb::kDrop;
  SeqId seq{};
  Interval tokens;
  LayerSet layers;
  Form form = Form::kKv;
  Tier tier = Tier::kDevice;
  Trigger trigger;
  friend bool operator==(const CopyChange&, const CopyChange&) = default;
};

// So many blocks are kept for `owner` until it has allocated them or ends.
struct Promise {
  enum class Kind : uint8_t { kOwn };
  SeqId owner{};
  uint32_t blocks = 0;
  Kind kind = Kind::kOwn;
  friend bool operator==(const Promise&, const Promise&) = default;
};

// A change of state only, from running to waiting; the plan's copy changes say what becomes of its cells.
struct Preemption {
  SeqId seq{};
  friend bool operator==(const Preemption&, const Preemption&) = default;
};

// The sequence ends with an error that its client reads.
struct Failure {
  SeqId seq{};
  std::string reason;
  friend bool operator==(const Failure&, const Failure&) = default;
};

// The committer applies the lists in the order in which they stand here.
struct StepPlan {
  std::vector<Failure> failures;
  std::vector<Preemption> preemptions;
  std::vector<CopyChange> copies;
  std::vector<Adoption> adoptions;
  std::vector<Promise> promises;
  std::vector<Rows> rows;  // a waiting sequence that has rows starts to run

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

const char* name(RowKind kind);
const char* name(Verb verb);
const char* name(Trigger::Kind kind);

// One line per entry, for people.
std::string to_string(const StepPlan& plan);

}  // namespace kvasir
