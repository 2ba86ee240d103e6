// A step: a plan resolved to memory addresses and token ids for an executor, and its result.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/link.h"
#include "contract/list_index.h"
#include "contract/sampling.h"
#include "contract/step_plan.h"

namespace kvasir {

// Where K and V of one layer of a block begin in the device's memory, in bytes; V lies right behind K. For a
// frame they are those of its group's first layer, and those of the next layers follow.
struct KvPlanes {
  static constexpr uint64_t kAbsent = UINT64_MAX;
  uint64_t k = kAbsent;
  uint64_t v = kAbsent;

  bool present() const { return k != kAbsent; }
  friend bool operator==(const KvPlanes&, const KvPlanes&) = default;
};

// The frames of a sequence's blocks on the device: [block * groups + group]; absent if there is none. Those
// of blocks that lie wholly behind a layer's window are not read, and are absent. Steps share the table until
// it changes, so that an unchanged history costs nothing.
using BlockTable = std::vector<KvPlanes>;

// Rows of one sequence, with consecutive positions. A sequence may have several slices: those that restore
// dropped cells come before those that read them, and if one of them is deferred, all are.
struct StepSlice {
  SeqId seq{};
  Interval tokens;
  RowKind kind = RowKind::kPrefill;
  // The rows pass through layers [0, end_layer), or all layers if there are fewer. Rows that end before the
  // last layer are done when they have written their K and V of layer end_layer - 1.
  uint32_t end_layer = UINT32_MAX;
  bool samples = false;
  // Every row whose next token is of the prompt gives that token's log-probability: StepResult::scored.
  bool scores = false;
  // The hidden rows of positions from this one on are wanted: StepResult::hidden. None: kNoHidden.
  static constexpr uint32_t kNoHidden = UINT32_MAX;
  uint32_t hidden_from = kNoHidden;
  // The id of the last row's token is the one that the sequence's latest sampling row chose.
  bool last_token_by_reference = false;
  uint32_t first_token = 0;  // Step::token_ids[first_token .. + tokens.size())
  uint32_t blocks = 0;       // cover [0, tokens.end)
  std::shared_ptr<const BlockTable> table;
  // Blocks whose places for this step are in Step::staged, by layer, from first_staged on: see
  // Step::add_staged(). Empty: nothing of the sequence lies in the stage ring.
  Interval staged_blocks;
  uint32_t first_staged = 0;
  // The ids of the sequence's first tokens: Step::history[first_history .. + history_tokens). Of a slice that
  // scores, or that samples with rules that read them; otherwise none.
  uint32_t first_history = 0;
  uint32_t history_tokens = 0;
  SamplingParams sampling;

  // Whether the row at this position gives the log-probability of the prompt's next token.
  bool scores_row(uint32_t position) const { return scores && position + 1 < sampling.prompt_tokens; }
  bool gives_hidden(uint32_t position) const { return position >= hidden_from; }
};

// A point in a step's way through the layers, at which transfers start. Points are ordered.
using StepPoint = uint32_t;
constexpr StepPoint kStepBegins = 0;
// All rows have written their K and V of the layer.
constexpr StepPoint layer_written(uint32_t layer) {
  return 1 + 2 * layer;
}
// All rows have attended in the layer: its K and V are not read again in this step.
constexpr StepPoint layer_attended(uint32_t layer) {
  return 2 + 2 * layer;
}

// A transfer that the executor starts when the step has come to `start_at`.
struct StepTransfer {
  static constexpr uint32_t kAnySlice = UINT32_MAX;

