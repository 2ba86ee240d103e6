#include "exec/cpu/row_sets.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

void RowSets::lay_out_rows(const Step& step, uint32_t layers, bool tap_all_rows) {
  leaves_.assign(layers, 0);
  count_ = 0;
  for (size_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    const uint32_t end = ends_[s];
    KV_CHECK(end > 0 && !(slice.samples && end < layers), "seq={}: rows pass {} layers of {}", raw(slice.seq),
             end, layers);
    KV_CHECK(!(slice.scores && end < layers), "seq={}: rows that score pass {} layers of {}", raw(slice.seq),
             end, layers);
    KV_CHECK(slice.hidden_from >= slice.tokens.end || end == layers,
             "seq={}: rows that give their hidden rows pass {} layers of {}", raw(slice.seq), end, layers);
    bool all_stay = true;
    for (uint32_t p = slice.tokens.begin; all_stay && p < slice.tokens.end; ++p) {
      all_stay = is_wanted(slice, p, tap_all_rows);
    }
    if (end < layers || !all_stay) leaves_[end - 1] = 1;
  }
  add_first_set(step, layers, tap_all_rows);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    if (leaves(layer)) add_set_behind(step, layer, layers);
  }
}

bool RowSets::is_wanted(const StepSlice& slice, uint32_t position, bool all) {
  return all || slice.scores_row(position) || slice.gives_hidden(position) ||
         (slice.samples && position + 1 == slice.tokens.end);
}

RowSets::Set& RowSets::new_set() {
  if (sets_.size() == count_) sets_.emplace_back();
  Set& set = sets_[count_++];
  set.rows.clear();
  set.source.clear();
  set.first_row.clear();
  return set;
}

void RowSets::add_first_set(const Step& step, uint32_t layers, bool tap_all_rows) {
  Set& set = new_set();
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    set.first_row.push_back(static_cast<uint32_t>(set.rows.size()));
    const bool to_end = ends_[s] == layers;
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
      const bool wanted = to_end && is_wanted(slice, p, tap_all_rows);
      const Token token = step.token_ids[slice.first_token + (p - slice.tokens.begin)];
      set.rows.push_back({s, p, token, wanted});
    }
  }
}

void RowSets::add_set_behind(const Step& step, uint32_t layer, uint32_t layers) {
  Set& set = new_set();
  const Set& before = sets_[count_ - 2];
  uint32_t next = 0;  // of the rows before
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    set.first_row.push_back(static_cast<uint32_t>(set.rows.size()));
    const bool passes_on = ends_[s] > layer + 1;
    for (; next < before.rows.size() && before.rows[next].slice == s; ++next) {
      const StepRow& row = before.rows[next];
      if (!passes_on && !(layer + 1 == layers && row.wanted)) continue;
      set.rows.push_back(row);
      set.source.push_back(next);
    }
  }
}

}  // namespace kvasir
