// How one vector is made of a prompt's hidden rows: its embedding.
#pragma once

#include <cstdint>

namespace kvasir {

// A hidden row is what the output layer reads of a token: the residual stream after the last norm, [dim].
enum class Pooling : uint8_t {
  kNone,
  kLast,  // the row of the last token
  kMean,  // the mean of the rows of all tokens
};

}  // namespace kvasir
