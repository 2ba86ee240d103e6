#include "support/quantized_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/numerics.h"

namespace kvasir::test {
namespace {

using nlohmann::json;

bool is_linear(const FolderTensor& tensor, const FolderQuantizing& how) {
  const std::string& name = tensor.name;
  if (!name.ends_with(".weight") || tensor.shape.size() != 2) return false;
  if (name == "lm_head.weight") return how.output_too;
  const std::string stem = name.substr(0, name.size() - 7);
  const auto is = [&stem](const char* ending) { return stem.ends_with(ending); };
  // Of recurrent layers, too; those with few outputs stay as they are.
  return is("_proj") || is("in_proj_qkvz") || is("in_proj_qkv") || is("in_proj_z") || is(".w1") ||
         is(".w2") || is(".w3");
}

float value_at(const FolderTensor& tensor, size_t index) {
  uint16_t bits = 0;
  std::memcpy(&bits, tensor.data.data() + 2 * index, 2);
  return ops::bf16_to_f32(bits);
}

template <typename T>
void put(FolderTensor& tensor, size_t index, T value) {
  std::memcpy(tensor.data.data() + index * sizeof(T), &value, sizeof(T));
}
FolderTensor tensor_of(std::string name, std::string type, std::vector<uint64_t> shape) {
  size_t bytes = type == "I32" || type == "F32"     ? 4
                 : type == "I64"                    ? 8
                 : type[0] == 'F' && type[1] == '8' ? 1
                 : type == "I8"                     ? 1
                                                    : 2;
  for (uint64_t size : shape) bytes *= size;
  return {std::move(name), std::move(type), std::move(shape), std::vector<std::byte>(bytes)};
}
void put_scale(FolderTensor& tensor, size_t index, float value) {
  if (tensor.type == "F32") return put(tensor, index, value);
  put(tensor, index, tensor.type == "F16" ? ops::f32_to_f16(value) : ops::f32_to_bf16(value));
}
float rounded(const std::string& type, float value) {
  if (type == "F32") return value;
  return type == "F16" ? ops::f16_to_f32(ops::f32_to_f16(value)) : ops::bf16_to_f32(ops::f32_to_bf16(value));
}

// A matrix as integers: [N][K] codes, [N][groups] scales and zero points.
struct Integers {
  size_t n = 0, k = 0, groups = 0;
  std::vector<uint32_t> codes, zeros;
  std::vector<float> scales;
  std::vector<size_t> group_of;  // [K]
};

Integers integers_of(const FolderTensor& from, const FolderQuantizing& how) {
  Integers out;
  out.n = from.shape[0];
  out.k = from.shape[1];
  const auto group = static_cast<size_t>(how.group);
  KV_CHECK(out.k % group == 0, "{}", from.name);
  out.groups = out.k / group;
  const uint32_t most = (1U << how.bits) - 1, half = 1U << (how.bits - 1);
  for (size_t k = 0; k < out.k; ++k) out.group_of.push_back(how.in_order ? k / group : k % out.groups);
  for (size_t n = 0; n < out.n; ++n) {
    for (size_t g = 0; g < out.groups; ++g) {
      float largest = 1e-3F;
      for (size_t k = 0; k < out.k; ++k) {
        if (out.group_of[k] == g) largest = std::max(largest, std::fabs(value_at(from, n * out.k + k)));
      }
      // Zero points move about, so that their places matter; v1 of GPTQ has all of them, too.
      const auto zero = how.in_middle ? half : static_cast<uint32_t>(n * 7 + g * 3) % most;
      out.zeros.push_back(zero);
      out.scales.push_back(rounded(how.type, largest / static_cast<float>(half - 1)));
    }
  }
  for (size_t n = 0; n < out.n; ++n) {
    for (size_t k = 0; k < out.k; ++k) {
      const size_t at = n * out.groups + out.group_of[k];
      const float step = std::nearbyint(value_at(from, n * out.k + k) / out.scales[at]);
      const float code = std::clamp(step + static_cast<float>(out.zeros[at]), 0.0F, static_cast<float>(most));
      out.codes.push_back(static_cast<uint32_t>(code));
    }
  }
  return out;
}

void or_bits(FolderTensor& tensor, size_t word, uint32_t bits) {
  uint32_t old = 0;
  std::memcpy(&old, tensor.data.data() + 4 * word, 4);
  put(tensor, word, old | bits);
}

std::vector<FolderTensor> awq_or_gptq(const std::string& stem, const Integers& m,
                                      const FolderQuantizing& how) {
  const bool awq = how.form == "awq";
  const auto bits = static_cast<size_t>(how.bits), per = 32 / bits;
  constexpr size_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};  // the output of each four bits
  FolderTensor codes = awq ? tensor_of(stem + "qweight", "I32", {m.k, m.n / per})
                           : tensor_of(stem + "qweight", "I32", {m.k / per, m.n});
  FolderTensor zeros = tensor_of(stem + "qzeros", "I32", {m.groups, m.n / per});
  FolderTensor scales = tensor_of(stem + "scales", how.type, {m.groups, m.n});
  const auto place = [&](size_t n) {  // of an output in a word
    return awq ? static_cast<size_t>(std::find(kOrder, kOrder + 8, n % 8) - kOrder) : n % per;
  };
  for (size_t n = 0; n < m.n; ++n) {
    for (size_t k = 0; k < m.k; ++k) {
      const uint32_t code = m.codes[n * m.k + k];
      if (awq) {
        or_bits(codes, k * (m.n / per) + n / per, code << (bits * place(n)));
      } else {
        or_bits(codes, k / per * m.n + n, code << (bits * (k % per)));
      }
    }
    for (size_t g = 0; g < m.groups; ++g) {
      or_bits(zeros, g * (m.n / per) + n / per, m.zeros[n * m.groups + g] << (bits * place(n)));
      put_scale(scales, g * m.n + n, m.scales[n * m.groups + g]);
    }
  }
  std::vector<FolderTensor> out;
  if (how.form == "gptq") {
    const uint32_t one = how.bits == 4 ? 0x11111111U : 0x01010101U;
    for (size_t i = 0; i < zeros.data.size() / 4; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, zeros.data.data() + 4 * i, 4);
      put(zeros, i, word - one);
    }
  }
  if (!awq) {
    FolderTensor order = tensor_of(stem + "g_idx", "I32", {m.k});
    for (size_t k = 0; k < m.k; ++k) put(order, k, static_cast<int32_t>(m.group_of[k]));
    out.push_back(std::move(order));
  }
  out.push_back(std::move(codes));
  out.push_back(std::move(zeros));
  out.push_back(std::move(scales));
  return out;
}

