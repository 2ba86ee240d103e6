// A plan made concrete: what an executor runs, and what it gives back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/link.h"
#include "contract/step_plan.h"

namespace kvasir {

// How the next token is chosen. The draw at a position depends on (seed, position) only.
struct SamplingParams {
  float temperature = 1.0f;  // 0: the most likely token; ties go to the smaller id
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: all
  uint64_t seed = 0;
  // The token that will have index forced_end in its sequence is end_token, and none before it is. 0: nothing
  // is forced. For experiments that replay outputs of given lengths: read by the sampler and by nobody else.
  uint32_t forced_end = 0;
  Token end_token = 0;
  // -1: no log-probabilities; n >= 0: that of the chosen token, and of the n most likely ones.
  int32_t logprobs = -1;
};

// Where the K and V of one layer of a block begin in the device's memory, in bytes: V right behind K. A
// frame's are those of its group's first layer; the next layer's come behind them.
struct KvPlanes {
  static constexpr uint64_t kAbsent = UINT64_MAX;
  uint64_t k = kAbsent;
  uint64_t v = kAbsent;

  bool present() const { return k != kAbsent; }
  friend bool operator==(const KvPlanes&, const KvPlanes&) = default;
};

// The frames of a sequence's blocks on the device: [block * groups + group]; absent where there is none. One
// table serves every step until it changes, so that a step costs nothing for a history that stays.
using BlockTable = std::vector<KvPlanes>;

// Rows of one sequence, with consecutive positions. Indices point into the Step's flat arrays. A sequence may
// have several slices: those that compute dropped cells again come before those that read them, and if one is
// deferred, all of them are.
struct StepSlice {
  static constexpr uint32_t kNothingStaged = UINT32_MAX;

  SeqId seq{};
  Interval tokens;
  RowKind kind = RowKind::kPrefill;
  // The layers that the rows pass: [first_layer, end_layer). Those that begin later than the first take the
  // residual stream from H (Step::restarts). Those that end before the last are done when they have written
  // their K and V of layer end_layer - 1.
  uint32_t first_layer = 0;
  uint32_t end_layer = UINT32_MAX;  // at the most all there are
  bool samples = false;
  bool wants_hidden = false;  // SampledToken::hidden; only of one that samples
  // The id of the last row's token is the one that the sequence's latest sampling row chose.
  bool last_token_by_reference = false;
  uint32_t first_token = 0;  // token_ids[first_token .. + tokens.size())
  uint32_t blocks = 0;       // cover [0, tokens.end)
  std::shared_ptr<const BlockTable> table;
  // staged[first_staged + layer * blocks + block], if anything of the sequence lies in the stage ring.
  uint32_t first_staged = kNothingStaged;
  SamplingParams sampling;
};

// A point in a step's passage through the layers, at which transfers are fired. Moments are ordered.
using StepMoment = uint32_t;
constexpr StepMoment kStepBegins = 0;
// All rows have written their K and V of the layer.
constexpr StepMoment layer_written(uint32_t layer) {
  return 1 + 2 * layer;
}
// All rows have attended in the layer: nobody reads its K and V again in this step.
constexpr StepMoment layer_attended(uint32_t layer) {
  return 2 + 2 * layer;
}

// A transfer that the executor starts when the step has come to `moment`.
struct Firing {
  static constexpr uint32_t kAnySlice = UINT32_MAX;

