#include "exec/cpu/row_sets.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

uint32_t RowSets::end_of(const StepSlice& slice, uint32_t layers) {
  return std::min(slice.end_layer, layers);
}

void RowSets::lay_out(const Step& step, uint32_t layers, bool tap_all_rows) {
  joins_.assign(layers, 0);
  leaves_.assign(layers, 0);
  count_ = 0;
  for (const StepSlice& slice : step.slices) {
    const uint32_t end = end_of(slice, layers);
    KV_CHECK(slice.first_layer < end && !(slice.samples && end < layers),
             "seq={}: rows of layers [{}, {}) of {}", raw(slice.seq), slice.first_layer, end, layers);
    joins_[slice.first_layer] = 1;
    const uint32_t wanted = tap_all_rows ? slice.tokens.size() : slice.samples ? 1 : 0;
    if (end < layers || wanted < slice.tokens.size()) leaves_[end - 1] = 1;
  }
  joins_[0] = 0;  // they are there when the step begins
  const auto nobody = [](const auto&) { return false; };
  add_set(step, layers, tap_all_rows, nobody, [](const StepSlice& s) { return s.first_layer == 0; });
  for (uint32_t layer = 0; layer < layers; ++layer) {
    if (joins(layer)) {
      add_set(
          step, layers, tap_all_rows, [](const StepRow&) { return true; },
          [&](const StepSlice& s) { return s.first_layer == layer; });
    }
    if (leaves(layer)) {
      const auto stays = [&](const StepRow& row) {
        return end_of(step.slices[row.slice], layers) > layer + 1 ||
               (layer + 1 == layers && row.wants_logits);
      };
      add_set(step, layers, tap_all_rows, stays, nobody);
    }
  }
}

template <typename Stays, typename Joins>
void RowSets::add_set(const Step& step, uint32_t layers, bool tap_all_rows, const Stays& stays,
                      const Joins& joins) {
  if (sets_.size() == count_) sets_.emplace_back();
  const Set* before = count_ > 0 ? &sets_[count_ - 1] : nullptr;
  Set& now = sets_[count_++];
  now.rows.clear();
  now.source.clear();
  now.first_row.clear();
  now.moves_down = false;
  size_t next = 0;  // of the rows before
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    now.first_row.push_back(static_cast<uint32_t>(now.rows.size()));
    for (; before && next < before->rows.size() && before->rows[next].slice == s; ++next) {
      if (!stays(before->rows[next])) {
        now.moves_down = true;
        continue;
      }
      now.rows.push_back(before->rows[next]);
      now.source.push_back(static_cast<uint32_t>(next));
    }
    if (!joins(slice)) continue;
    const bool to_end = end_of(slice, layers) == layers;
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
      const bool wanted = to_end && (tap_all_rows || (slice.samples && p + 1 == slice.tokens.end));
      const Token token = step.token_ids[slice.first_token + (p - slice.tokens.begin)];
      now.rows.push_back({s, p, token, wanted});
      now.source.push_back(kJoins);
    }
  }
}

}  // namespace kvasir
