// Rows in other forms than K and V: X as the QKV product consumes it, and the residual stream as H, left by
// rows that pass, and taken up again by rows that start from H.
//
// Every thread of the team calls these with a share of the rows, or of their columns; they do not meet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/geometry.h"
#include "contract/step.h"
#include "exec/cpu/operand.h"
#include "exec/cpu/row_sets.h"
#include "exec/step_transfers.h"
#include "ops/numerics.h"

namespace kvasir {

class FormRows {
 public:
  // dim: floats of a row of the residual stream, and elements of a row of X. geometry outlives it.
  FormRows(const CacheGeometry& geometry, int64_t dim, ops::ActivationType x_type, std::byte* device_memory);

  // What the step's form_writes want of this layer, for the rows `mine` of the set: X from the operand of its
  // QKV product, H from the residual stream x before the layer ([rows][dim]). Not of deferred slices.
  void write(const Step& step, uint32_t layer, const RowSets::Set& set, const Operand& operand,
             const float* x, const StepTransfers& transfers, const Share& mine) const;

  // Columns `mine` of the rows that join with H before the layer, into x: [rows][dim]. Of deferred slices +0.
  void restart(const Step& step, uint32_t layer, const RowSets::Set& set, const StepTransfers& transfers,
               const Share& mine, float* x) const;

  // REQUIRES of a step: lists in their order, and every row that joins after the first layer has its H.
  void check(const Step& step) const;

 private:
  // The rows of a slice in one of its blocks, as rows of the set.
  Share rows_of(const Step& step, const RowSets::Set& set, uint32_t slice, uint32_t block) const;
  void write_x(const Operand& operand, int64_t row, int64_t token, std::byte* piece) const;

  const CacheGeometry& geometry_;
  const int64_t dim_;
  const ops::ActivationType x_type_;
  std::byte* const device_memory_;
};

}  // namespace kvasir
