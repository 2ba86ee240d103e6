// The hidden rows of a prompt on their way to an embedding.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutant.h"
#include "contract/pooling.h"

namespace kvasir {

// The mean is one f32 chain per value over ascending positions, divided once at the end: so its bits depend
// neither on the steps that the prompt was cut into nor on what else ran in them.
class PooledRows {
 public:
  PooledRows() = default;
  explicit PooledRows(Pooling kind) : kind_(kind) {}

  Pooling kind() const { return kind_; }
  // The position whose row comes next; only of kMean.
  uint32_t next() const { return rows_; }

  // A row that came before, because it was computed again, changes nothing. row: [dim]
  void add(uint32_t position, const std::vector<float>& row) {
    if (kind_ == Pooling::kLast) pooled_ = row;
    if (kind_ != Pooling::kMean || (position != rows_ && !mutant(Mutant::kPooledTwice))) return;
    pooled_.resize(row.size(), 0.0F);
    for (size_t i = 0; i < row.size(); ++i) pooled_[i] += row[i];
    ++rows_;
  }

  // The embedding, [dim], of a prompt of so many tokens; empty where nothing is pooled, or rows are missing.
  std::vector<float> take(uint32_t prompt_tokens) {
    if (kind_ == Pooling::kMean && rows_ != prompt_tokens && !mutant(Mutant::kPooledTwice)) return {};
    const auto rows = static_cast<float>(std::max(rows_, 1U));
    for (float& v : pooled_) v /= rows;
    return std::move(pooled_);
  }

 private:
  Pooling kind_ = Pooling::kNone;
  uint32_t rows_ = 0;
  std::vector<float> pooled_;
};

}  // namespace kvasir
