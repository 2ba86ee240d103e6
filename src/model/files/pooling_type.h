// How a model's files say that an embedding is made of a text's hidden rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/pooling.h"
#include "model/files/gguf.h"

namespace kvasir {

// GGUF's numbers (the key ARCHITECTURE.pooling_type); in folders 1_Pooling/config.json says the same.
enum class PoolingType : uint32_t { kNone = 0, kMean = 1, kFirst = 2, kLast = 3, kRank = 4 };

// kNone where the file says nothing, and with a warning where it says a type that is not offered.
// kInvalidArgument: the key has another type.
Result<Pooling> read_pooling(const Gguf& file, std::string_view architecture,
                             std::vector<std::string>& warnings);

}  // namespace kvasir
