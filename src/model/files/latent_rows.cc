#include "model/files/latent_rows.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/numerics.h"

namespace kvasir {
namespace {

constexpr uint32_t kF32 = 0;  // GGUF's number of the type

// Rows [first, first + count) of each head's `of` rows.
class RowsOfHeads final : public TensorRows {
 public:
  RowsOfHeads(const GgufTensor& stored, uint64_t of, uint64_t first, uint64_t count)
      : data_(stored.data.data()),
        row_bytes_(stored.shape[0] / stored.type->block_values * stored.type->block_bytes),
        of_(of),
        first_(first),
        count_(count) {}

  void read(int64_t row, std::byte* out) const override {
    const auto number = static_cast<uint64_t>(row);
    const uint64_t from = number / count_ * of_ + first_ + number % count_;
    std::memcpy(out, data_ + from * row_bytes_, row_bytes_);
  }

 private:
  const std::byte* const data_;
  const size_t row_bytes_;
  const uint64_t of_, first_, count_;
};

// The columns of the first `count` of each head's `of` rows.
class ColumnsOfHeads final : public TensorRows {
 public:
  ColumnsOfHeads(const GgufTensor& stored, uint64_t of, uint64_t count)
      : data_(stored.data.data()),
        type_(stored.type),
        columns_(stored.shape[0]),
        row_bytes_(columns_ / type_->block_values * type_->block_bytes),
        of_(of),
        count_(count) {}

  void read(int64_t row, std::byte* out) const override {
    const auto number = static_cast<uint64_t>(row);
    const uint64_t head = number / columns_, column = number % columns_;
    const uint64_t values = type_->block_values, in_block = column % values;
    const std::byte* block = data_ + head * of_ * row_bytes_ + column / values * uint64_t{type_->block_bytes};
    if (values == 1) {
      for (uint64_t i = 0; i < count_; ++i, block += row_bytes_, out += type_->block_bytes) {
        std::memcpy(out, block, type_->block_bytes);
      }
      return;
    }
    const ops::WeightType type = *ops::weight_type_of_name(type_->name);
    std::vector<float> decoded(values);
    for (uint64_t i = 0; i < count_; ++i, block += row_bytes_, out += sizeof(float)) {
      ops::dequantize_row(type, block, static_cast<int64_t>(values), decoded.data());
      std::memcpy(out, &decoded[in_block], sizeof(float));
    }
  }

 private:
  const std::byte* const data_;
  const GgufTensorType* const type_;
  const uint64_t columns_;
  const size_t row_bytes_;
  const uint64_t of_, count_;
};

}  // namespace

LatentParts split_kv_b(const GgufTensor& kv_b, int64_t heads, int64_t nope_dim, int64_t value_dim) {
  const auto count = static_cast<uint64_t>(heads), nope = static_cast<uint64_t>(nope_dim),
             value = static_cast<uint64_t>(value_dim);
  const uint64_t rank = kv_b.shape[0];
  KV_CHECK(kv_b.values() == count * (nope + value) * rank, "{} values, {} heads", kv_b.values(), heads);
  LatentParts out;
  out.k_b.type = kv_b.type->block_values == 1 ? kv_b.type : gguf_tensor_type(kF32);
  out.k_b.shape = {nope, rank, count, 1};
  out.v_b.type = kv_b.type;
  out.v_b.shape = {rank, value, count, 1};
  for (GgufTensor* part : {&out.k_b, &out.v_b}) {
    part->dimensions = 3;
    part->data = kv_b.data;
  }
  out.k_rows = std::make_unique<ColumnsOfHeads>(kv_b, nope + value, nope);
  out.v_rows = std::make_unique<RowsOfHeads>(kv_b, nope + value, nope, value);
  return out;
}

}  // namespace kvasir
