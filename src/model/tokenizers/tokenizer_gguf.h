// A tokenizer's description out of a GGUF file's metadata.
#pragma once

#include "base/status.h"
#include "model/files/gguf.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {

// Copies what Tokenizer::create() and the chat template need; checks types, not meaning. kNotFound: the file
// has no tokenizer. kInvalidArgument: a key of the wrong type.
Result<TokenizerData> read_tokenizer_data(const Gguf& gguf);

}  // namespace kvasir
