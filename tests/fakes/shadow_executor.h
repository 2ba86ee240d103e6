// An Executor whose "K and V" are hashes of the history, in real bytes, for tests of everything above the
// kernels. What it computes is fakes/shadow_model.h; a piece of X holds x(p, l).
//
// A wrong table, a stale or early reused frame, a wrong or partial shared block, a plane or piece read before
// it has arrived, or where another one is, a lost write and a skipped token all change an output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "contract/executor.h"
#include "contract/geometry.h"
#include "exec/step_transfers.h"
#include "fakes/shadow_model.h"

namespace kvasir::test {

// Used by one thread. Steps are executed in wait(); submit() spoils the slots in frames that a step will
// write, and its places in pieces of X, so that a frame that is handed out too early is spoilt for the
// older step in flight, and for a transfer that still reads it. It spoils nothing in staged planes: until the
// step begins those may rightly be in use by the older step, and until the layer by transfers that it
// started. What is staged too early, the link spoils (fakes/fake_link.h). Rows that are recomputed pass
// layers whose K and V may be there, for all, and write the same bytes: a slot that holds those of its
// place, of whatever sequence, is not spoilt for them.
//
// In a layer, all slices first write X, then their K and V; then K and V are projected; then all attend.
class ShadowExecutor final : public Executor {
 public:
  // Every row takes a microsecond of the clock, which wait() advances. Clock, link and memory outlive the
  // executor. device_memory: all that a step's planes may name, the stage ring included. link: null where
  // there is none. patience: by which waits for transfers are measured, where the link has threads of its
  // own; null: the clock. REQUIRES: a token takes eight bytes of a layer's plane, and a multiple of four of
  // X, or none.
  ShadowExecutor(const CacheGeometry& geometry, std::span<std::byte> device_memory, int depth,
                 VirtualClock& clock, Link* link = nullptr, const Clock* patience = nullptr);

  int depth() const override { return depth_; }
  void submit(Step step) override;
  StepResult wait() override;

  // What leaves at peers are read from, from now on; it outlives the executor. A share of the answers does
  // not come: their slices leave the step.
  // Nor do those for what lies at bytes that are gone.
  void set_peers(std::span<const std::byte> memory, double lost_share = 0, uint64_t seed = 1,
                 std::function<bool(uint64_t at)> gone = {});
  uint64_t remote_leaves() const { return remote_leaves_; }  // attended so far, times layers

  // The step that is submitted next fails: it computes nothing.
  void fail_next() { fail_next_ = true; }

 private:
  struct Pending {
    Step step;
    bool fails;
  };

  // The slice's rows in a block of its sequence.
  Interval rows_in(const StepSlice& slice, uint32_t block) const;
  uint32_t end_layer(const StepSlice& slice) const;
  // Whether the slice's rows pass the layer, and still take part in the step.
  bool passes(const Step& step, size_t slice, uint32_t layer) const;
  void check(const Step& step) const;
  void spoil(const Step& step, const StepSlice& slice);
  void spoil(const Step& step, const XWrite& write);
  void run(const Step& step);
  void embed(const Step& step);
  void write_x(const Step& step, uint32_t layer);
  void write(const Step& step, const StepSlice& slice, uint32_t layer);
  void project(const Step& step, uint32_t layer);
  void ask_peers(const Step& step, uint32_t layer);
  uint64_t attend_at_peers(const Step& step, const StepSlice& slice, uint32_t layer,
                           std::vector<bool>& there);
  void attend(const Step& step, const StepSlice& slice, uint32_t layer);
  void sample(const Step& step, StepResult& result);
  // Calls visit(position, K slot, V slot) for some positions of a slice, in a layer. wrong_layer: takes
  // staged blocks from the layer after it (a seeded fault).
  template <typename Visit>
  void visit_slots(const Step& step, const StepSlice& slice, uint32_t layer, Interval tokens,
                   const Visit& visit, bool wrong_layer = false);
  // `bytes` of the memory; a plane.
  std::byte* piece_at(uint64_t offset, uint64_t bytes);
  std::byte* plane_at(uint64_t offset) { return piece_at(offset, geometry_.layer_plane_bytes()); }

  const CacheGeometry geometry_;
  const std::span<std::byte> memory_;
  const int depth_;
  const bool spoils_;
  VirtualClock& clock_;
  StepTransfers transfers_;  // of the oldest pending step
  std::vector<uint64_t> h_;  // by row of the step at hand
  std::unordered_map<SeqId, Token> last_sample_;
  std::deque<Pending> pending_;
  uint64_t submitted_ = 0;
  bool fail_next_ = false;
  std::span<const std::byte> peers_;
  double lost_share_ = 0;
  std::function<bool(uint64_t)> gone_;
  Random lost_{1};
  uint64_t remote_leaves_ = 0;
};

}  // namespace kvasir::test
