// Which rows of a step are in each layer, and where they lie in its products.
//
//   layer            0           1           2           3
//   decode           write-attend-write------attend-write-attend-write-attend -> logits
//   recompute [0,2)  write-attend-write |
//   from H    [2,4)                        | write-attend-write |
//                    set 0             set 1  set 2           set 3
//
// A set is dense: its rows are those of every buffer and every product until the next set. It changes only
// where rows join (before a layer) or leave (in a layer, when their K and V are written and nobody needs what
// else the layer makes of them). In the last layer only those go on whose logits are wanted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contract/step.h"

namespace kvasir {

// One row of a step: the token at a position of the slice's sequence.
struct StepRow {
  uint32_t slice;
  uint32_t position;
  Token token;
  bool wants_logits = false;
};

class RowSets {
 public:
  static constexpr uint32_t kJoins = UINT32_MAX;
  struct Set {
    std::vector<StepRow> rows;     // grouped by slice, in order of position
    std::vector<uint32_t> source;  // by row: its index in the set before, or kJoins
    // True if rows have left: then nobody's index has grown. Otherwise nobody's has become smaller.
    bool moves_down = false;
    // By slice: the index of its first row. A slice is in a set as a whole while it writes.
    std::vector<uint32_t> first_row;
  };

  // Throws std::bad_alloc as vectors do. tap_all_rows: the logits of every row that passes the last layer are
  // wanted. REQUIRES: slices pass at least one layer
  void lay_out(const Step& step, uint32_t layers, bool tap_all_rows);

  // True if rows join before the layer, or leave in it.
  bool joins(uint32_t layer) const { return joins_[layer] != 0; }
  bool leaves(uint32_t layer) const { return leaves_[layer] != 0; }
  // The sets in the order in which they come; the first is that of the first layer's product.
  size_t count() const { return count_; }
  const Set& set(size_t index) const { return sets_[index]; }
  const Set& last() const { return sets_[count_ - 1]; }

 private:
  static uint32_t end_of(const StepSlice& slice, uint32_t layers);
  // Adds a set of the rows of `from` that `stays` keeps and of the slices that `joins` names.
  template <typename Stays, typename Joins>
  void add_set(const Step& step, uint32_t layers, bool tap_all_rows, const Stays& stays, const Joins& joins);

  std::vector<uint8_t> joins_, leaves_;  // by layer
  std::vector<Set> sets_;                // they keep their memory from step to step
  size_t count_ = 0;
};

}  // namespace kvasir
