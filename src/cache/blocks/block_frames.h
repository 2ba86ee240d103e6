// Where the copies of one block lie in a tier's memory, by layer group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "contract/layer_set.h"

namespace kvasir {

// Frames that are allocated together lie at equal distances. As long as those of a block do, two numbers say
// where all of them are, whatever the number of groups.
// Used by one thread.
class BlockFrames {
 public:
  struct Frame {
    uint64_t at = 0;
    uint32_t tokens = 0;  // the number of the block's tokens that it has
  };

  // REQUIRES: the group was set since the last clear().
  Frame operator[](uint32_t group) const {
    return each_.empty() ? Frame{first_ + group * distance_, tokens_} : each_[group];
  }
  // That of a group is at first + group * distance, if the frames are at equal distances.
  struct Row {
    uint64_t first = 0;
    uint64_t distance = 0;
  };
  std::optional<Row> row() const {
    if (!each_.empty()) return std::nullopt;
    return Row{first_, distance_};
  }
  void set(uint32_t group, Frame frame) {
    if (each_.empty()) {
      if (group == 0 && run_ == 0) {
        first_ = frame.at;
        tokens_ = frame.tokens;
      } else if (group == 1 && run_ == 1) {
        distance_ = frame.at - first_;
      }
      if (group <= run_ && frame.at == first_ + group * distance_ && frame.tokens == tokens_) {
        run_ = std::max(run_, group + 1);
        return;
      }
      list_each();
    }
    if (each_.size() <= group) each_.resize(group + 1);
    each_[group] = frame;
  }
  // REQUIRES: the groups are some of `present`, and those are all that count.
  void set_tokens(const LayerSet& groups, const LayerSet& present, uint32_t tokens) {
    if (groups.empty() || (each_.empty() && tokens == tokens_)) return;
    if (each_.empty() && groups == present) {
      tokens_ = tokens;
      return;
    }
    if (each_.empty()) list_each();
    groups.for_each([&](uint32_t g) { each_[g].tokens = tokens; });
  }
  // Keeps the memory of the list.
  void clear() {
    each_.clear();
    run_ = 0;
    distance_ = 0;
  }

 private:
  void list_each() {
    for (uint32_t g = 0; g < run_; ++g) each_.push_back({first_ + g * distance_, tokens_});
  }

  // Unless they are listed, frames are those of groups [0, run_): each group that is present is below run_.
  uint64_t first_ = 0;
  uint64_t distance_ = 0;
  uint32_t tokens_ = 0;
  uint32_t run_ = 0;
  std::vector<Frame> each_;
};

}  // namespace kvasir
