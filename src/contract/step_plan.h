// A plan for one step: data only, made of rectangles (sequence, tokens, layer groups).
//
// A policy writes it through PlanBuilder, check_plan() checks it, and only the committer applies it. It can
// be printed, logged and replayed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/reason.h"

namespace kvasir {

// The purpose of rows.
//   kPrefill    compute the prompt, starting at the end of the history
//   kDecode     compute the newest token
//   kRecompute  recompute generated tokens that a preemption gave up, starting at the end of the history
//   kRestore    recompute dropped cells of the history for later rows of the same sequence in this plan.
//               They are whole blocks, from their token ids through the first `layers.count()` layer groups.
//               The cells that these rows keep are ready when the step has ended
enum class RowKind : uint8_t { kPrefill, kDecode, kRecompute, kRestore };

// The layer groups in which rows keep cells on the device, by form. K and V that are not kept exist in the
// stage ring only, while their layer runs; a copy change with kAfterLayerWrites can keep them on a slower
// tier. This applies to blocks that the rows fill from their first token on and to recomputed blocks. A
// partly filled block keeps its K and V on the device in every group. X of a block is kept from its first
// token on or not at all.
struct Writes {
  LayerSet kv;
  LayerSet x;
  friend bool operator==(const Writes&, const Writes&) = default;
};

// Forward passes over tokens [begin, end) of a sequence. Tokens are named by position, including a token that
// a step in flight is still sampling: the executor fills in its id.
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

// A sequence adds the existing blocks of tokens [0, tokens) to its block table. No bytes are copied.
struct Adoption {
  SeqId seq{};
  uint32_t tokens = 0;
  friend bool operator==(const Adoption&, const Adoption&) = default;
};

//   kAdd      add copies to a tier
//   kDrop     give up the interest in copies on a tier
//   kDropAll  give up every copy in one form on one tier, of a sequence that does not run (no tokens and no
//             layers are named; the trigger is kNow)
//   kStage    stage cells for a step
enum class Verb : uint8_t { kAdd, kDrop, kDropAll, kStage };

// When a copy change happens.
//   kNow               at once. A drop gives up the named copies, even the last copy of a cell, once the
//                      rows of this plan have read them; this plan can already use the cells that kDropAll
//                      gives up. An addition to the device goes before background additions, and no row of
//                      this step relies on it
//   kBeforeLayer       at once and urgently: before rows of this plan run a layer group, they wait for its
//                      cells. The only trigger of kStage. The step of this plan projects X to K and V where a
//                      cell exists as X only
//   kAfterLayerWrites  copies cells that rows of this plan write, layer by layer, after each layer's writes
//   kWhenReady         a drop only: drops each cell once another copy of it is ready, and no other cell
//   kBackground        an addition, when the link has no more urgent transfers
enum class Trigger : uint8_t { kNow, kBeforeLayer, kAfterLayerWrites, kWhenReady, kBackground };

// Adds copies to a tier, gives up the interest in copies there, or stages cells for a step. `form` selects
// the form where several exist; cells on the device as X are projected. The change skips cells of the
// rectangle to which it does not apply: nothing is added where a copy exists or where there is nothing to
// copy, and nothing on the device is staged. Tokens are whole blocks, except that the end may be the end of
// the sequence. The tail (the partly filled block) of a running sequence is never copied; the tail of a
// sequence that stops running is.
struct CopyChange {
  Verb verb = Verb::kDrop;
  SeqId seq{};
  Interval tokens;
  LayerSet layers;
  Form form = Form::kKv;
  Tier tier = Tier::kDevice;
  Trigger trigger;
  friend bool operator==(const CopyChange&, const CopyChange&) = default;