  StepPoint start_at = kStepBegins;
  Transfer transfer;
  // The only slice that reads its bytes: the transfer is cancelled if that slice leaves the step.
  uint32_t only_for = kAnySlice;
};

// Before a layer writes or attends, the rows of a slice wait for the end of a transfer. If it does not end in
// time, or fails, the slice leaves the step: it is deferred.
struct TransferWait {
  uint32_t layer = 0;
  uint32_t slice = 0;
  TransferId transfer{};
  // The slice uses the transfer's memory again, not its bytes: the end of a failed transfer will do, too.
  bool any_end = false;
  friend bool operator==(const TransferWait&, const TransferWait&) = default;
};

// The rows of a slice that are in a block write X (the operand of the QKV projection) of every layer of a
// group to a cell. The slice passes through the whole group.
struct XWrite {
  uint32_t group = 0;
  uint32_t slice = 0;
  uint32_t block = 0;  // of the sequence
  uint64_t to = 0;     // the cell, in the device's memory
  friend bool operator==(const XWrite&, const XWrite&) = default;
};

// K and V of a block in one layer are computed from its X before the layer attends: positions
// [first_position, first_position + tokens), for the rows of a slice. Not needed if the slice is deferred.
struct KvProjection {
  uint32_t layer = 0;
  uint32_t slice = 0;
  uint32_t first_position = 0;
  uint32_t tokens = 0;
  uint64_t x = 0;  // the layer's piece of form X, in the device's memory
  KvPlanes to;
  friend bool operator==(const KvProjection&, const KvProjection&) = default;
};

// Leaves of a slice's history with K and V at peers, in one layer: the peers compute the attention to them,
// and the slice's planes of their blocks are not read. Every row of the slice sees all of them. A slice may
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

// The lists are plain data, filled in any order of layers. index_by_layer() then sorts each by layer, and
// from there on a reader asks for what a layer needs: waits_before(layer), projections_in(layer), ...
// Executors take only indexed steps.
struct Step {
  StepId id{};
  uint32_t groups = 0;
  std::vector<StepSlice> slices;
  std::vector<Token> token_ids;
  std::vector<Token> history;    // see StepSlice::first_history
  std::vector<KvPlanes> staged;  // one layer's planes each; absent: those in the slice's table
  std::vector<StepTransfer> transfers;
  std::vector<TransferWait> waits;
  std::vector<XWrite> x_writes;
  std::vector<KvProjection> projections;
  std::vector<RemoteLeaves> remote;     // within a layer in the order of slices, then leaves
  std::vector<uint64_t> remote_pieces;  // bytes of borrowed memory (PeerMemory): V right behind K
  ExecutionHints hints;
  // The total time that the step may wait for transfers and peers.
  Nanos max_stall = INT64_MAX;

  uint32_t row_count() const { return static_cast<uint32_t>(token_ids.size()); }
  std::span<const Token> history_of(const StepSlice& slice) const {
    return std::span(history).subspan(slice.first_history, slice.history_tokens);
  }

  // --- By layer.
  // Sorts the lists by layer (group, or point) and indexes them. Entries of one layer keep their order. Once,
  // when the lists are complete; after a later change of a list it must be called again.
  void index_by_layer() {
    by_point_.sort(transfers, [](const StepTransfer& t) { return t.start_at; });
    waits_by_layer_.sort(waits, [](const TransferWait& w) { return w.layer; });
    x_by_group_.sort(x_writes, [](const XWrite& w) { return w.group; });
    projections_by_layer_.sort(projections, [](const KvProjection& p) { return p.layer; });
    remote_by_layer_.sort(remote, [](const RemoteLeaves& r) { return r.layer; });
  }
  // False: a list has grown or shrunk since index_by_layer().
  bool is_indexed() const {
    return by_point_.size() == transfers.size() && waits_by_layer_.size() == waits.size() &&
           x_by_group_.size() == x_writes.size() && projections_by_layer_.size() == projections.size() &&
           remote_by_layer_.size() == remote.size();
  }
  // REQUIRES, of these: is_indexed().
  // The number of transfers that start at this point or before; they come first in the list.
  uint32_t transfers_until(StepPoint point) const { return by_point_.count_until(point); }
  std::span<const TransferWait> waits_before(uint32_t layer) const {
    return part(waits, waits_by_layer_.of(layer));
  }
  std::span<const XWrite> x_writes_in(uint32_t group) const { return part(x_writes, x_by_group_.of(group)); }
  std::span<const KvProjection> projections_in(uint32_t layer) const {
    return part(projections, projections_by_layer_.of(layer));
  }
  std::span<const RemoteLeaves> remote_in(uint32_t layer) const {
    return part(remote, remote_by_layer_.of(layer));
  }

