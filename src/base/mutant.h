// Seeded faults: proof that the tests of the bits can fail.
//
// Code that a test guards asks `mutant(Mutant::kX)` at the place where a fault would hurt. In a release
// build that is the constant false and costs nothing; in a test build (KVASIR_MUTANTS) a test switches one
// fault on at a time and must turn red.
#pragma once

#include <atomic>

namespace kvasir {

enum class Mutant {
  kNone,
  kMergeOrder,          // attention partials merged left to right, not by the aligned tree
  kPieceOrder,          // the first two of three or more pieces of a history are swapped
  kLeafOffByOne,        // a leaf ends one position early or late
  kOwnKvUnrounded,      // a row attends to its own K and V before they are rounded to the cache type
  kAttendBeforeWrite,   // attention does not wait until this step's K and V are written
  kWrongPosition,       // RoPE by the index in the batch, not by the true position
  kSwappedKvHeads,      // a query head reads its neighbour's KV head
  kStaleFrame,          // the block table still names the frame that the block had before
  kFrameReusedEarly,    // a freed frame is handed out before the steps that use it have ended
  kKTailDropped,        // the last K group of a dot product is left out in batches of one
  kBatchScale,          // activations are quantised with one scale for the batch, not per row and group
  kScaleUnrounded,      // the activation scale is used before it is rounded to f16
  kKvScaleUnrounded,    // the same for the scale of a q8_0 row of K or V
  kKvScaleShared,       // a token's scale is written for the tokens before it in its run of 16, too
  kSamplerSeedByStep,   // the generator counts steps, not positions
  kCountsKept,          // a sampler keeps the counts of tokens from one row to the next
  kOutputForgotten,     // after a preemption the output so far counts as prompt
  kScoredOneLate,       // a row scores its own token, not the next one
  kMaskOfBefore,        // a row is sampled under the mask of the row before it
  kPrefixWrongBlock,    // prefix reuse hands out the block before the one that matched
  kPrefixPartialBlock,  // a block that is not full yet is shared
  kResumeSkipsToken,    // a preempted request resumes one token late
  kSumOrderByChunk,     // the softmax sum starts at the chunk's first row, not at the leaf's first position
  kBf16PairSwapped,     // a lone row adds the even element of each bf16 pair before the odd one
  kScaleOfNextGroup,   // a lone row meets a K type's weights with the scales of the next group in their block
  kBf16RowsUnrounded,  // a lone row meets bf16 weights in f32, not rounded to bf16
  kKScaleForV,         // a q8_0 row of V is kept with the scale of K
  kMergedEarly,        // the pieces of a tile's history are merged before the last one is there
  kXWrongPosition,     // K made of X is rotated by its place in the block, not by its true position
  kXOtherRounding,     // X holds the operand, rounded another way than the product's
  kXBiasMissing,       // K and V made of X are without their bias
  kHiddenOfBatch,      // every hidden row is that of the batch's first one
  kPooledTwice,        // rows that a preempted prompt computes again are pooled again
  kWindowOffByOne,     // a window of attention has one position too many
  kRopeOfOtherLayers,  // layers with a rope of their own take that of the others
  kNormAfterRope,      // K is normalised after RoPE, not before
  kValuesNotNormed,    // V is as its product gives it, where it should have a norm
  kLayerUnscaled,      // the residual stream of a lone row is not scaled behind a layer
  kPostNormSkipped,    // a lone row adds what attention gives without its norm
  kParallelInSeries,   // the feed-forward of a lone row's parallel block takes what attention has added to
  kNormBiasMissing,    // a LayerNorm of a lone row adds no bias
  kAbsorbedByOtherHead,  // a lone row's queries of latent attention take what belongs to the head before
  kRopePartMissing,      // they lack the part that RoPE turns
  kStateOfOtherBlock,    // the state behind the block before is taken for that behind a block
  kStateGoneOnWith,      // a sequence whose rows left a step goes on from the state that they may have left
  kConvolutionForgets,   // the convolution of a step's first row does not see the rows before
  kDecayLeftOut,         // the state of a lone row's step does not decay
  kOutputGateLeftOut,    // what attention gives a lone row is not gated
  kSinkLeftOut,          // the attention of a lone row has no sink
  kRemoteSinkLeftOut,    // rows that have leaves at peers have no sink
  kExpertBiasShared,     // all experts have the bias of the first one
  kScoreUncapped,        // scores of a lone row are not capped
  kLogitsUncapped,       // logits of a step with one of them are not capped
  kPositionOffset,       // learned positions are looked up from the first row of their table on
  kTemperatureOfOrigin,  // queries are scaled as at the first position
  kExpertSumOrder,       // what experts give a lone row is summed in another order
  kExpertNeighbour,      // a row is given what an expert gives another row
  kRouterRounded,        // a router takes the rows of a lone row's step rounded to bf16
  kBiasWeighs,           // experts weigh by their biased scores
  kSharedUnweighed,      // the shared expert counts for a lone row without its weight
  kOutputsWeighed,       // a lone row's experts weigh what they give, where they should weigh what they take
  kTiesByHigherId,       // of experts with equal scores the last one is chosen
  kTakenTwice,           // a thread that takes items of another's run leaves it one of them
  kStoresWhatWasTaken,   // a late helper stores items that the caller has done meanwhile
  kInputReusedEarly,     // the input of a job is overwritten while a late helper reads it

