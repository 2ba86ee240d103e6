#include "model/tokenizers/pieces_of_merges.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/files/gguf.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kPieceSpace = "\u2581";

// How often `text` is the character; 0: it is other text.
size_t run_length(std::string_view text, std::string_view character) {
  size_t count = 0;
  for (; text.starts_with(character) && !text.empty(); ++count) text.remove_prefix(character.size());
  return text.empty() ? count : 0;
}

class ScoreFinder {
 public:
  explicit ScoreFinder(const TokenizerData& data) : data_(data), taken_(data.merges.size()) {
    for (size_t i = 0; i < data.tokens.size(); ++i) {
      if (merges_to(i)) ids_.emplace(data.tokens[i], static_cast<int32_t>(i));
    }
  }

  Result<std::vector<float>> run() {
    add_runs();
    for (size_t i = 0; i < data_.merges.size(); ++i) {
      if (!taken_[i]) KV_RETURN_IF_ERROR(add(data_.merges[i]));
    }
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
  struct Run {
    std::string_view character;
    size_t longest = 0;                // in characters
    std::map<size_t, size_t> growing;  // by length: which of `merges` adds the last character
    std::vector<size_t> merges;        // their ranks
    bool alone = true;

    // Every length has such a merge, and those of the longer ones come before that of two characters.
    bool grows() const {
      const auto before = [this](const auto& m) { return m.second <= growing.at(2); };
      return alone && longest == growing.size() + 1 && growing.contains(2) &&
             std::all_of(growing.begin(), growing.end(), before);
    }
  };

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

  void add_runs();
  Run* run_of(std::string_view line);
  Status add(std::string_view line);
  Status check_cuts(std::string_view text, int32_t id) const;

  const TokenizerData& data_;
  std::unordered_map<std::string_view, int32_t> ids_;  // of the tokens that merging may make
  std::map<std::string_view, Run> runs_;               // by character
  std::vector<bool> taken_;                            // by rank: merges of runs that grow
  std::set<std::pair<int32_t, int32_t>> pairs_;
  std::unordered_map<int32_t, size_t> place_;  // of the pieces that merges make, from the best on
  size_t pieces_ = 0;
  int32_t last_ = -1;
};

// Finds the runs of one character that grow by themselves: no merge before their last one makes a piece of
// the character and others, and longer runs grow before new ones begin. Then single characters become the
// longest piece from the left, and again, both by rank and by scores that are the better, the longer the run
// is; and whether that happens before other merges or between them makes no difference. Takes their merges
// out.
void ScoreFinder::add_runs() {
  std::set<std::string_view> mixed;  // characters of pieces that are no runs
  for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const std::string_view line = data_.merges[rank];
    if (Run* run = run_of(line); run == nullptr) {
      for (size_t at = 0; at < line.size();) {
        const size_t length = decode_utf8(line, at).length;
        mixed.insert(line.substr(at, length));
        at += length;
      }
    } else {
      run->alone = run->alone && !mixed.contains(run->character);
      run->merges.push_back(rank);
    }
  }
  for (auto& [character, run] : runs_) {
    if (!run.grows()) continue;
    std::string text(character);
    std::vector<int32_t> ids;
    while (ids.size() < run.growing.size()) ids.push_back(find(text += character));
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) place_.emplace(*id, pieces_++);
    for (const size_t rank : run.merges) taken_[rank] = true;
  }
}

// Of a merge of two runs of one character; nullptr: the merge is none.
ScoreFinder::Run* ScoreFinder::run_of(std::string_view line) {
  const size_t space = line.find(' ', 1);
  if (space == std::string_view::npos) return nullptr;
  const std::string_view character = line.substr(0, decode_utf8(line, 0).length);
  const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
  const size_t first = run_length(left, character), second = run_length(right, character);
  if (first == 0 || second == 0) return nullptr;
  const std::pair pair(find(left), find(right));
  if (pair.first < 0 || pair.second < 0 || find(std::string(left).append(right)) < 0) return nullptr;
  Run& run = runs_[character];
  run.character = character;
  run.longest = std::max(run.longest, first + second);
  if (second == 1) run.growing.emplace(first + 1, run.merges.size());
  pairs_.insert(pair);
  return &run;
}

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
