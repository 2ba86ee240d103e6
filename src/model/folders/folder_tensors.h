// From the tensors of a folder to those that a GGUF file of the model has. Internal to this folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/folders/folder_config.h"
#include "model/folders/safetensors.h"

namespace kvasir {

// A file of weights, read.
struct WeightsFile {
  std::string path;
  SafetensorsFile content;
};

// Adds all tensors of the files to config.out. Those of images are left out, with a warning. `tied` is what
// the configuration says about tie_word_embeddings, if anything. kUnsupported: a tensor whose role is not
// known. kCorrupt: a tensor that the architecture needs is missing, or there twice.
Status add_folder_tensors(const std::vector<WeightsFile>& files, std::optional<bool> tied,
                          FolderConfig& config, std::vector<std::string>& warnings);

}  // namespace kvasir
