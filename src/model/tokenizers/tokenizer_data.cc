#include "model/tokenizers/tokenizer_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace kvasir {

namespace {

void drop_outside(std::optional<int32_t>* id, size_t rows) {
  if (*id && **id >= 0 && static_cast<size_t>(**id) >= rows) id->reset();
}

void drop_outside(std::vector<int32_t>* ids, size_t rows) {
  std::erase_if(*ids, [rows](int32_t id) { return id >= 0 && static_cast<size_t>(id) >= rows; });
}

// Merges that name or make a token that is gone.
void drop_merges(TokenizerData* data, const std::vector<std::string>& gone) {
  const std::unordered_set<std::string_view> names(gone.begin(), gone.end());
  std::erase_if(data->merges, [&](const std::string& line) {
    const size_t space = line.find(' ', 1);
    if (space == std::string::npos) return false;  // create() says what is wrong with it
    const std::string_view left = std::string_view(line).substr(0, space);
    const std::string_view right = std::string_view(line).substr(space + 1);
    return names.contains(left) || names.contains(right) || names.contains(std::string(left).append(right));
  });
}

}  // namespace

Status fit_vocabulary(TokenizerData* data, size_t rows) {
  const size_t vocab = data->tokens.size();
  // Embeddings are padded to multiples of at most a few hundred rows, or by room for some thousand tokens to
  // come.
  constexpr size_t kMost = size_t{1} << 16;
  if (rows == 0 || rows > vocab + kMost) {
    return error(ErrorCode::kCorrupt,
                 "the tokenizer has {} tokens and the embedding {} rows: they are not of the same model",
                 vocab, rows);
  }
  if (data->token_types.empty()) data->token_types.assign(vocab, static_cast<int32_t>(TokenType::kNormal));
  if (rows < vocab) {
    const std::vector<std::string> gone(data->tokens.begin() + static_cast<std::ptrdiff_t>(rows),
                                        data->tokens.end());
    drop_merges(data, gone);
    for (auto* id : {&data->bos, &data->eos, &data->eot, &data->unk, &data->pad, &data->closing})
      drop_outside(id, rows);
    for (auto* ids : {&data->more_ends, &data->strips_left, &data->strips_right}) drop_outside(ids, rows);
  }
  data->tokens.resize(rows);
  data->token_types.resize(rows, static_cast<int32_t>(TokenType::kUnused));
  if (!data->scores.empty()) data->scores.resize(rows);
  for (size_t i = vocab; i < rows; ++i) data->tokens[i] = fmt::format("[PAD{}]", i);
  return Status();
}

}  // namespace kvasir
