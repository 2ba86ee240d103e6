#include "model/folders/value_heads.h"

#include <cstring>

namespace kvasir {
namespace {

size_t row_bytes_of(const GgufTensor& tensor) {
  return tensor.shape[0] / tensor.type->block_values * tensor.type->block_bytes;
}

void read_row(const GgufTensor& tensor, int64_t row, std::byte* out) {
  if (tensor.rows != nullptr) return tensor.rows->read(row, out);
  const size_t bytes = row_bytes_of(tensor);
  std::memcpy(out, tensor.data.data() + static_cast<size_t>(row) * bytes, bytes);
}

class RowsByTurns final : public TensorRows {
 public:
  RowsByTurns(const GgufTensor& tensor, const HeadOrder& order, const ValueHeads& heads)
      : tensor_(tensor), order_(order), heads_(heads) {}

  void read(int64_t row, std::byte* out) const override {
    read_row(tensor_, heads_.source(row, order_.of, order_.before), out);
  }

 private:
  const GgufTensor tensor_;
  const HeadOrder order_;
  const ValueHeads heads_;
};

class ColumnsByTurns final : public TensorRows {
 public:
  ColumnsByTurns(const GgufTensor& tensor, const HeadOrder& order, const ValueHeads& heads)
      : tensor_(tensor),
        heads_(heads),
        head_bytes_(static_cast<size_t>(order.of) / tensor.type->block_values * tensor.type->block_bytes) {}

  void read(int64_t row, std::byte* out) const override {
    std::vector<std::byte> stored(row_bytes_of(tensor_));
    read_row(tensor_, row, stored.data());
    for (int64_t h = 0; h < heads_.heads; ++h, out += head_bytes_) {
      std::memcpy(out, stored.data() + static_cast<size_t>(heads_.theirs(h)) * head_bytes_, head_bytes_);
    }
  }

 private:
  const GgufTensor tensor_;
  const ValueHeads heads_;
  const size_t head_bytes_;
};

}  // namespace

HeadOrder head_order(std::string_view name, const ValueHeads& heads) {
  if (name == "attn_qkv.weight" || name == "ssm_conv1d.weight") {
    return {.of = heads.dim, .before = 2 * heads.key_heads * heads.key_dim};
  }
  if (name == "attn_gate.weight") return {.of = heads.dim};
  if (name == "ssm_out.weight") return {.columns = true, .of = heads.dim};
  for (std::string_view one : {"ssm_beta.weight", "ssm_alpha.weight", "ssm_a.weight", "ssm_dt.bias"}) {
    if (name == one) return {.of = 1};
  }
  return {};
}

std::vector<float> by_turns(const std::vector<float>& values, int64_t width, const HeadOrder& order,
                            const ValueHeads& heads) {
  std::vector<float> out;
  out.reserve(values.size());
  for (int64_t i = 0; i < order.before + heads.heads * order.of; ++i) {
    const auto from = values.begin() + heads.source(i, order.of, order.before) * width;
    out.insert(out.end(), from, from + width);
  }
  return out;
}

Result<std::unique_ptr<const TensorRows>> rows_by_turns(const std::string& path, const GgufTensor& tensor,
                                                        const HeadOrder& order, const ValueHeads& heads) {
  const auto wanted = static_cast<uint64_t>(order.before + heads.heads * order.of);
  const uint64_t found = tensor.shape[order.columns ? 0 : 1];
  if (found != wanted || tensor.shape[2] != 1 || tensor.shape[3] != 1) {
    return error(ErrorCode::kCorrupt, "{}: the tensor {} has {} {} where config.json asks for {}", path,
                 gguf_quoted(tensor.name), found, order.columns ? "columns" : "rows", wanted);
  }
  std::unique_ptr<const TensorRows> out;
  if (!order.columns) {
    out = std::make_unique<const RowsByTurns>(tensor, order, heads);
    return out;
  }
  if (static_cast<uint64_t>(order.of) % tensor.type->block_values != 0) {
    return error(ErrorCode::kUnsupported,
                 "{}: {} is quantised in groups that reach over its heads of {} columns, which is not "
                 "supported; use the model in BF16",
                 path, gguf_quoted(tensor.name), order.of);
  }
  out = std::make_unique<const ColumnsByTurns>(tensor, order, heads);
  return out;
}

}  // namespace kvasir
