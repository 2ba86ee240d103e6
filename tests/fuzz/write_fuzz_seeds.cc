// Writes small model files for gguf_fuzz to start from, so that none need to be kept in the repository.
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "support/tiny_llama.h"

namespace {

bool write(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return out.good();
}

}  // namespace

int main(int argc, char** argv) {
  using kvasir::ops::WeightType;
  if (argc != 2) {
    std::fputs("usage: write_fuzz_seeds FOLDER\n", stderr);
    return 2;
  }
  kvasir::test::TinyLlamaShape shape;
  shape.layers = 1;
  shape.dim = shape.head_dim = shape.ffn = 32;
  shape.heads = shape.kv_heads = 1;
  shape.vocab = 259;
  shape.rope_factors = true;
  for (auto [name, type] : {std::pair{"f32", WeightType::kF32}, std::pair{"f16", WeightType::kF16},
                            std::pair{"q8_0", WeightType::kQ8_0}, std::pair{"q4_0", WeightType::kQ4_0},
                            std::pair{"q4_1", WeightType::kQ4_1}}) {
    const std::string path = std::string(argv[1]) + "/" + name + ".gguf";
    if (!write(path, kvasir::test::make_tiny_llama(shape, type, 1))) {
      std::fprintf(stderr, "%s: cannot write; does the folder exist?\n", path.c_str());
      return 1;
    }
  }
  return 0;
}
