#include "model/folders/quantized_matrices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "model/folders/quantized_rows.h"

namespace kvasir {
namespace {

using ops::WeightType;

constexpr uint64_t kLeastGroup = 32;  // values with one scale in every quantised type
constexpr GgufTensorType kZ4 = {"Z4", kNoGgufType, 32, 20}, kZ4x128 = {"Z4_128", kNoGgufType, 128, 68};

constexpr std::string_view kIntegerParts[] = {"qweight", "qzeros", "scales", "g_idx"};
constexpr std::string_view kCompressedParts[] = {"weight_packed", "weight_shape", "weight_scale",
                                                 "weight_zero_point", "weight_g_idx"};
constexpr std::string_view kFp8Parts[] = {"weight_scale_inv", "weight_scale"};
// Scales of activations and of K and V, which are computed with here as they are.
constexpr std::string_view kNotOfWeights[] = {"input_scale", "input_zero_point", "output_scale",
                                              "k_scale",     "v_scale",          "q_scale"};

template <size_t N>
bool is_one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const GgufTensorType* type_named(std::string_view name) {
  if (name == kZ4.name) return &kZ4;
  if (name == kZ4x128.name) return &kZ4x128;
  uint32_t id = 0;
  while (gguf_tensor_type(id) == nullptr || gguf_tensor_type(id)->name != name) ++id;
  return gguf_tensor_type(id);
}

// What the folder has of one matrix.
struct Parts {
  WeightsFile* file = nullptr;  // of the first one; begins messages
  std::map<std::string, GgufTensor, std::less<>> tensors;

  const GgufTensor* find(std::string_view name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
  }
};

bool has_shape(const GgufTensor& tensor, uint64_t columns, uint64_t rows = 1) {
  return tensor.shape == std::array<uint64_t, 4>{columns, rows, 1, 1};
}

class Joiner {
 public:
  Joiner(const QuantizationConfig& config, std::vector<WeightsFile>& files, GgufAssembler& out,
         std::vector<std::string>& warnings)
      : config_(config), files_(files), out_(out), warnings_(warnings) {}

  Status run() {
    KV_RETURN_IF_ERROR(collect());
    for (const auto& [stem, parts] : parts_) {
      stem_ = &stem;
      of_ = &parts;
      KV_RETURN_IF_ERROR(describe());
    }
    for (const Integers& integers : integers_) add_integers(integers);
    warn();
    return {};
  }

 private:
  struct Integers {
    const std::string* stem;
    const Parts* parts;
    GroupedMatrix matrix;
    const GgufTensor* codes;
    bool has_blocks;  // its values can be in blocks
  };

  Status collect();
  bool is_part(std::string_view part, const GgufTensor& tensor) const;
  // Of the matrix at hand:
  Status describe();
  Status describe_awq_or_gptq();
  Status describe_packed();
  Status describe_bytes(const GgufTensor& weight);
  Status describe_fp8(const GgufTensor& weight);
  Status require_no_zero_points() const;
  Status read_order(const GgufTensor* order, GroupedMatrix& matrix) const;
  Status read_scales(std::string_view name, const GgufTensor& tensor, StoredScales& out) const;
  Status keep_integers(GroupedMatrix matrix, const GgufTensor& codes);
  Result<const GgufTensor*> require(std::string_view part) const;
  Status wrong(std::string_view part) const;
  Status unsupported_sizes(uint64_t rows, uint64_t columns) const;

  void add_integers(const Integers& integers);
  WeightType type_of(const Integers& integers) const;
  void add(const std::string& stem, const Parts& parts, const GgufTensor& codes, WeightType type,
           uint64_t rows, uint64_t columns, std::unique_ptr<const TensorRows> made);
  void warn();

