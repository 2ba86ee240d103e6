#include "model/folders/stacked_experts.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/files/small_vector.h"
#include "model/files/tensor_rows.h"

namespace kvasir {
namespace {

constexpr uint64_t kBlock = 32, kBlockBytes = 16;  // of MXFP4
constexpr uint32_t kMxfp4 = 39;                    // GGUF's number of the type

struct Part {
  std::string_view theirs;
  std::vector<std::string_view> ours;
  bool by_turns;  // they have the outputs by turns, and not one behind the other; there may be other forms
};
const Part kParts[] = {{"feed_forward.experts.gate_up_proj", {"ffn_gate_exps", "ffn_up_exps"}, false},
                       {"feed_forward.experts.down_proj", {"ffn_down_exps"}, false},
                       {"mlp.experts.gate_up_proj", {"ffn_gate_exps", "ffn_up_exps"}, true},
                       {"mlp.experts.down_proj", {"ffn_down_exps"}, true}};

// Which outputs of each expert a tensor of GGUF has: first, first + step...
struct Outputs {
  uint64_t count;
  uint64_t step;
  uint64_t first;
  uint64_t all;  // of the tensor
  uint64_t place(uint64_t row) const { return row % count * step + first; }
};

// Outputs are columns.
class ColumnsAsRows final : public TensorRows {
 public:
  ColumnsAsRows(const GgufTensor& stored, const Outputs& outputs)
      : data_(stored.data.data()),
        value_bytes_(stored.type->block_bytes),
        inputs_(stored.shape[1]),
        outputs_(outputs) {}

  void read(int64_t row, std::byte* out) const override {
    const auto number = static_cast<uint64_t>(row);
    const uint64_t first = number / outputs_.count * inputs_ * outputs_.all + outputs_.place(number);
    for (uint64_t k = 0; k < inputs_; ++k) {
      std::memcpy(out + k * value_bytes_, data_ + (first + k * outputs_.all) * value_bytes_, value_bytes_);
    }
  }

 private:
  const std::byte* const data_;
  const size_t value_bytes_;
  const uint64_t inputs_;
  const Outputs outputs_;
};

// GGUF's block is the scale, and then value i in the low half of byte i, value i + 16 in the high half.
class Mxfp4Rows final : public TensorRows {
 public:
  Mxfp4Rows(const GgufTensor& blocks, const GgufTensor& scales, const Outputs& outputs)
      : blocks_(blocks.data.data()),
        scales_(scales.data.data()),
        row_blocks_(scales.shape[0]),
        outputs_(outputs) {}

  void read(int64_t row, std::byte* out) const override {
    const auto number = static_cast<uint64_t>(row);
    const uint64_t stored = number / outputs_.count * outputs_.all + outputs_.place(number);
    for (uint64_t b = stored * row_blocks_; b < (stored + 1) * row_blocks_; ++b) {
      const std::byte* pairs = blocks_ + b * kBlockBytes;
      *out++ = scales_[b];
      for (uint64_t i = 0; i < kBlockBytes; ++i) *out++ = code(pairs, i) | code(pairs, i + kBlockBytes) << 4;
    }
  }

 private:
  static std::byte code(const std::byte* pairs, uint64_t i) {
    return i % 2 == 0 ? pairs[i / 2] & std::byte{15} : pairs[i / 2] >> 4;
  }

  const std::byte* const blocks_;
  const std::byte* const scales_;
  const uint64_t row_blocks_;
  const Outputs outputs_;
};

struct NamedPart {
  const Part& part;
  std::string_view ending;  // what follows its name
};
std::optional<NamedPart> parse(std::string_view name) {
  for (const Part& part : kParts) {
    if (!name.starts_with(part.theirs)) continue;
    const std::string_view ending = name.substr(part.theirs.size());
    if (ending.empty()) return NamedPart{part, ending};
    for (std::string_view known : {"_bias", "_blocks", "_scales"}) {
      if (part.by_turns && ending == known) return NamedPart{part, ending};
    }
  }
  return std::nullopt;
}

// What one layer's part becomes.
class PartAdder {
 public:
  PartAdder(const std::string& path, uint64_t layer, const Part& part, GgufAssembler& out)
      : path_(path), layer_(layer), part_(part), out_(out) {}

  Status add_weights(const GgufTensor& stored) {
    const std::string_view type = stored.type->name;
    if (type != "F32" && type != "F16" && type != "BF16") {
      return error(ErrorCode::kUnsupported, "{}: the tensor {} is of type {}; use a model in BF16 or MXFP4",
                   path_, name(""), type);
    }
    return for_each_of(stored.shape[0], "", [&](const std::string& ours, const Outputs& outputs) {
      GgufTensor tensor = stored;
      tensor.dimensions = 3;
      tensor.shape = {stored.shape[1], outputs.count, stored.shape[2], stored.shape[3]};
      return add(ours, tensor, std::make_unique<ColumnsAsRows>(stored, outputs));
    });
  }