  kFusedBy8,               // a step of the tensor core's sum is two of eight products
  kFusedTo24Bits,          // it cuts its summands at 24 fraction bits
  kFusedAccumulatorUncut,  // it cuts its products, but not its accumulator
  kLeafOf128,              // a leaf of attention is merged from two halves
  kValueTailUnmasked,      // attention reads V behind the last position

  kStaleCopy,            // a copy on the host counts as current though its block has grown since
  kStagedWrongBlock,     // two of the blocks staged for a layer are swapped
  kSkippedTransferWait,  // a step does not wait for the transfers that its layers need
  kStagedWrongLayer,     // attention reads a staged block where the next layer's is
  kRingReusedEarly,      // a layer's staged planes are overwritten before their last reader has ended
  kDeferredSampled,      // rows that left the step sample all the same
  // A frame that was given up is handed out while the transfer that saves its bytes still reads them.
  kTransferSourceFreedEarly,
  kDiskPlacesMixed,        // a piece is read where its neighbour on the disk begins
  kProjectedAtOrigin,      // K and V made of X are placed as if their block were the sequence's first
  kDeadTooEarly,           // a sequence gives up the first block of its window, too
  kPrefixWindowShort,      // a prefix is found though the first block of its window is missing
  kWindowShorter,          // a window has a token fewer where cells are given up
  kDeferredFill,           // a frame counts as filled though its rows left the step
  kStaleX,                 // X counts as current though its block has grown since
  kCorruptKept,            // a copy stays though other bytes were read than had been written
  kLostCellKept,           // a copy stays though the peer that had it is gone
  kPeerPrefixShifted,      // blocks that come from a peer are taken for their neighbours
  kKeptPrefixFreed,        // a prefix that a peer attends counts as given back
  kKeptPrefixAwaited,      // plans wait for one as for what is only read
  kComputedAtPeerShifted,  // so are those that a peer has computed and lent
  kOlderRobbed,            // lent memory is called back from older requests, too
  kRemoteFillSkipped,      // a peer attends to cells that are still on their way to it
  kStaleReplyMerged,       // a peer's late reply counts for any query that waits for a reply of its size
  kCellTableReused,        // a list of cells known to a peer gets other cells under the same number
  kPeerSubtreeOrder,       // two subtrees of one size in the partial results of peers are swapped

  kRemotePeaksSwapped,  // the first two subtrees in a peer's answer for a run of leaves are swapped
  kStaleRemoteAnswer,   // the answer of an earlier layer is merged
  kRemoteRunDropped,    // no instance attends to leaves at a peer
  kRemoteLeafTwice,     // leaves at a peer are attended twice, and their neighbours not at all

  kStaleEpochTaken,     // a message to or from a former life of an instance counts
  kPinnedFrameFreed,    // lent memory is taken back while it is being read
  kSettledLent,         // what a settlement has brought back is lent to another before its end
  kRefuserRecommended,  // an instance that has just refused to lend is recommended again
  kOldTermObeyed,       // an instance obeys a former leader
  kLateGrantKept,       // blocks granted to a request that has ended are neither used nor returned
  kQueueJumped,         // the last wish is served first
  kHeadDelayed,         // a later wish takes memory that is gathered for an earlier one
  kRestPassed,          // a later wish takes what one lacks that was served in part and asks its creditors
  kPartKept,            // a part of what is wanted at once or not at all is kept
  kDueUntold,           // the leader is not told when loans are expected back
  kPushForgotten,       // new room is not offered to those that wait
  kRowsForTheDead,      // rows of a prompt are computed for, and lent to, an owner that is dead
  kRowsOfOthers,        // what has been computed for a prompt is lent block by block from the last one on

  kTextMakesControl,  // text that a client wrote becomes control tokens

  kGateOpenedEarly,    // a GPU comes to a layer before the transfers that it needs have ended
  kMarkBeforeWrite,    // a transfer that copies what a layer writes starts before a GPU has written it
  kStaleTable,         // a GPU reads what a former block table has left in the place of another one
  kPinnedReused,       // memory that a GPU copies from is written again before it has done so
  kEarlyStepUnknown,   // a GPU computes what the step before deferred, in a step that was submitted early
  kStepUnsettled,      // a GPU's layers wait for transfers before the end of the step before has started them
  kStepLetGo,          // a GPU's thread lets go of a step's block tables, which the cache may then change
  kStreamOverfull,     // steps are queued behind closed gates as if a GPU's stream had room for any number
  kGraphKept,          // a graph runs with the arguments of the step that it was made for
  kGraphShared,        // a GPU's graph is changed while it is still queued for the step before
  kGraphOfOthers,      // steps whose attention has other kernels have the same graph
  kGraphWithoutGates,  // layers that wait for transfers are queued as a graph, which has no gates
};

#if defined(KVASIR_MUTANTS)
namespace internal {
extern std::atomic<Mutant> active_mutant;
}
inline bool mutant(Mutant m) {
  return internal::active_mutant.load(std::memory_order_relaxed) == m;
}

// Switches one fault on for its lifetime. Tests only; not while an engine is in a step.
class ScopedMutant {
 public:
  explicit ScopedMutant(Mutant m) { internal::active_mutant = m; }
  ~ScopedMutant() { internal::active_mutant = Mutant::kNone; }
  ScopedMutant(const ScopedMutant&) = delete;
  ScopedMutant& operator=(const ScopedMutant&) = delete;
};
#else
constexpr bool mutant(Mutant) {
  return false;
}
#endif

}  // namespace kvasir
