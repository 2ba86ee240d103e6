#include "support/random_parts.h"

#include <cstring>
#include <utility>

#include "support/quantized_folder.h"

namespace kvasir::test {
namespace {

// The bits of a scale that stay random, and those that are set.
struct ScaleBits {
  uint32_t random, fixed;
};
ScaleBits scale_bits(const std::string& type, bool even) {
  if (type == "F16") return even ? ScaleBits{0x03FF, 0x2000} : ScaleBits{0xBFFF, 0};
  if (type == "BF16") return even ? ScaleBits{0x007F, 0x3C00} : ScaleBits{0x83FF, 0x3800};
  return even ? ScaleBits{0x007FFFFF, 0x3A000000} : ScaleBits{0x80FFFFFF, 0x38000000};
}

class Parts {
 public:
  Parts(const RandomMatrix& matrix, std::string stem, std::string seed, size_t rows, size_t columns)
      : m_(matrix), stem_(std::move(stem)), seed_(std::move(seed)), rows_(rows), columns_(columns) {}

  std::vector<FolderTensor> make() {
    if (m_.form.starts_with("fp8")) {
      add_fp8();
    } else if (m_.form == "packed" || m_.form == "bytes") {
      add_compressed();
    } else {
      add_awq_or_gptq();
    }
    return std::move(out_);
  }

 private:
  void add(const std::string& part, const std::string& type, std::vector<uint64_t> shape) {
    const size_t bytes = type == "I32" || type == "F32" ? 4 : type == "F16" || type == "BF16" ? 2 : 1;
    const size_t count = shape[0] * shape[1] * bytes;
    out_.push_back({stem_ + "." + part, type, std::move(shape), random_bytes(seed_ + "." + part, count)});
  }
  void add_scales(const std::string& part, std::vector<uint64_t> shape) {
    add(part, m_.type, std::move(shape));
    std::vector<std::byte>& data = out_.back().data;
    const ScaleBits bits = scale_bits(m_.type, m_.even_scales);
    const size_t width = m_.type == "F32" ? 4 : 2;
    for (size_t i = 0; i < data.size(); ++i) {
      const auto shift = 8 * (i % width);
      data[i] = (data[i] & static_cast<std::byte>(bits.random >> shift)) |
                static_cast<std::byte>(bits.fixed >> shift);
    }
  }
  template <typename T>
  void add_numbers(const std::string& part, const std::string& type, const std::vector<T>& numbers) {
    std::vector<std::byte> data(numbers.size() * sizeof(T));
    std::memcpy(data.data(), numbers.data(), data.size());
    out_.push_back({stem_ + "." + part, type, {numbers.size()}, std::move(data)});
  }

  void add_fp8() {
    add("weight", "F8_E4M3", {rows_, columns_});
    for (std::byte& b : out_.back().data) {
      if ((b & std::byte{127}) == std::byte{127}) b ^= std::byte{1};  // no NaN
    }
    const bool blocks = m_.form == "fp8_blocks", rows = m_.form == "fp8_rows";
    add_scales("weight_scale", {blocks ? rows_ / kFp8BlockRows
                                : rows ? rows_
                                       : 1,
                                blocks ? columns_ / kFp8BlockColumns : 1});
  }
  void add_compressed() {
    add_scales("weight_scale", {rows_, groups()});
    if (m_.form == "bytes") return add("weight", "I8", {rows_, columns_});
    add("weight_packed", "I32", {rows_, columns_ / per()});
    if (m_.more != "middle") add("weight_zero_point", "I32", {rows_ / per(), groups()});
    add_numbers<int64_t>("weight_shape", "I64",
                         {static_cast<int64_t>(rows_), static_cast<int64_t>(columns_)});
  }
  void add_awq_or_gptq() {
    if (m_.form == "awq") {
      add("qweight", "I32", {columns_, rows_ / per()});
    } else {
      add("qweight", "I32", {columns_ / per(), rows_});
    }
    add("qzeros", "I32", {groups(), rows_ / per()});
    if (m_.more == "middle") {
      const int middle = (1 << (m_.bits - 1)) - (m_.form == "gptq" ? 1 : 0);
      for (std::byte& b : out_.back().data) b = static_cast<std::byte>(m_.bits == 4 ? middle * 17 : middle);
    }
    add_scales("scales", {groups(), rows_});
    if (m_.more != "order") return;
    std::vector<int32_t> order;
    for (size_t k = 0; k < columns_; ++k)
      order.push_back(static_cast<int32_t>(k * 5 % columns_ * groups() / columns_));
    add_numbers("g_idx", "I32", order);
  }
  uint64_t groups() const { return columns_ / m_.group; }
  uint64_t per() const { return 32 / static_cast<uint64_t>(m_.bits); }

  const RandomMatrix& m_;
  const std::string stem_, seed_;
  const size_t rows_, columns_;
  std::vector<FolderTensor> out_;
};

}  // namespace

std::vector<std::byte> random_bytes(const std::string& name, size_t count) {
  uint64_t state = 0xCBF29CE484222325;  // 64-bit FNV-1a
  for (char c : name) state = (state ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  std::vector<std::byte> out(count);
  for (std::byte& b : out) {
    state = state * 6364136223846793005 + 1442695040888963407;
    b = static_cast<std::byte>(state >> 56);
  }
  return out;
}

std::vector<FolderTensor> random_parts(const RandomMatrix& matrix, const std::string& stem,
                                       const std::string& seed, size_t rows, size_t columns) {
  return Parts(matrix, stem, seed, rows, columns).make();
}

std::string quantization_config_of(const RandomMatrix& matrix) {
  if (matrix.form == "fp8_blocks") {
    return fmt::format(R"({{"quant_method":"fp8","weight_block_size":[{},{}]}})", kFp8BlockRows,
                       kFp8BlockColumns);
  }
  FolderQuantizing how;
  how.form = matrix.form;
  how.bits = matrix.bits;
  how.group = static_cast<int64_t>(matrix.group);
  return quantization_config_of(how);
}

}  // namespace kvasir::test
