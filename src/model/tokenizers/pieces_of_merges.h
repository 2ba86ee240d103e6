// A tokenizer of characters whose pairs merge by rank, said in SentencePiece's way: by a score of each piece.
//
// Folders of Llama 2, Mistral and Gemma have what `transformers` made of a SentencePiece model: of each piece
// all ways to cut it in two, best score first. This turns that back.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/tokenizers/tokenizer_data.h"

namespace kvasir {

// A score of each token, with which SentencePiece's algorithm merges the pairs that the ranks merge, in their
// order: pieces that merges make in the order of their ranks, then the others. Two pairs that make the same
// piece have one score, so where they overlap ("ab" "a" "ba") the left one wins, whatever their ranks. Runs
// of one character (Gemma's spaces, tabs and line ends) may come first and in any order of their merges, if
// longer ones grow before new ones begin. kUnsupported: no scores do that, because a piece's merges are not
// neighbours by rank, or because a pair that makes a piece is no merge. kCorrupt: a merge names a token that
// is not there. REQUIRES: data.model is kTextBpe.
Result<std::vector<float>> scores_of_merges(const TokenizerData& data);

}  // namespace kvasir
