// Which tensor of a model gets which type: the mixtures that llama.cpp's quantiser writes under the same
// names.
//
// Data and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/architectures/model_spec.h"
#include "ops/numerics.h"

namespace kvasir {

struct QuantizationRecipe {
  std::string_view name;  // "q4_k_m"
  ops::WeightType type;   // of most matrices
  uint32_t file_type;     // GGUF's general.file_type
};

// nullptr: none of this name.
const QuantizationRecipe* find_recipe(std::string_view name);
// All names, in the order of the documentation.
std::vector<std::string> recipe_names();

// What the recipe makes of a tensor that is stored as `stored`, a type's name in GGUF: its type there, too.
//
//   - A matrix named *.weight, except a table of positions and a router: the recipe's type or that of its
//     mixture.
//   - Where rows are not whole blocks: Q4_K -> Q5_0, Q5_K -> Q5_1, Q6_K -> Q8_0, and Q2_K, Q3_K, IQ4_XS ->
//     IQ4_NL; where they are not multiples of 32 either: F16.
//   - Of F16 and BF16 all else: F32. Any other tensor stays.
//
// `name` is GGUF's, `columns` the values of a row, `dimensions` as in GgufTensor.
std::string_view type_in_recipe(const QuantizationRecipe& recipe, const ModelSpec& spec,
                                std::string_view name, uint32_t dimensions, uint64_t columns,
                                std::string_view stored);

}  // namespace kvasir
