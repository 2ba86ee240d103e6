#include "golden/architecture_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "base/random.h"
#include "golden/tiny_models.h"

namespace kvasir::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPrefix = "architecture_";

fs::path golden_folder() {
  return fs::path(KVASIR_SOURCE_DIR) / "tests" / "golden";
}

uint64_t product(const std::vector<uint64_t>& shape) {
  uint64_t out = 1;
  for (uint64_t size : shape) out *= size;
  return out;
}

// "tensor" PATTERN MEAN DEVIATION SIZE...
void read_tensors(std::istringstream& fields, int layers, ArchitectureGolden& golden) {
  std::string pattern;
  float mean = 0, deviation = 0;
  fields >> pattern >> mean >> deviation;
  std::vector<uint64_t> shape;
  for (uint64_t size = 0; fields >> size;) shape.push_back(size);
  const size_t star = pattern.find('*');
  for (int layer = 0; layer < (star == std::string::npos ? 1 : layers); ++layer) {
    std::string name = pattern;
    if (star != std::string::npos) name.replace(star, 1, std::to_string(layer));
    golden.tensors[name] = tensor_values(name, product(shape), mean, deviation);
    golden.shapes[name] = shape;
  }
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  return {bytes, bytes + values.size() * sizeof(float)};
}

uint64_t hash_of(const ArchitectureGolden& golden) {
  std::vector<std::byte> all;
  for (const auto& [name, values] : golden.tensors) {
    const std::vector<std::byte> bytes = bytes_of(values);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return fnv1a(all);
}

double root_mean_square(const std::map<uint32_t, std::vector<float>>& logits) {
  double squares = 0;
  size_t count = 0;
  for (const auto& [position, row] : logits) {
    for (float x : row) squares += static_cast<double>(x) * x;
    count += row.size();
  }
  return std::sqrt(squares / static_cast<double>(std::max<size_t>(count, 1)));
}

}  // namespace

void PrintTo(const ArchitectureGolden& golden, std::ostream* out) {
  *out << golden.name;
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(golden_folder())) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with(kPrefix) && entry.path().extension() == ".txt")
      out.push_back(name.substr(kPrefix.size()));
  }
  std::sort(out.begin(), out.end());
  return out;
}

ArchitectureGolden read_architecture_golden(const std::string& name) {
  ArchitectureGolden golden;
  golden.name = name;
  const fs::path path = golden_folder() / (std::string(kPrefix) + name + ".txt");
  std::ifstream in(path);
  EXPECT_TRUE(in.is_open()) << path;
  uint64_t hash = 0;
  int layers = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string what;
    fields >> what;
    if (what == "config") {
      golden.config = line.substr(what.size() + 1);
      layers = json::parse(golden.config).at("num_hidden_layers").get<int>();
    } else if (what == "tensor") {
      read_tensors(fields, layers, golden);
    } else if (what == "weights") {
      fields >> std::hex >> hash;
    } else if (what == "tokens" || what == "ids") {
      for (Token t; fields >> t;) (what == "ids" ? golden.ids : golden.tokens).push_back(t);
    } else if (what == "position") {
      uint32_t position = 0;
      fields >> position;
      for (float x = 0; fields >> x;) golden.logits[position].push_back(x);
      EXPECT_EQ(golden.logits[position].size(), golden.ids.size()) << path << ": position " << position;
    } else {
      EXPECT_EQ(what, "#") << path << ": " << line.substr(0, 40);
    }
  }
  EXPECT_EQ(hash_of(golden), hash) << path << ": make_architectures.py makes other weights";
  golden.scale = root_mean_square(golden.logits);
  return golden;
}

std::vector<float> tensor_values(std::string_view name, size_t count, float mean, float deviation) {
  const auto* bytes = reinterpret_cast<const std::byte*>(name.data());
  const uint64_t key = fnv1a({bytes, bytes + name.size()});
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random_bits(key, 0, i);
    int32_t sum = -2 * 0xffff;
    for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<int32_t>(bits & 0xffff);
    out[i] = mean + deviation * (static_cast<float>(sum) * 0x1.cp-16F);  // the inner product is exact
  }
  return out;
}

void write_model_folder(const ArchitectureGolden& golden, const fs::path& folder) {
  std::ofstream(folder / "config.json") << golden.config;
  json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const auto& [name, values] : golden.tensors) {
    const uint64_t end = offset + values.size() * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", golden.shapes.at(name)}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::vector<std::byte> out;
  append(out, static_cast<uint64_t>(text.size()));
  for (char c : text) append(out, c);
  for (const auto& [name, values] : golden.tensors) {
    const std::vector<std::byte> bytes = bytes_of(values);
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size()));
  ASSERT_TRUE(file.flush()) << folder;
}

}  // namespace kvasir::test
