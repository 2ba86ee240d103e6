// From a model file to its ModelSpec, by the architecture that the file names.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/architectures/model_spec.h"
#include "model/files/gguf.h"

namespace kvasir {

// The names, sorted.
std::vector<std::string_view> known_architectures();

// kUnsupported: another architecture, or a variant that this program would compute wrongly; the message
// names it. kNotFound, kInvalidArgument, kCorrupt: metadata that is missing or makes no sense.
Result<ModelSpec> read_model_spec(const Gguf& file);

}  // namespace kvasir
