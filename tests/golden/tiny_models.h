// The tiny models that the logits goldens were made from, one for each path through the decoder that
// Hugging Face's implementation can follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "ops/numerics.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

struct GoldenModel {
  std::string name;  // of logits_<name>.txt
  TinyLlamaShape shape;
  ops::WeightType type;
};

// For GoogleTest's messages.
void PrintTo(const GoldenModel& model, std::ostream* out);

const std::vector<GoldenModel>& golden_models();

// The model as a GGUF file, the same bytes on every machine.
std::vector<std::byte> golden_model_bytes(const GoldenModel& model);

// The 64-bit FNV-1a hash, by which a golden names the model that it is of.
uint64_t fnv1a(const std::vector<std::byte>& bytes);

}  // namespace kvasir::test