std::vector<FolderTensor> compressed(const std::string& stem, const Integers& m,
                                     const FolderQuantizing& how) {
  const auto bits = static_cast<size_t>(how.bits), per = 32 / bits;
  FolderTensor scales = tensor_of(stem + "weight_scale", how.type, {m.n, m.groups});
  for (size_t i = 0; i < m.scales.size(); ++i) put_scale(scales, i, m.scales[i]);
  if (how.form == "bytes") {
    FolderTensor codes = tensor_of(stem + "weight", "I8", {m.n, m.k});
    for (size_t i = 0; i < m.codes.size(); ++i)
      put(codes, i, static_cast<int8_t>(static_cast<int>(m.codes[i]) - 128));
    return {codes, scales};
  }
  FolderTensor codes = tensor_of(stem + "weight_packed", "I32", {m.n, m.k / per});
  FolderTensor zeros = tensor_of(stem + "weight_zero_point", "I32", {m.n / per, m.groups});
  FolderTensor shape = tensor_of(stem + "weight_shape", "I64", {2});
  put(shape, 0, static_cast<int64_t>(m.n));
  put(shape, 1, static_cast<int64_t>(m.k));
  for (size_t n = 0; n < m.n; ++n) {
    for (size_t k = 0; k < m.k; ++k) {
      or_bits(codes, n * (m.k / per) + k / per, m.codes[n * m.k + k] << (bits * (k % per)));
    }
    for (size_t g = 0; g < m.groups; ++g) {
      or_bits(zeros, n / per * m.groups + g, m.zeros[n * m.groups + g] << (bits * (n % per)));
    }
  }
  std::vector<FolderTensor> out = {codes, scales, shape};
  if (!how.in_middle) out.push_back(zeros);
  return out;
}

// Straight from the format's description: sign, four bits of exponent, three of fraction.
float fp8_value(int code) {
  const int exponent = code / 8 % 16, fraction = code % 8;
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                    : std::ldexp(1 + static_cast<float>(fraction) / 8, exponent - 7);
  return code >= 128 ? -value : value;
}
uint8_t nearest_fp8(const std::vector<float>& values, float value) {
  size_t best = 0;
  for (size_t code = 1; code < values.size(); ++code) {
    if (code % 128 == 127) continue;  // NaN
    if (std::fabs(values[code] - value) < std::fabs(values[best] - value)) best = code;
  }
  return static_cast<uint8_t>(best);
}

constexpr size_t kFp8Rows = 48, kFp8Columns = 32;  // of a block

