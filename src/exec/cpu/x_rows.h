// Writes copies in form X, the operand of the QKV product, of rows that pass a layer.
//
// Threads may write different rows at once.
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

class XRows {
 public:
  // dim: elements of a row of X. geometry outlives it.
  XRows(const CacheGeometry& geometry, int64_t dim, ops::ActivationType x_type, std::byte* device_memory);

  // The step's x_writes in this layer, for the rows `mine` of the set, from the operand of the layer's QKV
  // product. Deferred slices are left out.
  void write(const Step& step, uint32_t layer, const RowSets::Set& set, const Operand& operand,
             const StepTransfers& transfers, const Share& mine) const;

  // Checks what a step must fulfil: indexed lists, and X only where the geometry has it.
  void check(const Step& step) const;

 private:
  // The rows of a slice in one of its blocks, as rows of the set.
  Share rows_of(const Step& step, const RowSets::Set& set, uint32_t slice, uint32_t block) const;
  void write_row(const Operand& operand, int64_t row, int64_t token, std::byte* piece) const;

  const CacheGeometry& geometry_;
  const int64_t dim_;
  const ops::ActivationType x_type_;
  std::byte* const device_memory_;
};

}  // namespace kvasir
