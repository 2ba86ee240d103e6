// The blocks that a plan takes and gives, counted alike by whoever makes a plan and whoever checks it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/view.h"

namespace kvasir {

// The order of the calls does not matter: what is left is a function of their sums, and a plan fits if
// available() is not negative at its end. A copy is cheap: try on a copy, then assign.
class BlockLedger {
 public:
  explicit BlockLedger(const View& view)
      : left_(view.device.available(FrameClass::kKvPlane) / view.geometry.kv_frames_per_block()),
        coming_(view.device.pinned[static_cast<size_t>(FrameClass::kKvPlane)] /
                view.geometry.kv_frames_per_block()),
        reusable_at_once_(view.steps_in_flight == 0) {}

  // Blocks that nobody holds, is promised, or was given by this plan.
  int64_t available() const {
    // A block that one sequence gives up may be one that another adopts: it then becomes free for nobody.
    return left_ + std::max<int64_t>(0, given_up_ - adopted_in_use_);
  }
  // Blocks that come free when the steps in flight have ended.
  int64_t coming() const { return coming_; }

  // Allocates blocks, or keeps them for a promise.
  void take(uint32_t blocks) { left_ -= blocks; }
  // A promise of so many blocks ends unused.
  void end_promise(uint32_t blocks) { left_ += blocks; }
  // A sequence names cached blocks, of which `idle` were referenced by nobody.
  void adopt(uint32_t blocks, uint32_t idle) {
    left_ -= idle;
    adopted_in_use_ += blocks - std::min(blocks, idle);
  }
  // A sequence gives up all its blocks, of which it alone references `own`.
  void give_up(uint32_t own) { (reusable_at_once_ ? given_up_ : coming_) += own; }

 private:
  int64_t left_;
  int64_t coming_;
  int64_t given_up_ = 0;
  int64_t adopted_in_use_ = 0;
  bool reusable_at_once_;
};

}  // namespace kvasir
