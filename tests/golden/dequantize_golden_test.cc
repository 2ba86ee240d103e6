// Values of GGUF's blocks against those of the Python package gguf: see make_dequantize_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "ops/numerics.h"
#include "ops/weight_traits.h"
#include "support/block_weights.h"

namespace kvasir::test {
namespace {

constexpr int64_t kBlocks = 64;
constexpr uint8_t kExponents[] = {0, 1, 2, 254, 255};  // of the first blocks of MXFP4

uint64_t hash_of(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint64_t hash = 0xCBF29CE484222325;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3;
  return hash;
}

TEST(DequantizeGolden, EveryTypeHasTheValuesOfGguf) {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/dequantize.txt");
  size_t compared = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string name, hash;
    words >> name >> hash;
    const auto type = ops::weight_type_of_name(name);
    ASSERT_TRUE(type) << name;
    const int64_t values = ops::block_values(*type);
    const size_t block = ops::row_bytes(*type, values);
    std::vector<uint8_t> raw(static_cast<size_t>(kBlocks) * block);
    uint64_t state = hash_of(name.data(), name.size());
    for (uint8_t& b : raw) {
      state = state * 6364136223846793005 + 1442695040888963407;
      b = static_cast<uint8_t>(state >> 56);
    }
    const HalfPlaces places = half_places(*type);
    for (size_t at = 0; at < raw.size(); at += block) {
      raw[at + static_cast<size_t>(places.scale) + 1] &= 0xBF;
      if (places.min >= 0) raw[at + static_cast<size_t>(places.min) + 1] &= 0xBF;
    }
    if (*type == ops::WeightType::kMxfp4) {
      for (size_t b = 0; b < std::size(kExponents); ++b) raw[b * block] = kExponents[b];
    }
    std::vector<float> out(static_cast<size_t>(kBlocks * values));
    ops::dequantize_row(*type, raw.data(), kBlocks * values, out.data());
    EXPECT_EQ(hash_of(out.data(), out.size() * sizeof(float)), std::stoull(hash, nullptr, 16)) << name;
    ++compared;
  }
  size_t quantized = 0;
  for (const ops::WeightTraits& t : ops::kWeightTraits) {
    quantized += t.block_values > 1 && !is_of_folders(t.type) ? 1 : 0;
  }
  EXPECT_EQ(compared, quantized);
}

}  // namespace
}  // namespace kvasir::test