  Status add_mxfp4(const GgufTensor& blocks, const GgufTensor& scales) {
    const auto& s = scales.shape;
    if (blocks.shape != std::array<uint64_t, 4>{kBlockBytes, s[0], s[1], s[2]} || s[3] != 1 ||
        blocks.type->name != "U8" || scales.type->name != "U8") {
      return wrong_shape("_blocks");
    }
    return for_each_of(s[1], "_blocks", [&](const std::string& ours, const Outputs& outputs) {
      GgufTensor tensor = blocks;
      tensor.type = gguf_tensor_type(kMxfp4);
      tensor.dimensions = 3;
      tensor.shape = {s[0] * kBlock, outputs.count, s[2], 1};
      return add(ours, tensor, std::make_unique<Mxfp4Rows>(blocks, scales, outputs));
    });
  }

  Status add_biases(const GgufTensor& stored) {
    std::vector<float> values;
    GgufTensor named = stored;
    const std::string theirs = name("_bias");
    named.name = theirs;
    KV_RETURN_IF_ERROR(read_small_vectors(path_, named, static_cast<int64_t>(stored.shape[1]),
                                          static_cast<int64_t>(stored.shape[0]), values));
    return for_each_of(stored.shape[0], "_bias", [&](const std::string& ours, const Outputs& outputs) {
      std::vector<float> of_this;
      for (size_t i = outputs.first; i < values.size(); i += outputs.step) of_this.push_back(values[i]);
      return out_.add_vectors(ours, of_this, outputs.count) ? Status() : there_twice(ours);
    });
  }

  Status there_twice(std::string_view name) const {
    return error(ErrorCode::kCorrupt,
                 "{}: what becomes {} is there twice, perhaps in another file; fetch the files again", path_,
                 name);
  }

 private:
  // Calls add(GGUF's name, its outputs) for each tensor that the part becomes.
  template <typename Add>
  Status for_each_of(uint64_t outputs, std::string_view ending, const Add& add) {
    const uint64_t tensors = part_.ours.size();
    if (outputs % tensors != 0) return wrong_shape(ending);
    const std::string_view kind = ending == "_bias" ? "bias" : "weight";
    const uint64_t count = outputs / tensors;
    for (uint64_t i = 0; i < tensors; ++i) {
      const Outputs of_this =
          part_.by_turns ? Outputs{count, tensors, i, outputs} : Outputs{count, 1, i * count, outputs};
      KV_RETURN_IF_ERROR(add(fmt::format("blk.{}.{}.{}", layer_, part_.ours[i], kind), of_this));
    }
    return {};
  }
  Status add(const std::string& ours, const GgufTensor& tensor, std::unique_ptr<TensorRows> rows) {
    return out_.add_rows(ours, tensor, std::move(rows)) ? Status() : there_twice(ours);
  }
  std::string name(std::string_view ending) const {
    return fmt::format("layers.{}.{}{}", layer_, part_.theirs, ending);
  }
  Status wrong_shape(std::string_view ending) const {
    return error(ErrorCode::kCorrupt, "{}: the shape of the tensor {} makes no sense; fetch the files again",
                 path_, name(ending));
  }

  const std::string& path_;
  const uint64_t layer_;
  const Part& part_;
  GgufAssembler& out_;
};

}  // namespace

bool StackedExperts::has(std::string_view name) {
  return parse(name).has_value();
}

Status StackedExperts::add(const std::string& path, uint64_t layer, std::string_view name,
                           const GgufTensor& tensor) {
  const NamedPart named = *parse(name);
  PartAdder adder(path, layer, named.part, out_);
  if (named.ending.empty()) return adder.add_weights(tensor);
  if (named.ending == "_bias") return adder.add_biases(tensor);
  if (!packed_.emplace(std::pair{layer, std::string(name)}, tensor).second) {
    return adder.there_twice(fmt::format("blk.{}.{}.weight", layer, named.part.ours[0]));
  }
  const GgufTensor *blocks = find_packed(layer, named.part.theirs, "_blocks"),
                   *scales = find_packed(layer, named.part.theirs, "_scales");
  return blocks != nullptr && scales != nullptr ? adder.add_mxfp4(*blocks, *scales) : Status();
}

const GgufTensor* StackedExperts::find_packed(uint64_t layer, std::string_view part,
                                              std::string_view ending) const {
  const auto found = packed_.find({layer, fmt::format("{}{}", part, ending)});
  return found == packed_.end() ? nullptr : &found->second;
}

Status StackedExperts::check_pairs(const std::string& origin) const {
  for (const auto& [place, tensor] : packed_) {
    const auto& [layer, name] = place;
    const NamedPart named = *parse(name);
    const std::string_view other = named.ending == "_blocks" ? "_scales" : "_blocks";
    if (find_packed(layer, named.part.theirs, other) != nullptr) continue;
    return error(ErrorCode::kCorrupt,
                 "{}: the tensor 'layers.{}.{}{}' is missing; the folder is incomplete; fetch it again",
                 origin, layer, named.part.theirs, other);
  }
  return {};
}

}  // namespace kvasir
