#include "model/tokenizers/pieces_of_merges.h"

#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "model/files/gguf.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kPieceSpace = "\u2581";

class ScoreFinder {
 public:
  explicit ScoreFinder(const TokenizerData& data) : data_(data) {
    for (size_t i = 0; i < data.tokens.size(); ++i) {
      if (merges_to(i)) ids_.emplace(data.tokens[i], static_cast<int32_t>(i));
    }
  }

  Result<std::vector<float>> run() {
    for (const std::string& line : data_.merges) KV_RETURN_IF_ERROR(add(line));
    for (const auto& [text, id] : ids_) KV_RETURN_IF_ERROR(check_cuts(text, id));
    std::vector<float> scores(data_.tokens.size());
    size_t others = pieces_;
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto place = place_.find(static_cast<int32_t>(i));
      scores[i] = -static_cast<float>(place != place_.end() ? place->second : others++);
    }
    return scores;
  }

 private:
  TokenType type(size_t id) const {
    return data_.token_types.empty() ? TokenType::kNormal : static_cast<TokenType>(data_.token_types[id]);
  }
  bool merges_to(size_t id) const {
    return type(id) == TokenType::kNormal || type(id) == TokenType::kUserDefined ||
           type(id) == TokenType::kUnused;
  }
  int32_t find(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? -1 : found->second;
  }

  Status add(std::string_view line);
  Status check_cuts(std::string_view text, int32_t id) const;

  const TokenizerData& data_;
  std::unordered_map<std::string_view, int32_t> ids_;  // of the tokens that merging may make
  std::set<std::pair<int32_t, int32_t>> pairs_;
  std::unordered_map<int32_t, size_t> place_;  // of the pieces that merges make, from the best on
  size_t pieces_ = 0;
  int32_t last_ = -1;
};

Status ScoreFinder::add(std::string_view line) {
  constexpr int kMostSpaces = 64;
  int tries = 0;
  for (size_t space = line.find(' ', 1); space != std::string_view::npos && tries < kMostSpaces; ++tries) {
    const int32_t left = find(line.substr(0, space)), right = find(line.substr(space + 1));
    const int32_t whole = find(std::string(line.substr(0, space)).append(line.substr(space + 1)));
    space = line.find(' ', space + 1);
    if (left < 0 || right < 0 || whole < 0) continue;
    pairs_.emplace(left, right);
    if (whole == last_) return {};
    last_ = whole;
    if (place_.emplace(whole, pieces_++).second) return {};
    return error(ErrorCode::kUnsupported,
                 "the merges that make the token {} are not neighbours, and SentencePiece has one score for "
                 "them",
                 gguf_quoted(data_.tokens[static_cast<size_t>(whole)]));
  }
  return error(ErrorCode::kCorrupt, "the merge {} names a token that is not in the vocabulary",
               gguf_quoted(line));
}

// SentencePiece merges any pair whose union is a piece, characters that are no tokens among them.
Status ScoreFinder::check_cuts(std::string_view text, int32_t id) const {
  // Text that is a token of its own wherever it stands does not come to be merged; but spaces become marks
  // only after such tokens are found.
  if (type(static_cast<size_t>(id)) == TokenType::kUserDefined &&
      text.find(kPieceSpace) == std::string_view::npos)
    return {};
  const size_t first = text.empty() ? 0 : decode_utf8(text, 0).length;
  for (size_t cut = first; cut < text.size();) {
    const size_t length = decode_utf8(text, cut).length;
    const int32_t left = find(text.substr(0, cut)), right = find(text.substr(cut));
    const bool merges = (left >= 0 || cut == first) && (right >= 0 || cut + length == text.size());
    if (merges && !pairs_.contains({left, right})) {
      return error(ErrorCode::kUnsupported,
                   "the token {} is not merged of {} and {}, as SentencePiece would do", gguf_quoted(text),
                   gguf_quoted(text.substr(0, cut)), gguf_quoted(text.substr(cut)));
    }
    cut += length;
  }
  return {};
}

}  // namespace

Result<std::vector<float>> scores_of_merges(const TokenizerData& data) {
  KV_CHECK(data.model == TokenizerModel::kTextBpe, "model={}", static_cast<int>(data.model));
  return ScoreFinder(data).run();
}

}  // namespace kvasir