  StepMoment moment = kStepBegins;
  Transfer transfer;
  // It stages something for this slice, and nobody needs it if the slice has left the step.
  uint32_t only_for = kAnySlice;
};

// Before a layer writes or attends, the rows of a slice wait for the end of a transfer. If that does not come
// in time, or the transfer has failed, the slice leaves the step: it is deferred.
struct TransferWait {
  uint32_t layer = 0;
  uint32_t slice = 0;
  TransferId transfer{};
  // Its place is used again: that it has ended is enough, however it did.
  bool over = false;
  friend bool operator==(const TransferWait&, const TransferWait&) = default;
};

// Where else rows of a slice leave what they compute: X of every layer of a group (the operand of its QKV
// projection, a piece of the cell for each layer), or H before the group's first layer. It concerns the rows
// of the slice in that block; the slice passes the whole group.
struct FormWrite {
  uint32_t group = 0;
  uint32_t slice = 0;
  uint32_t block = 0;  // of the sequence
  Form form = Form::kX;
  uint64_t to = 0;  // the cell, in the device's memory
  friend bool operator==(const FormWrite&, const FormWrite&) = default;
};

// The residual stream before slice.first_layer, of all tokens of a block: a piece of form H.
struct Restart {
  uint32_t slice = 0;
  uint32_t block = 0;
  uint64_t from = 0;  // in the device's memory
  friend bool operator==(const Restart&, const Restart&) = default;
};

// K and V of a block in one layer are made of its X, before the layer is attended: positions
// [first_position, first_position + tokens), for the rows of a slice. A deferred slice needs it no more.
struct KvProjection {
  uint32_t layer = 0;
  uint32_t slice = 0;
  uint32_t first_position = 0;
  uint32_t tokens = 0;
  uint64_t x = 0;  // the layer's piece of form X, in the device's memory
  KvPlanes to;
  friend bool operator==(const KvProjection&, const KvProjection&) = default;
};

// Leaves of the history of a slice whose K and V lie at peers, in one layer: they are attended there, and the
// slice's planes of their blocks are never asked for. Every row of the slice sees all of them. A slice may
// have several such runs in a layer; they share no leaf.
struct RemoteLeaves {
  uint32_t layer = 0;
  uint32_t slice = 0;
  uint32_t first_leaf = 0;
  uint32_t end_leaf = 0;
  // Step::remote_pieces[first_piece ...): the layer's piece of each block of the leaves.
  uint32_t first_piece = 0;
  friend bool operator==(const RemoteLeaves&, const RemoteLeaves&) = default;
};

struct Step {
  StepId id{};
  uint32_t groups = 0;
  std::vector<StepSlice> slices;
  std::vector<Token> token_ids;
  std::vector<KvPlanes> staged;        // one layer's planes each; absent: in the slice's table
  std::vector<Firing> firings;         // in the order of their moments
  std::vector<TransferWait> waits;     // in the order of their layers
  std::vector<FormWrite> form_writes;  // in the order of their groups
  std::vector<Restart> restarts;
  std::vector<KvProjection> projections;  // in the order of their layers
  std::vector<RemoteLeaves> remote;       // in the order of layers, then slices, then leaves
  std::vector<uint64_t> remote_pieces;    // bytes of borrowed memory (PeerMemory): V right behind K
  ExecutionHints hints;
  // How long the step may wait for transfers and for peers in all.
  Nanos max_stall = INT64_MAX;

  uint32_t row_count() const { return static_cast<uint32_t>(token_ids.size()); }

  // The planes of one layer of a block, staged or in a frame.
  KvPlanes planes(const CacheGeometry& geometry, const StepSlice& slice, uint32_t block,
                  uint32_t layer) const {
    if (slice.first_staged != StepSlice::kNothingStaged) {
      const KvPlanes& p = staged[slice.first_staged + layer * slice.blocks + block];
      if (p.present()) return p;
    }
    const KvPlanes& frame = (*slice.table)[block * groups + geometry.group_of(layer)];
    const uint64_t offset = geometry.layer_in_group(layer) * geometry.piece_bytes(Form::kKv);
    return {frame.k + offset, frame.v + offset};
  }
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // natural logarithm, of the distribution before temperature and truncation
};

struct SampledToken {
  SeqId seq{};
  Token token = 0;
  float logprob = 0;              // only if asked for
  std::vector<TokenLogprob> top;  // most likely first; only if asked for
  // The row that the output layer read, [dim]: of the residual stream behind the last norm. Only if asked
  // for, and only of an executor that has one.
  std::vector<float> hidden;
};

struct StepResult {
  StepId id{};
  // Not ok: nothing that the step should have written can be used.
  Status status;
  std::vector<SampledToken> sampled;  // in the order of the sampling slices that were not deferred
  // Sequences whose rows left the step: none of what they should have written can be used, and nothing was
  // sampled for them.
  std::vector<SeqId> deferred;
  // Those of them for which a peer did not do what it was asked: what lies there cannot be counted on. Who
  // was deferred because an answer was late is not among them.
  std::vector<SeqId> lost_remote;
  Nanos stalled = 0;  // waiting for transfers and peers
  Nanos started = 0;
  Nanos ended = 0;
};

}  // namespace kvasir
