// A model in several GGUF files: NAME-00001-of-00003.gguf and so on, as llama.cpp's gguf-split writes them.
// The first has the metadata; each has some of the tensors, and the keys split.no, split.count and
// split.tensors.count.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/files/gguf.h"

namespace kvasir {

// How many parts the model has of which `file` is one; 1: it is a model by itself. kCorrupt: none at all.
Result<uint32_t> split_count(const Gguf& file);

// What the paths of all parts of the one at `path` begin with. kInvalidArgument: its name is not that of a
// part.
Result<std::string> split_stem(const std::string& path, uint32_t count);
// The path of a part, counted from 0.
std::string split_path(const std::string& stem, uint32_t number, uint32_t count);

// One container of all parts, in order. kCorrupt: they are not parts of one model, or not all of them.
// REQUIRES: parts are not empty; their bytes outlive the result.
Result<Gguf> join_split(const std::vector<Gguf>& parts);

}  // namespace kvasir