  // --- The planes of blocks.
  // Gives these blocks of the slice places in `staged` for all layers; each is absent until it is set. Other
  // slices of the sequence share them: they take over staged_blocks and first_staged.
  void add_staged(StepSlice& slice, Interval blocks, uint32_t layers) {
    slice.staged_blocks = blocks;
    slice.first_staged = static_cast<uint32_t>(staged.size());
    staged.resize(staged.size() + size_t{layers} * blocks.size());
  }
  // REQUIRES: the slice's staged_blocks contain the block.
  KvPlanes& staged_planes(const StepSlice& slice, uint32_t block, uint32_t layer) {
    return staged[staged_index(slice, block, layer)];
  }
  bool is_staged(const StepSlice& slice, uint32_t block, uint32_t layer) const {
    return slice.staged_blocks.contains(block) && staged[staged_index(slice, block, layer)].present();
  }
  // The planes of one layer of a block, staged or in a frame.
  KvPlanes planes(const CacheGeometry& geometry, const StepSlice& slice, uint32_t block,
                  uint32_t layer) const {
    if (is_staged(slice, block, layer)) return staged[staged_index(slice, block, layer)];
    const KvPlanes& frame = (*slice.table)[block * groups + geometry.group_of(layer)];
    if (!frame.present()) return frame;
    const uint64_t offset = geometry.layer_in_group(layer) * geometry.piece_bytes(Form::kKv);
    return {frame.k + offset, frame.v + offset};
  }

 private:
  static size_t staged_index(const StepSlice& slice, uint32_t block, uint32_t layer) {
    return slice.first_staged + size_t{layer} * slice.staged_blocks.size() + block -
           slice.staged_blocks.begin;
  }
  template <typename Entry>
  static std::span<const Entry> part(const std::vector<Entry>& list, Interval entries) {
    return std::span(list).subspan(entries.begin, entries.size());
  }

  ListIndex by_point_, waits_by_layer_, x_by_group_, projections_by_layer_, remote_by_layer_;
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
};

// What the output layer reads of a token, [dim]: the residual stream after the last norm.
struct HiddenRow {
  SeqId seq{};
  uint32_t position = 0;  // of the token in the sequence
  std::vector<float> row;
};

// A token of a prompt, by the row before it.
struct ScoredToken {
  SeqId seq{};
  uint32_t position = 0;  // of the token in the sequence; at least 1
  Token token = 0;
  float logprob = 0;
  uint32_t rank = 1;              // 1 + the number of tokens with a larger logit
  std::vector<TokenLogprob> top;  // most likely first
};

struct StepResult {
  StepId id{};
  // Not ok: nothing that the step writes can be used.
  Status status;
  std::vector<SampledToken> sampled;  // in the order of the sampling slices that were not deferred
  std::vector<ScoredToken> scored;  // in the order of the scoring rows; those of deferred slices do not count
  // In the order of the rows that were asked for (StepSlice::hidden_from), without those of deferred slices.
  // Empty from an executor that does not compute them.
  std::vector<HiddenRow> hidden;
  // Sequences whose rows left the step: nothing that these write can be used, and nothing was sampled for
  // them.
  std::vector<SeqId> deferred;
  // Those of them for which a peer failed: their K and V there count as lost. A sequence that was deferred
  // because of a late answer is not among them.
  std::vector<SeqId> lost_remote;
  Nanos stalled = 0;  // time spent waiting for transfers and peers
  Nanos started = 0;
  Nanos ended = 0;
};

}  // namespace kvasir
