// Writes the logits of every position of given tokens, for compare_llama_cpp.py.
#include <cstdio>
#include <fstream>
#include <string_view>

#include "golden/teacher_forcing.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kChunk = 256;  // tokens in a step
constexpr int kThreads = 2;

int write_logits(const char* model, const char* tokens_path, std::string_view precision, const char* output) {
  const auto file = ModelFile::open(model);
  if (!file.ok()) {
    std::fprintf(stderr, "%s\n", file.status().message().c_str());
    return 1;
  }
  std::vector<Token> tokens;
  std::ifstream in(tokens_path);
  for (Token token; in >> token;) tokens.push_back(token);
  ForcedPrecision forced;  // as it is served
  if (precision == "f32") forced = {ops::ActivationMode::kF32, ops::KvType::kF32};
  std::ofstream out(output, std::ios::binary);
  TeacherForcing forcing(**file, forced, static_cast<uint32_t>(tokens.size()), kThreads);
  forcing.run(tokens, kChunk, [&](uint32_t, std::span<const float> logits) {
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size_bytes()));
  });
  if (tokens.empty() || !out.flush()) {
    std::fprintf(stderr, "%s has no tokens, or %s cannot be written\n", tokens_path, output);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace kvasir::test

int main(int argc, char** argv) {
  const std::string_view precision = argc == 5 ? argv[3] : "";
  if (precision != "served" && precision != "f32") {
    std::fprintf(stderr, "usage: write_logits MODEL TOKENS served|f32 OUTPUT\n");
    return 2;
  }
  return kvasir::test::write_logits(argv[1], argv[2], precision, argv[4]);
}
