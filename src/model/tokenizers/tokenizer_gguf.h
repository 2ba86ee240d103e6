// A tokenizer's description out of a GGUF file's metadata, and back.
#pragma once

#include "base/status.h"
#include "model/files/gguf.h"
#include "model/files/gguf_assembler.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {

// Copies what Tokenizer::create() and the chat template need; checks types, not meaning. kNotFound: the file
// has no tokenizer. kInvalidArgument: a key of the wrong type.
Result<TokenizerData> read_tokenizer_data(const Gguf& gguf);

// Adds the keys of which read_tokenizer_data() makes the same description; for a converter of folders.
// Pairs of characters that merge by rank become pieces with scores (pieces_of_merges.h). kUnsupported: GGUF
// cannot say it. That is a splitting pattern without a name, tokens that take white space along, and of
// characters whatever SentencePiece does not do.
// REQUIRES: `out` has no such keys yet.
Status write_tokenizer_data(const TokenizerData& data, GgufAssembler* out);

}  // namespace kvasir