  // The blocks that it names, by number: those within its tokens; `tail`: the last one also where the tokens
  // end inside it. The plan's arithmetic and the cache both ask this.
  Interval blocks(uint32_t block_tokens, bool tail) const {
    return {tokens.begin / block_tokens,
            tail ? ceil_div(tokens.end, block_tokens) : tokens.end / block_tokens};
  }
  // Whether adding copies includes a block that is not full: on the way to the device, where all of a history
  // is needed, and from a sequence that stops running.
  bool adds_tail(bool stops) const { return form == Form::kKv && (tier == Tier::kDevice || stops); }
  // Whether giving up copies includes such a block: once another copy is ready. What is dropped at once are
  // whole blocks.
  bool gives_up_tail() const { return trigger == Trigger::kWhenReady; }
};

// Reserves room for KV cells (a cell is a block of one layer group) on a tier: for `owner`, until it has
// allocated them, stops running or ends; or for the shared reserve, without an owner.
struct Promise {
  //   kOwn          takes `cells` from the available cells
  //   kReserve      sets the shared reserve of the tier to `cells`; it has no owner
  //   kFromReserve  takes `cells` from the shared reserve
  //   kLoan         takes `cells` from the promise of `from`, which gets a claim on the cells that the owner
  //                 gives up (View::claims), due when the known length of `from` reaches `due_tokens`
  //   kRelease      takes nothing yet: the owner gets a claim on the cells that `from` gives up
  enum class Kind : uint8_t { kOwn, kReserve, kFromReserve, kLoan, kRelease };
  SeqId owner{};
  uint32_t cells = 0;
  Tier tier = Tier::kDevice;
  Kind kind = Kind::kOwn;
  SeqId from{};
  uint32_t due_tokens = 0;
  friend bool operator==(const Promise&, const Promise&) = default;
};

// When `debtor` gives up KV cells on a tier, because it ends or is preempted, `cells` of the cells that
// become free are promised to `creditor` before any other sequence can take them.
struct Claim {
  SeqId debtor{};
  SeqId creditor{};
  uint32_t cells = 0;
  // Not 0: a loan. The cells come from the creditor's own promise, and the debtor must return them before the
  // creditor's known length reaches this. 0: no loan, the creditor waits for cells that the debtor releases.
  uint32_t due_tokens = 0;
  Tier tier = Tier::kDevice;
  bool called =
      false;  // the debtor has given up its cells: the rest of the claim is met as cells become free
  friend bool operator==(const Claim&, const Claim&) = default;
};

// Only changes the state from running to waiting; the plan's copy changes decide what happens to its cells.
struct Preemption {
  SeqId seq{};
  friend bool operator==(const Preemption&, const Preemption&) = default;
};

// The sequence ends with an error that is sent to its client.
struct Failure {
  SeqId seq{};
  std::string reason;
  friend bool operator==(const Failure&, const Failure&) = default;
};

// How a step may be executed. Hints never change any bit of the result: executors may ignore them.
struct ExecutionHints {
  // The cells that a layer stages may be transferred while earlier layers compute. If not, they are
  // transferred after the attention of the layer before it.
  bool overlap = true;
  // Rows that recompute dropped cells share the pass over the weights with the other rows.
  bool fuse = true;
  friend bool operator==(const ExecutionHints&, const ExecutionHints&) = default;
};

// The committer applies the lists in the order of declaration, except for copies: drops of stopped sequences
// come first, and drops of copies that rows may still read come last.
struct StepPlan {
  std::vector<Failure> failures;
  std::vector<Preemption> preemptions;
  std::vector<Adoption> adoptions;
  std::vector<CopyChange> copies;
  std::vector<Promise> promises;
  std::vector<Rows> rows;  // a waiting sequence that has rows starts to run
  ExecutionHints hints;
  // `borrow_cells`: KV cells to borrow from peers, in addition to those borrowed or requested already.
  // `return_cells`: unused borrowed cells to return. A later view shows the result (View::peers).
  uint32_t borrow_cells = 0;
  uint32_t return_cells = 0;
  // Why, for people, as far as the policy says: nothing is done for it.
  std::vector<Reason> reasons;

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

const char* name(RowKind kind);
const char* name(Verb verb);
const char* name(Trigger trigger);
const char* name(Promise::Kind kind);

// One readable line per entry; without the reasons.
std::string to_string(const StepPlan& plan);

}  // namespace kvasir