std::vector<FolderTensor> fp8(const std::string& stem, const FolderTensor& from, const FolderQuantizing& how,
                              std::vector<float>& values) {
  std::vector<float> all;
  for (int code = 0; code < 256; ++code) all.push_back(fp8_value(code));
  const size_t n = from.shape[0], k = from.shape[1];
  const size_t rows = how.form == "fp8_blocks" ? kFp8Rows : how.form == "fp8_rows" ? 1 : n;
  const size_t columns = how.form == "fp8_blocks" ? kFp8Columns : k;
  const size_t down = (n + rows - 1) / rows, across = (k + columns - 1) / columns;
  FolderTensor codes = tensor_of(stem + "weight", "F8_E4M3", {n, k});
  FolderTensor scales = tensor_of(stem + (how.form == "fp8_blocks" ? "weight_scale_inv" : "weight_scale"),
                                  how.type, {down, across});
  if (how.form == "fp8_one") scales.shape = {1};
  for (size_t i = 0; i < down * across; ++i) put_scale(scales, i, 1e-3F * static_cast<float>(1 + i % 5));
  for (size_t i = 0; i < n * k; ++i) {
    const float scale =
        rounded(how.type, 1e-3F * static_cast<float>(1 + (i / k / rows * across + i % k / columns) % 5));
    const uint8_t code = nearest_fp8(all, value_at(from, i) / scale);
    put(codes, i, code);
    values.push_back(rounded("BF16", all[code] * scale));
  }
  return {codes, scales};
}

}  // namespace

std::string quantization_config_of(const FolderQuantizing& how) {
  json out;
  if (how.form == "awq") {
    out = {{"quant_method", "awq"}, {"version", "gemm"}, {"zero_point", true}};
  } else if (how.form.starts_with("gptq")) {
    out = {{"quant_method", "gptq"}, {"checkpoint_format", how.form}, {"desc_act", !how.in_order}};
  } else if (how.form == "fp8_blocks") {
    out = {{"quant_method", "fp8"}, {"weight_block_size", {kFp8Rows, kFp8Columns}}, {"fmt", "e4m3"}};
  } else {
    const bool is_fp8 = how.form.starts_with("fp8");
    json weights = {{"type", is_fp8 ? "float" : "int"}, {"num_bits", is_fp8 ? 8 : how.bits}};
    out = {{"quant_method", "compressed-tensors"},
           {"format", is_fp8                ? "float-quantized"
                      : how.form == "bytes" ? "int-quantized"
                                            : "pack-quantized"},
           {"config_groups", {{"group_0", {{"weights", weights}, {"targets", {"Linear"}}}}}},
           {"ignore", {"lm_head"}}};
    return out.dump();
  }
  out.update({{"bits", how.bits}, {"group_size", how.group}});
  return out.dump();
}

QuantizedFolder quantize_folder(const TinyFolder& from, const FolderQuantizing& how) {
  QuantizedFolder out;
  out.folder.texts = out.plain.texts = from.texts;
  std::string& config = out.folder.texts.at("config.json");
  config.replace(config.size() - 1, 1, ",\"quantization_config\":" + quantization_config_of(how) + "}");
  for (const FolderTensor& tensor : from.tensors) {
    if (!is_linear(tensor, how)) {
      out.folder.tensors.push_back(tensor);
      out.plain.tensors.push_back(tensor);
      continue;
    }
    KV_CHECK(tensor.type == "BF16", "{}", tensor.name);
    const std::string stem = tensor.name.substr(0, tensor.name.size() - 6);
    std::vector<float> values;
    std::vector<FolderTensor> parts;
    if (how.form.starts_with("fp8")) {
      parts = fp8(stem, tensor, how, values);
    } else {
      const Integers m = integers_of(tensor, how);
      const bool in_blocks = how.in_order && (how.bits == 4 || how.in_middle);
      for (size_t i = 0; i < m.codes.size(); ++i) {
        const size_t at = i / m.k * m.groups + m.group_of[i % m.k];
        const float value =
            m.scales[at] * static_cast<float>(static_cast<int>(m.codes[i]) - static_cast<int>(m.zeros[at]));
        values.push_back(in_blocks ? value : rounded(how.type, value));
      }
      parts =
          how.form == "packed" || how.form == "bytes" ? compressed(stem, m, how) : awq_or_gptq(stem, m, how);
    }
    for (FolderTensor& part : parts) out.folder.tensors.push_back(std::move(part));
    FolderTensor plain = tensor_of(tensor.name, "F32", tensor.shape);
    std::memcpy(plain.data.data(), values.data(), plain.data.size());
    out.plain.tensors.push_back(std::move(plain));
  }
  return out;
}

}  // namespace kvasir::test
