// Writes the models of golden/tiny_models.h as GGUF files into a folder, for make_logits_goldens.py.
#include <cstdio>
#include <fstream>

#include "golden/tiny_models.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_tiny_models FOLDER\n");
    return 2;
  }
  for (const auto& model : kvasir::test::golden_models()) {
    const std::vector<std::byte> bytes = kvasir::test::golden_model_bytes(model);
    const std::string path = std::string(argv[1]) + "/" + model.name + ".gguf";
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) {
      std::fprintf(stderr, "%s cannot be written: make the folder, or free some space\n", path.c_str());
      return 1;
    }
  }
  return 0;
}
