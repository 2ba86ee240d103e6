// Rows of matrices that a folder has in integers with scales, or in FP8. Internal to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "model/files/gguf.h"
#include "model/files/tensor_rows.h"
#include "ops/numerics.h"

namespace kvasir {

// Small integers of a matrix, packed in words of 32 bits along its rows or along its columns.
struct PackedCodes {
  const std::byte* words = nullptr;  // of any alignment
  uint32_t bits = 4;                 // of a code: 4 or 8
  bool packs_rows = false;           // a word has codes of neighbouring rows of one column; else the reverse
  bool awq_order = false;            // they are not in order: see kAwqPlace
  uint64_t row_words = 0;            // from a row, or as many as are in a word, to what follows it
  uint64_t column_words = 0;         // the same of columns
  uint32_t added = 0;                // to each word, as integers are added: stored codes are less
  uint32_t flipped = 0;              // bits of each code: 128 makes signed bytes plus 128 of them

  uint32_t at(uint64_t row, uint64_t column) const;
};

// Numbers of F16, BF16 or F32: of any alignment.
struct StoredScales {
  const std::byte* data = nullptr;
  ops::WeightType type = ops::WeightType::kF32;
  uint64_t row_step = 0, column_step = 0;  // 0: one for all

  float at(uint64_t row, uint64_t column) const;
};

// Value (row, k) is scale * (code - zero point), both of the row and of k's group.
struct GroupedMatrix {
  uint64_t rows = 0, columns = 0;
  uint64_t groups = 1;
  uint64_t in_group = 0;  // columns of each, but for the last
  PackedCodes codes;
  std::optional<PackedCodes> zeros;  // by (row, group); none: half of what a code can be
  StoredScales scales;               // by (row, group)
  const std::byte* order =
      nullptr;  // [columns] int32: the group of each column; null: they follow each other

  uint64_t group_of(uint64_t column) const;
  uint32_t half() const { return uint32_t{1} << (codes.bits - 1); }
  uint32_t zero(uint64_t row, uint64_t group) const { return zeros ? zeros->at(row, group) : half(); }
};

// As rows of Q4_0, Q8_0, Z4 or Z4_128, which have the same values, or of F16, BF16 or F32: each value rounded
// to nearest even. REQUIRES: of a type with blocks: columns are whole blocks, blocks lie in one group, scales
// are numbers of F16, order is null; of Q4_0 and Q8_0: all zero points are half().
class GroupedRows final : public TensorRows {
 public:
  GroupedRows(const GroupedMatrix& matrix, ops::WeightType type) : matrix_(matrix), type_(type) {}
  void read(int64_t row, std::byte* out) const override;

 private:
  void read_blocks(uint64_t row, std::byte* out) const;
  void read_values(uint64_t row, std::byte* out) const;

  const GroupedMatrix matrix_;
  const ops::WeightType type_;
};

// Bytes of the format E4M3 (finite, with NaN and without infinities; OCP's), [rows][columns].
struct Fp8Matrix {
  uint64_t columns = 0;
  const std::byte* codes = nullptr;
  StoredScales scales;  // by (row / block_rows, column / block_columns)
  uint64_t block_rows = 1, block_columns = 1;
};

// As rows of BF16: the product with the scale, rounded to f32 and then to BF16.
class Fp8Rows final : public TensorRows {
 public:
  explicit Fp8Rows(const Fp8Matrix& matrix) : matrix_(matrix) {}
  void read(int64_t row, std::byte* out) const override;

 private:
  const Fp8Matrix matrix_;
};

}  // namespace kvasir