  const QuantizationConfig& config_;
  std::vector<WeightsFile>& files_;
  GgufAssembler& out_;
  std::vector<std::string>& warnings_;
  std::map<std::string, Parts> parts_;  // by stem
  const std::string* stem_ = nullptr;
  const Parts* of_ = nullptr;
  std::vector<Integers> integers_;
  bool all_in_middle_ = true;                                         // zero points
  std::map<WeightType, std::pair<size_t, uint64_t>> without_blocks_;  // matrices and bytes
};

// ---------------------------------------------------------------- parts

bool Joiner::is_part(std::string_view part, const GgufTensor& tensor) const {
  switch (config_.kind) {
    case FolderQuantization::kAwq:
    case FolderQuantization::kGptq:
    case FolderQuantization::kGptqV2:
      return is_one_of(part, kIntegerParts);
    case FolderQuantization::kCompressed:
      return is_one_of(part, kCompressedParts) ||
             (part == "weight" && (tensor.type->name == "I8" || tensor.type->name == "F8_E4M3"));
    case FolderQuantization::kFp8:
      return is_one_of(part, kFp8Parts) || (part == "weight" && tensor.type->name == "F8_E4M3");
    default:
      return false;
  }
}

Status Joiner::collect() {
  for (WeightsFile& file : files_) {
    std::vector<SafetensorsTensor> others;
    for (SafetensorsTensor& tensor : file.content.tensors) {
      const size_t dot = tensor.name.rfind('.');
      const std::string_view part =
          std::string_view(tensor.name).substr(dot == std::string::npos ? 0 : dot + 1);
      if (is_one_of(part, kNotOfWeights)) continue;
      if (dot == std::string::npos || !is_part(part, tensor.tensor)) {
        others.push_back(std::move(tensor));
        continue;
      }
      Parts& parts = parts_[tensor.name.substr(0, dot)];
      if (parts.file == nullptr) parts.file = &file;
      if (parts.tensors.emplace(part, tensor.tensor).second) continue;
      return error(ErrorCode::kCorrupt,
                   "{}: the tensor {} is there twice, perhaps in another file; fetch the files again",
                   file.path, gguf_quoted(tensor.name));
    }
    file.content.tensors = std::move(others);
  }
  return {};
}

Result<const GgufTensor*> Joiner::require(std::string_view part) const {
  if (const GgufTensor* found = of_->find(part)) return found;
  return error(ErrorCode::kCorrupt, "{}: the tensor {} is missing; the folder is incomplete; fetch it again",
               of_->file->path, gguf_quoted(fmt::format("{}.{}", *stem_, part)));
}

Status Joiner::wrong(std::string_view part) const {
  return error(
      ErrorCode::kCorrupt,
      "{}: the tensor {} is of another type or shape than what is beside it and 'quantization_config' "
      "ask for; fetch the files again",
      of_->file->path, gguf_quoted(fmt::format("{}.{}", *stem_, part)));
}

Status Joiner::unsupported_sizes(uint64_t rows, uint64_t columns) const {
  return error(
      ErrorCode::kUnsupported,
      "{}: the matrix {} has {} outputs of {} inputs, which are not whole words or blocks of {}; use "
      "the model in BF16",
      of_->file->path, gguf_quoted(*stem_), rows, columns, kLeastGroup);
}

Status Joiner::describe() {
  switch (config_.kind) {
    case FolderQuantization::kAwq:
    case FolderQuantization::kGptq:
    case FolderQuantization::kGptqV2:
      return describe_awq_or_gptq();
    default:
      break;
  }
  const GgufTensor* weight = of_->find("weight");
  if (weight == nullptr && config_.kind == FolderQuantization::kCompressed) return describe_packed();
  KV_ASSIGN_OR_RETURN(weight, require("weight"));
  return weight->type->name == "I8" ? describe_bytes(*weight) : describe_fp8(*weight);
}

// ---------------------------------------------------------------- integers

Status Joiner::describe_awq_or_gptq() {
  const bool awq = config_.kind == FolderQuantization::kAwq;
  KV_ASSIGN_OR_RETURN(const GgufTensor* codes, require("qweight"));
  KV_ASSIGN_OR_RETURN(const GgufTensor* zeros, require("qzeros"));
  KV_ASSIGN_OR_RETURN(const GgufTensor* scales, require("scales"));
  const uint64_t in_word = 32 / config_.bits;
  GroupedMatrix m;
  m.rows = codes->shape[0] * (awq ? in_word : 1);
  m.columns = codes->shape[1] * (awq ? 1 : in_word);
  if (codes->type->name != "I32" || !has_shape(*codes, codes->shape[0], codes->shape[1]))
    return wrong("qweight");
  if (m.rows % in_word != 0) return unsupported_sizes(m.rows, m.columns);
  m.in_group = config_.group == 0 ? m.columns : config_.group;
  m.groups = ceil_div(m.columns, m.in_group);
  if (zeros->type->name != "I32" || !has_shape(*zeros, m.rows / in_word, m.groups)) return wrong("qzeros");
  if (!has_shape(*scales, m.rows, m.groups)) return wrong("scales");
  KV_RETURN_IF_ERROR(read_scales("scales", *scales, m.scales));
  m.scales.row_step = 1;
  m.scales.column_step = m.rows;
  m.codes.words = codes->data.data();
  m.codes.bits = static_cast<uint32_t>(config_.bits);
  m.codes.packs_rows = m.codes.awq_order = awq;
  m.codes.row_words = 1;
  m.codes.column_words = codes->shape[0];
  m.zeros = m.codes;
  m.zeros->words = zeros->data.data();
  m.zeros->packs_rows = true;
  m.zeros->column_words = zeros->shape[0];
  // Less 1 of each was stored, by subtraction from whole words.
  if (config_.kind == FolderQuantization::kGptq) m.zeros->added = config_.bits == 4 ? 0x11111111 : 0x01010101;
  if (!awq) {
    KV_RETURN_IF_ERROR(read_order(of_->find("g_idx"), m));
  }
  return keep_integers(m, *codes);
}

Status Joiner::describe_packed() {
  KV_ASSIGN_OR_RETURN(const GgufTensor* codes, require("weight_packed"));
  KV_ASSIGN_OR_RETURN(const GgufTensor* shape, require("weight_shape"));
  KV_ASSIGN_OR_RETURN(const GgufTensor* scales, require("weight_scale"));
  if ((shape->type->name != "I64" && shape->type->name != "I32") || !has_shape(*shape, 2)) {
    return wrong("weight_shape");
  }
  std::array<uint64_t, 2> sizes = {};  // outputs, inputs
  const size_t bytes = shape->type->block_bytes;
  for (size_t i = 0; i < 2; ++i) std::memcpy(&sizes[i], shape->data.data() + i * bytes, bytes);
  const auto [rows, columns] = sizes;
  const uint64_t words = codes->shape[0];
  if (codes->type->name != "I32" || !has_shape(*codes, words, rows)) return wrong("weight_packed");
  const uint64_t in_word = columns % words == 0 ? columns / words : 0;
  if (in_word != 4 && in_word != 8) {
    return error(ErrorCode::kUnsupported,
                 "{}: the tensor {} has {} words for {} inputs: neither 4 nor 8 bits each; use the model in "
                 "BF16",
                 of_->file->path, gguf_quoted(*stem_ + ".weight_packed"), words, columns);
  }
  GroupedMatrix m;
  m.rows = rows;
  m.columns = columns;
  m.groups = scales->shape[0];
  if (!has_shape(*scales, m.groups, rows)) return wrong("weight_scale");
  if (columns % m.groups != 0) return wrong("weight_scale");
  m.in_group = columns / m.groups;
  KV_RETURN_IF_ERROR(read_scales("weight_scale", *scales, m.scales));
  m.scales.row_step = m.groups;
  m.scales.column_step = 1;
  m.codes.words = codes->data.data();
  m.codes.bits = static_cast<uint32_t>(32 / in_word);
  m.codes.row_words = words;
  m.codes.column_words = 1;
  if (const GgufTensor* zeros = of_->find("weight_zero_point")) {
    if (zeros->type->name != "I32" || !has_shape(*zeros, m.groups, ceil_div(rows, in_word))) {
      return wrong("weight_zero_point");
    }
    m.zeros = m.codes;
    m.zeros->words = zeros->data.data();
    m.zeros->packs_rows = true;
    m.zeros->row_words = m.groups;
  }
  KV_RETURN_IF_ERROR(read_order(of_->find("weight_g_idx"), m));
  return keep_integers(m, *codes);
}

// Symmetric quantisers may write them, all zero.
Status Joiner::require_no_zero_points() const {
  const GgufTensor* zeros = of_->find("weight_zero_point");
  if (zeros == nullptr) return {};
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  if (std::all_of(zeros->data.begin(), zeros->data.end(), is_zero)) return {};
  return error(
      ErrorCode::kUnsupported,
      "{}: the tensor {} is not zero, which is not supported beside weights of 8 bits; use the model "
      "in BF16",
      of_->file->path, gguf_quoted(*stem_ + ".weight_zero_point"));
}

// Signed bytes: words of four.
Status Joiner::describe_bytes(const GgufTensor& weight) {
  KV_ASSIGN_OR_RETURN(const GgufTensor* scales, require("weight_scale"));
  GroupedMatrix m;
  m.rows = weight.shape[1];
  m.columns = weight.shape[0];
  if (!has_shape(weight, m.columns, m.rows)) return wrong("weight");
  if (m.columns % 4 != 0) return unsupported_sizes(m.rows, m.columns);
  const bool one = scales->values() == 1;
  m.groups = one ? 1 : scales->shape[0];
  if (!one && !has_shape(*scales, m.groups, m.rows)) return wrong("weight_scale");
  if (m.columns % m.groups != 0) return wrong("weight_scale");
  m.in_group = m.columns / m.groups;
  KV_RETURN_IF_ERROR(require_no_zero_points());
  KV_RETURN_IF_ERROR(read_scales("weight_scale", *scales, m.scales));
  m.scales.row_step = one ? 0 : m.groups;
  m.scales.column_step = one ? 0 : 1;
  m.codes.words = weight.data.data();
  m.codes.bits = 8;
  m.codes.row_words = m.columns / 4;
  m.codes.column_words = 1;
  m.codes.flipped = 128;
  return keep_integers(m, weight);
}

Status Joiner::read_scales(std::string_view name, const GgufTensor& tensor, StoredScales& out) const {
  const auto type = ops::weight_type_of_name(tensor.type->name);
  if (!type || ops::is_quantized(*type)) return wrong(name);
  out.data = tensor.data.data();
  out.type = *type;
  StoredScales all = out;
  all.row_step = 1;
  for (uint64_t i = 0; i < tensor.values(); ++i) {
    if (std::isfinite(all.at(i, 0))) continue;
    return error(ErrorCode::kCorrupt,
                 "{}: the tensor {} has a value that is not finite; fetch the files again", of_->file->path,
                 gguf_quoted(fmt::format("{}.{}", *stem_, name)));
  }
  return {};
}

// Groups that follow each other need no list of them.
Status Joiner::read_order(const GgufTensor* order, GroupedMatrix& m) const {
  if (order == nullptr) return {};
  const std::string_view name = config_.kind == FolderQuantization::kCompressed ? "weight_g_idx" : "g_idx";
  if (order->type->name != "I32" || !has_shape(*order, m.columns)) return wrong(name);
  bool follows = true;
  for (uint64_t k = 0; k < m.columns; ++k) {
    int32_t group = 0;
    std::memcpy(&group, order->data.data() + k * sizeof(group), sizeof(group));
    if (group < 0 || static_cast<uint64_t>(group) >= m.groups) {
      return error(ErrorCode::kCorrupt, "{}: the tensor {} has group {} of {}; fetch the files again",
                   of_->file->path, gguf_quoted(fmt::format("{}.{}", *stem_, name)), group, m.groups);
    }
    follows = follows && static_cast<uint64_t>(group) == k / m.in_group;
  }
  if (!follows) m.order = order->data.data();
  return {};
}

// Whether scales are numbers of F16 as they are; zero points of one matrix that are not in the middle keep
// all others from Q4_0, so that a model has one type.
Status Joiner::keep_integers(GroupedMatrix m, const GgufTensor& codes) {
  if (m.columns % kLeastGroup != 0) return unsupported_sizes(m.rows, m.columns);
  if (m.in_group % kLeastGroup != 0) {
    return error(
        ErrorCode::kUnsupported,
        "{}: the matrix {} has groups of {} inputs, where a multiple of {} is needed; use the model in "
        "BF16",
        of_->file->path, gguf_quoted(*stem_), m.in_group, kLeastGroup);
  }
  bool has_blocks = m.order == nullptr, in_middle = true;
  for (uint64_t row = 0; row < m.rows; ++row) {
    for (uint64_t g = 0; g < m.groups; ++g) {
      const float scale = m.scales.at(row, g);
      has_blocks = has_blocks && ops::f16_to_f32(ops::f32_to_f16(scale)) == scale;
      in_middle = in_middle && m.zero(row, g) == m.half();
    }
  }
  if (m.codes.bits == 8) {
    has_blocks = has_blocks && in_middle;
  } else {
    all_in_middle_ = all_in_middle_ && in_middle;
  }
  integers_.push_back({stem_, of_, m, &codes, has_blocks});
  return {};
}

WeightType Joiner::type_of(const Integers& integers) const {
  const GroupedMatrix& m = integers.matrix;
  if (!integers.has_blocks) return m.scales.type;
  if (m.codes.bits == 8) return WeightType::kQ8_0;
  if (all_in_middle_) return WeightType::kQ4_0;
  return m.columns % 128 == 0 && m.in_group % 128 == 0 ? WeightType::kZ4x128 : WeightType::kZ4;
}

void Joiner::add_integers(const Integers& integers) {
  const GroupedMatrix& m = integers.matrix;
  const WeightType type = type_of(integers);
  if (!integers.has_blocks) {
    auto& [matrices, bytes] = without_blocks_[type];
    matrices += 1;
    bytes += m.rows * ops::row_bytes(type, static_cast<int64_t>(m.columns));
  }
  add(*integers.stem, *integers.parts, *integers.codes, type, m.rows, m.columns,
      std::make_unique<GroupedRows>(m, type));
}

void Joiner::warn() {
  for (const auto& [type, use] : without_blocks_) {
    warnings_.push_back(fmt::format(
        "{}: {} quantised matrices are held as {} ({}): their inputs are in the order of g_idx, or they have "
        "zero points and 8 bits, or scales that F16 has not",
        files_.front().path.substr(0, files_.front().path.find_last_of('/')), use.first,
        ops::weight_type_name(type), format_bytes(use.second)));
  }
}

// ---------------------------------------------------------------- FP8

Status Joiner::describe_fp8(const GgufTensor& weight) {
  const char* name = of_->find("weight_scale") != nullptr ? "weight_scale" : "weight_scale_inv";
  KV_ASSIGN_OR_RETURN(const GgufTensor* scales, require(name));
  const uint64_t rows = weight.shape[1], columns = weight.shape[0];
  if (!has_shape(weight, columns, rows)) return wrong("weight");
  KV_RETURN_IF_ERROR(require_no_zero_points());
  Fp8Matrix m;
  m.columns = columns;
  m.codes = weight.data.data();
  KV_RETURN_IF_ERROR(read_scales(name, *scales, m.scales));
  const uint64_t down = ceil_div(rows, config_.block_rows), across = ceil_div(columns, config_.block_columns);
  if (scales->values() == 1) {
    m.block_rows = rows;
    m.block_columns = columns;
  } else if (has_shape(*scales, 1, rows) || (scales->dimensions == 1 && has_shape(*scales, rows))) {
    m.block_columns = columns;
    m.scales.row_step = 1;
  } else if (has_shape(*scales, across, down)) {
    m.block_rows = config_.block_rows;
    m.block_columns = config_.block_columns;
    m.scales.row_step = across;
    m.scales.column_step = 1;
  } else {
    return wrong(name);
  }
  add(*stem_, *of_, weight, WeightType::kBf16, rows, columns, std::make_unique<Fp8Rows>(m));
  return {};
}

void Joiner::add(const std::string& stem, const Parts& parts, const GgufTensor& codes, WeightType type,
                 uint64_t rows, uint64_t columns, std::unique_ptr<const TensorRows> made) {
  SafetensorsTensor& joined = parts.file->content.tensors.emplace_back();
  joined.name = stem + ".weight";
  joined.tensor = codes;
  joined.tensor.type = type_named(ops::weight_type_name(type));
  joined.tensor.dimensions = 2;
  joined.tensor.shape = {columns, rows, 1, 1};
  joined.tensor.rows = out_.keep(std::move(made));
}

}  // namespace

Status join_quantized_matrices(const QuantizationConfig& config, std::vector<WeightsFile>& files,
                               GgufAssembler& out, std::vector<std::string>& warnings) {
  if (config.kind == FolderQuantization::kNone || config.kind == FolderQuantization::kMxfp4) return {};
  return Joiner(config, files, out, warnings).run();
}

}  // namespace kvasir
