// Which rows of a step are in each layer, and where they lie in its products.
//
//   layer            0           1           2           3
//   decode           write-attend-write------attend-write-attend-write-attend -> logits
//   recompute [0,2)  write-attend-write |
//                    set 0              set 1
//
// A set is dense: every buffer and every product has exactly its rows until the next set. A new set begins in
// a layer in which rows leave, after their K and V are written, because the rest of the layer's output for
// them is not needed. In the last layer only the rows go on whose logits or hidden rows are wanted.
#pragma once

#include <algorithm>
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
  bool wanted = false;  // what the last layer makes of it: logits, or the hidden row
};

class RowSets {
 public:
  struct Set {
    std::vector<StepRow> rows;  // grouped by slice, in order of position
    // By row: its index in the set before, which is no smaller. Empty of the first set.
    std::vector<uint32_t> source;
    // By slice: the index of its first row. While a slice writes K and V, all its rows are in the set.
    std::vector<uint32_t> first_row;
  };

  // Throws std::bad_alloc as vectors do. tap_all_rows: every row that passes the last layer is wanted.
  // REQUIRES: slices pass at least one layer
  // end_layer: StepSlice::end_layer of the cache's layers, in those that rows pass.
  template <typename EndLayer>
  void lay_out(const Step& step, uint32_t layers, bool tap_all_rows, const EndLayer& end_layer) {
    ends_.clear();
    for (const StepSlice& slice : step.slices) ends_.push_back(std::min(end_layer(slice.end_layer), layers));
    lay_out_rows(step, layers, tap_all_rows);
  }
  void lay_out(const Step& step, uint32_t layers, bool tap_all_rows) {
    lay_out(step, layers, tap_all_rows, [](uint32_t end) { return end; });
  }

  // True if rows leave in the layer.
  bool leaves(uint32_t layer) const { return leaves_[layer] != 0; }
  // The sets in order; the first one is that of the first layer's QKV product.
  size_t count() const { return count_; }
  const Set& set(size_t index) const { return sets_[index]; }
  const Set& last() const { return sets_[count_ - 1]; }

 private:
  void lay_out_rows(const Step& step, uint32_t layers, bool tap_all_rows);
  static bool is_wanted(const StepSlice& slice, uint32_t position, bool all);
  Set& new_set();
  void add_first_set(const Step& step, uint32_t layers, bool tap_all_rows);
  // The rows of the set before that do not leave in the layer.
  void add_set_behind(const Step& step, uint32_t layer, uint32_t layers);

  std::vector<uint32_t> ends_;   // by slice: the layers that its rows pass
  std::vector<uint8_t> leaves_;  // by layer
  std::vector<Set> sets_;        // they keep their memory from step to step
  size_t count_ = 0;
};

}  // namespace kvasir
