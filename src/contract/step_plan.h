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

// What rows leave behind on the device, by layer group and form. K and V that are not kept pass through the
// stage ring only, for as long as a layer takes; a copy change with kAfterLayerWrites may say that they stay
// on a slower tier. That holds of blocks that the rows fill from their first token on, and of blocks that are
// computed again; a block that is not full yet has its K and V on the device in every group. X of a block is
// kept from its first token on or not at all.
struct Writes {
  LayerSet kv;
  LayerSet x;
  LayerSet h;
  friend bool operator==(const Writes&, const Writes&) = default;
};

// Forward passes over tokens [begin, end) of a sequence. A token that a step in flight is still sampling is
// named by its position like any other: the executor puts the id in.
//
// kRecompute is one of two things. Where the tokens begin at the end of the sequence's history, they go on
// from there. Where they end within it, they compute dropped cells again, for the rows of the sequence that
// follow in the plan: whole blocks, in layer groups from `layers`' first one on (begun with H, or, if that is
// the first of all, with token ids) to its last one, and what they keep is there when the step has ended.
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

// When a copy change happens.
//   kNow               at once. A drop gives up what it names, also where it is the last copy; of a sequence
//                      that does not run, all that it holds can be had by the same plan, otherwise it goes
//                      when this plan's rows have read it. An addition to the device goes before those in the
//                      background, and no row of this step counts on it
//   kBeforeLayer       at once and urgently: rows of this plan wait for each layer group of it before they
//                      come to that group. The one trigger of a stage. KV of which there is only X is
//                      made from that, by the step of this plan
//   kAfterLayerWrites  of what this plan's rows write: layer by layer, when they have written it
//   kWhenReady         a drop only: of each cell as soon as another copy of it is ready, and of no other cell
//   kBackground        an addition, when the link has nothing better to do
enum class Trigger : uint8_t { kNow, kBeforeLayer, kAfterLayerWrites, kWhenReady, kBackground };

// Add copies to a tier, give up the interest in those that are there, or stage some for a step (`form`: which
// to take where there are several; what is on the device as X is projected). It holds for
// the cells of the rectangle for which it makes sense: nothing is added where a copy is or where there is
// nothing to copy, nothing staged that is on the device. Tokens are whole blocks, except that the end may be
// the sequence's. The tail of a running sequence, a block that is not full, is never copied; that of one that
// stops running is.
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

// Room for cells of KV (a block of one layer group) on a tier is kept: for `owner` until it has allocated
// them, stops running or ends; or for nobody yet.
struct Promise {
  //   kOwn          of what nobody needs
  //   kReserve      the shared reserve of the tier becomes so many cells; it has no owner
  //   kFromReserve  of the shared reserve, which has so many fewer then
  //   kLoan         of the own promise of `from`, which has so many fewer then and a claim on what the owner
  //                 gives up (View::claims), due when its own known length has come to `due_tokens`
  //   kRelease      nothing yet: the owner has a claim on what `from` gives up
  enum class Kind : uint8_t { kOwn, kReserve, kFromReserve, kLoan, kRelease };
  SeqId owner{};
  uint32_t cells = 0;
  Tier tier = Tier::kDevice;
  Kind kind = Kind::kOwn;
  SeqId from{};
  uint32_t due_tokens = 0;
  friend bool operator==(const Promise&, const Promise&) = default;
};

// When `debtor` gives up cells of KV on a tier, by ending or by being preempted, so many of those that come
// free are promised to `creditor` before anyone else can have them.
struct Claim {
  SeqId debtor{};
  SeqId creditor{};
  uint32_t cells = 0;
  // A loan: the debtor has the cells from the creditor's own promise, and must have given them back when the
  // creditor's known length has come to this. 0: no loan, the creditor waits for what the debtor releases.
  uint32_t due_tokens = 0;
  Tier tier = Tier::kDevice;
  bool called = false;  // the debtor has given up what it had: what is left of the claim comes as it is free
  friend bool operator==(const Claim&, const Claim&) = default;
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

// How a step may be executed. None of it changes what is computed, nor a bit of it: executors may ignore it.
struct ExecutionHints {
  // What a layer stages may come while earlier layers compute. If not, it comes when the layer before it has
  // attended.
  bool overlap = true;
  // Rows that compute dropped cells again pass the weights together with the others.
  bool fuse = true;
  // Of 1024 threads, those for rows that compute again; 0: no preference.
  uint16_t again_threads = 0;
  friend bool operator==(const ExecutionHints&, const ExecutionHints&) = default;
};

// The committer applies the lists in the order in which they stand here, but for copies: what stopped
// sequences give up goes first, and what rows may still read goes last.
struct StepPlan {
  std::vector<Failure> failures;
  std::vector<Preemption> preemptions;
  std::vector<Adoption> adoptions;
  std::vector<CopyChange> copies;
  std::vector<Promise> promises;
  std::vector<Rows> rows;  // a waiting sequence that has rows starts to run
  ExecutionHints hints;
  // Cells of KV to be borrowed from peers beside those that are there or asked for, and borrowed ones to be
  // given back, of those that nobody needs. What comes of it a later view tells (View::peers).
  uint32_t borrow_cells = 0;
  uint32_t return_cells = 0;

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

const char* name(RowKind kind);
const char* name(Verb verb);
const char* name(Trigger trigger);
const char* name(Promise::Kind kind);

// One line per entry, for people.
std::string to_string(const StepPlan& plan);

}  // namespace kvasir
