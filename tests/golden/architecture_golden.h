// What transformers computes for a tiny model of each architecture (make_architectures.py), and that model
// as files: as Hugging Face's folder, and as GGUF.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "contract/ids.h"
#include "support/gguf_builder.h"

namespace kvasir::test {

struct ArchitectureGolden {
  std::string name;                                     // of architecture_<name>.txt
  std::string config;                                   // config.json, as one line
  std::map<std::string, std::vector<uint64_t>> shapes;  // by Hugging Face's names; [rows, columns]
  std::map<std::string, std::vector<float>> tensors;
  std::vector<Token> tokens;
  std::vector<Token> ids;                         // the tokens whose logits there are
  std::map<uint32_t, std::vector<float>> logits;  // [ids] by position
  double scale = 0;                               // the root mean square of these logits
};
// For GoogleTest's messages.
void PrintTo(const ArchitectureGolden& golden, std::ostream* out);

// The names of all goldens, sorted.
std::vector<std::string> architecture_names();
// Fails the test where the tensors made here have other bytes than those that the golden was made of.
ArchitectureGolden read_architecture_golden(const std::string& name);

// The values of a tensor by its name, independent of any other: nearly normal. Each operation is rounded to
// f32, so that numpy makes the same ones.
std::vector<float> tensor_values(std::string_view name, size_t count, float mean, float deviation);

// Writes config.json and model.safetensors into `folder`, which exists.
void write_model_folder(const ArchitectureGolden& golden, const std::filesystem::path& folder);
// The same model with the names, the order of rows and the metadata that llama.cpp's converter writes,
// without a tokenizer. REQUIRES: has_gguf_form().
GgufBuilder architecture_as_gguf(const ArchitectureGolden& golden);
bool has_gguf_form(const ArchitectureGolden& golden);

}  // namespace kvasir::test
