#include "model/folders/quantization_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kvasir {
namespace {

using nlohmann::json;

constexpr std::string_view kUseAnother =
    "use the model in BF16, with 4 bits as AWQ or GPTQ, in FP8, or as a GGUF file";
constexpr int64_t kMostGroup = int64_t{1} << 20;

void unsupported(ConfigFields& fields, std::string_view field, std::string_view wanted) {
  fields.unsupported(field, fmt::format("where {} is needed; {}", wanted, kUseAnother));
}

// What AWQ and GPTQ have in common.
void read_group(ConfigFields& fields, QuantizationConfig& out) {
  const int64_t group = fields.integer("group_size", -1, kMostGroup).value_or(128);
  if (group == -1) return;
  if (group <= 0 || group % 32 != 0) unsupported(fields, "group_size", "a multiple of 32, or -1,");
  out.group = static_cast<uint64_t>(group);
}

void read_bits(ConfigFields& fields, bool may_be_eight, QuantizationConfig& out) {
  const char* field = fields.has("bits") ? "bits" : "w_bit";
  const int64_t bits = fields.integer(field, 0, 64).value_or(4);
  if (bits != 4 && !(may_be_eight && bits == 8)) {
    unsupported(fields, field, may_be_eight ? "4 or 8" : "4");
  }
  out.bits = static_cast<uint64_t>(bits);
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

void read_awq(ConfigFields& fields, QuantizationConfig& out) {
  out.kind = FolderQuantization::kAwq;
  read_bits(fields, /*may_be_eight=*/false, out);
  read_group(fields, out);
  for (const char* field : {"version", "format"}) {
    if (lower(fields.text(field).value_or("gemm")) != "gemm") unsupported(fields, field, "gemm");
  }
}

void read_gptq(ConfigFields& fields, QuantizationConfig& out) {
  out.kind = FolderQuantization::kGptq;
  read_bits(fields, /*may_be_eight=*/true, out);
  read_group(fields, out);
  fields.refuse("is_marlin_format");
  const char* field = fields.has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format = lower(fields.text(field).value_or("gptq"));
  if (format == "gptq_v2") out.kind = FolderQuantization::kGptqV2;
  if (format != "gptq" && format != "gptq_v2") unsupported(fields, field, "gptq or gptq_v2");
}

// Where it is a list: of old files a text, which shapes of tensors say again.
void read_block(ConfigFields& fields, std::string_view field, QuantizationConfig& out) {
  const json* value = fields.find(field);
  if (value == nullptr || !value->is_array()) return;
  const auto block = fields.integers(field);
  if (!block) return;
  if (block->size() != 2 || (*block)[0] < 1 || (*block)[1] < 1) {
    return unsupported(fields, field, "a pair of sizes");
  }
  out.block_rows = static_cast<uint64_t>((*block)[0]);
  out.block_columns = static_cast<uint64_t>((*block)[1]);
}

void read_fp8(ConfigFields& fields, QuantizationConfig& out) {
  out.kind = FolderQuantization::kFp8;
  if (fields.text("fmt").value_or("e4m3") != "e4m3") unsupported(fields, "fmt", "e4m3");
  read_block(fields, "weight_block_size", out);
}

bool is_known_format(std::string_view format) {
  constexpr std::string_view kKnown[] = {"pack-quantized",  "int-quantized",   "float-quantized",
                                         "naive-quantized", "mixed-precision", "dense"};
  return std::find(std::begin(kKnown), std::end(kKnown), format) != std::end(kKnown);
}

// One of "config_groups".
void read_compressed_group(ConfigFields& fields, QuantizationConfig& out) {
  if (!is_known_format(fields.text("format").value_or("dense"))) {
    unsupported(fields, "format", "pack-, int-, float- or naive-quantized");
  }
  const json* object = fields.find("weights");
  if (object == nullptr) return;
  if (!object->is_object()) return unsupported(fields, "weights", "an object");
  ConfigFields weights(*object, fields.origin() + ", weights");
  const std::string type = weights.text("type").value_or("int");
  if (type != "int" && type != "float") unsupported(weights, "type", "int or float");
  const int64_t bits = weights.integer("num_bits", 0, 64).value_or(8);
  if (bits != 8 && (bits != 4 || type != "int")) unsupported(weights, "num_bits", "8, or 4 of integers,");
  read_block(weights, "block_structure", out);
  fields.fail(weights.status());
}

void read_compressed(ConfigFields& fields, QuantizationConfig& out) {
  out.kind = FolderQuantization::kCompressed;
  if (!is_known_format(fields.text("format").value_or("dense"))) {
    unsupported(fields, "format", "pack-, int-, float- or naive-quantized");
  }
  if (const json* sparsity = fields.find("sparsity_config"); sparsity != nullptr && sparsity->is_object()) {
    ConfigFields inner(*sparsity, fields.origin() + ", sparsity_config");
    if (inner.text("format").value_or("dense") != "dense") unsupported(inner, "format", "dense");
    fields.fail(inner.status());
  }
  const json* transforms = fields.find("transform_config");
  if (transforms != nullptr && !transforms->empty()) {
    fields.unsupported("transform_config", fmt::format("which is not supported; {}", kUseAnother));
  }
  const json* groups = fields.find("config_groups");
  if (groups == nullptr || !groups->is_object()) return;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) continue;  // the name of a preset: its tensors say enough
    ConfigFields inner(group, fmt::format("{}, config_groups {}", fields.origin(), name));
    read_compressed_group(inner, out);
    fields.fail(inner.status());
  }
}

}  // namespace

Result<QuantizationConfig> read_quantization_config(ConfigFields& fields) {
  QuantizationConfig out;
  const json* object = fields.find("quantization_config");
  if (object == nullptr) return out;
  if (!object->is_object()) {
    fields.unsupported("quantization_config", "where an object is needed; fetch the file again");
    return fields.status();
  }
  ConfigFields inner(*object, fields.origin() + ", 'quantization_config'");
  const std::string method = lower(inner.text("quant_method").value_or(""));
  if (method == "mxfp4") {
    out.kind = FolderQuantization::kMxfp4;
  } else if (method == "awq") {
    read_awq(inner, out);
  } else if (method == "gptq") {
    read_gptq(inner, out);
  } else if (method == "fp8") {
    read_fp8(inner, out);
  } else if (method == "compressed-tensors") {
    read_compressed(inner, out);
  } else if (inner.has("quant_method")) {
    inner.unsupported("quant_method", fmt::format("which is not supported; {}", kUseAnother));
  } else {
    fields.unsupported("quantization_config", fmt::format("without a quant_method; {}", kUseAnother));
  }
  KV_RETURN_IF_ERROR(fields.status());
  KV_RETURN_IF_ERROR(inner.status());
  return out;
}

}  // namespace kvasir
