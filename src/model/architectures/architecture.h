// From a model file to its ModelSpec, by the architecture that the file names.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/architectures/model_spec.h"
#include "model/architectures/spec_reader.h"
#include "model/files/gguf.h"

namespace kvasir {

// One for each architecture, in a file of its family; each has a line in registry.cc. It finds in
// reader.spec() what SpecReader::read_common() reads, and fills in what differs.
Status describe_llama(SpecReader& reader);
Status describe_mistral3(SpecReader& reader);
Status describe_opt(SpecReader& reader);
Status describe_qwen2(SpecReader& reader);
Status describe_qwen3(SpecReader& reader);
Status describe_gemma2(SpecReader& reader);
Status describe_gemma3(SpecReader& reader);
Status describe_phi3(SpecReader& reader);
Status describe_smollm3(SpecReader& reader);
Status describe_granite(SpecReader& reader);
Status describe_olmo2(SpecReader& reader);

// The names, sorted.
std::vector<std::string_view> known_architectures();

// kUnsupported: another architecture, or a variant that this program would compute wrongly; the message
// names it. kNotFound, kInvalidArgument, kCorrupt: metadata that is missing or makes no sense.
Result<ModelSpec> read_model_spec(const Gguf& file);

}  // namespace kvasir
