// What a projection reads, and how it is made: f32 rows, and the same rows in int8 and bf16 where parts of
// the projection take those.
//
// Free functions over plain views; threads split rows and panels, and each writes its own.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/status.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/thread_pool.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

struct Operand {
  const float* x = nullptr;
  int64_t stride = 0;  // floats
  ops::QuantizedRows quantized;
  ops::Bf16Rows rounded;
  // The set of inputs (ThreadPool::inputs) in which all lies that the projection reads; -1: none.
  int input = -1;
};

// Memory for rows that are made for a projection.
struct OperandBuffers {
  Arena rows;
  Arena quantized;
  Arena rounded;  // empty if no weights take bf16 rows

  // So many rows of so many elements.
  struct Extent {
    int64_t rows;
    int64_t k;
  };
  // For each of these, contents lost.
  Status grow(std::initializer_list<Extent> extents, bool takes_bf16);
  Status grow(int64_t row_count, int64_t k, bool takes_bf16) { return grow({{row_count, k}}, takes_bf16); }
  uint64_t bytes() const { return rows.size() + quantized.size() + rounded.size(); }
};

// Floats from one row of k to the next that serve the products best.
int64_t row_stride(int64_t k);

// True if a part of p takes such rows.
bool takes(const Projection& p, ops::ActivationMode mode, ops::ActivationType type);

// The f32 rows x, `stride` floats apart, as p takes them: views over `buffers`, which have room for `rows`
// rows. The contents of the other types are not made yet.
Operand operand_over(const Projection& p, ops::ActivationMode mode, const float* x, int64_t stride,
                     const OperandBuffers& buffers, int64_t rows);
// The operand from a row on.
Operand from_row(const Operand& operand, int64_t row);
// Makes them for some rows.
void fill_operand(const ops::Kernels& kernels, const Projection& p, ops::ActivationMode mode,
                  const Operand& operand, const Share& rows);

// out[r][part.column ..] (+)= operand[r] x part, for rows [rows.begin, rows.end) and some of the part's
// panels. out: row 0; ldo in floats.
void multiply_part(const ops::Kernels& kernels, const Projection::Part& part, ops::ActivationType type,
                   const Operand& operand, const Share& rows, const Share& panels, float* out, int64_t ldo,
                   bool accumulate);

}  // namespace kvasir
