// A model as a folder of Hugging Face: config.json, *.safetensors, and the files of its tokenizer.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/files/gguf.h"
#include "model/tokenizers/tokenizer_data.h"
#include "model/tokenizers/tokenizer_json.h"

namespace kvasir {

// The files' bytes: views. Empty where the folder has no such file.
struct FolderFiles : TokenizerFiles {
  std::string path;          // of the folder; begins every message
  std::string_view config;   // config.json
  std::string_view pooling;  // 1_Pooling/config.json
  std::string_view index;    // model.safetensors.index.json
  struct Weights {
    std::string name;
    std::span<const std::byte> bytes;
  };
  std::vector<Weights> weights;  // *.safetensors
};

// The files with weights that an index names, sorted. `origin` is the index's path. kCorrupt: no index, or a
// name that is not that of a file in the same folder.
Result<std::vector<std::string>> weight_files_of_index(std::string_view index, const std::string& origin);

struct FolderContainer {
  Gguf container;
  std::vector<std::string> warnings;  // one line each
};

// The folder as a GGUF file of the model would have it: the same keys and names of tensors, and views of the
// same data, with these differences:
// - kvasir.split_pairs is true: Q's and K's rows are in the order of the folder, that of RoPE's halves; in
//   GGUF files of llama, mistral3, granite and smollm3 they are in the order of its pairs;
// - kvasir.layer_windows, kvasir.layer_ropes [layers] and kvasir.query_pre_attn_scalar say what GGUF files
//   leave to the architecture's name (SpecReader::read_exact);
// - there are no keys of a tokenizer: read_folder_tokenizer() reads it.
// kUnsupported: an architecture, a type or a field of the configuration that this program would compute
// wrongly; the message names it. kCorrupt, kInvalidArgument: what is missing, or makes no sense. REQUIRES:
// the files' bytes outlive the container.
Result<FolderContainer> read_model_folder(const FolderFiles& files);

// With as many tokens as there are rows of the embedding. Errors as of read_tokenizer_json().
Result<TokenizerData> read_folder_tokenizer(const FolderFiles& files, size_t rows);

}  // namespace kvasir
