// A folder's merges as SentencePiece's scores: the tokens of any text stay the same.
#include "model/tokenizers/pieces_of_merges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "model/files/gguf_assembler.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/tokenizer_gguf.h"
#include "model/tokenizers/utf8.h"
#include "support/take.h"

namespace kvasir {
namespace {

using test::take;
using ::testing::HasSubstr;

constexpr const char* kCharacters[] = {"\u2581", "a", "b", "c", "d", "e", ".", "\n", "\u00e9", "\u4e16", "1"};

// Three special tokens, all bytes, characters, and `pieces` unions of two earlier tokens; of each all ways to
// cut it, as `transformers` makes merges of a model of SentencePiece.
TokenizerData random_pieces(uint64_t seed, size_t pieces) {
  Random random(seed);
  TokenizerData data;
  data.model = TokenizerModel::kTextBpe;
  data.split.clear();
  data.space_prefix = seed % 2 == 0 ? SpacePrefix::kAlways : SpacePrefix::kNone;
  data.bos = 1;
  data.eos = 2;
  data.unk = 0;
  data.add_bos = seed % 3 == 0;
  const auto add = [&](std::string text, TokenType type) {
    data.tokens.push_back(std::move(text));
    data.token_types.push_back(static_cast<int32_t>(type));
  };
  for (const char* text : {"<unk>", "<s>", "</s>"}) add(text, TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  const size_t first = data.tokens.size();
  for (const char* text : kCharacters) add(text, TokenType::kNormal);
  std::unordered_map<std::string, size_t> ids;
  for (size_t i = first; i < data.tokens.size(); ++i) ids[data.tokens[i]] = i;
  while (pieces > 0) {
    const auto any = [&]() -> const std::string& {
      return data.tokens[first + random.below(data.tokens.size() - first)];
    };
    const std::string text = any() + any();
    if (text.size() > 12 || !ids.emplace(text, data.tokens.size()).second) continue;
    add(text, TokenType::kNormal);
    --pieces;
  }
  for (size_t i = first; i < data.tokens.size(); ++i) {
    const std::string& text = data.tokens[i];
    std::vector<std::pair<size_t, size_t>> cuts;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) cuts.emplace_back(left->second, right->second);
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& [l, r] : cuts) data.merges.push_back(data.tokens[l] + " " + data.tokens[r]);
  }
  add("[x]", TokenType::kUserDefined);
  return data;
}

std::string random_text(Random& random) {
  constexpr const char* kMore[] = {" ", " ", "  ", "z", "\U0001F600", "<s>", "[x]", "</s>"};
  std::string out;
  for (uint64_t n = 1 + random.below(40); n > 0; --n) {
    const uint64_t which = random.below(std::size(kCharacters) + std::size(kMore));
    out += which < std::size(kCharacters) ? kCharacters[which] : kMore[which - std::size(kCharacters)];
  }
  return out;
}

Result<TokenizerData> through_gguf(const TokenizerData& data,
                                   const std::function<void(std::vector<float>&)>& change = {}) {
  GgufAssembler out("x.gguf");
  KV_RETURN_IF_ERROR(write_tokenizer_data(data, &out));
  KV_ASSIGN_OR_RETURN(TokenizerData read, read_tokenizer_data(out.finish()));
  if (change) change(read.scores);
  return read;
}

// Of 3,000 texts, those that have other tokens.
int differing(const TokenizerData& a, const TokenizerData& b) {
  const Tokenizer one = take(Tokenizer::create(a)), other = take(Tokenizer::create(b));
  Random random(7);
  int count = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(random);
    count += one.encode(text, i % 2 == 0) == other.encode(text, i % 2 == 0) ? 0 : 1;
  }
  return count;
}

TEST(PiecesOfMerges, TheTokensOfTextsStayTheSame) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const TokenizerData data = random_pieces(seed, 200);
    const auto read = through_gguf(data);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->model, TokenizerModel::kPieces);
    EXPECT_EQ(read->add_bos, data.add_bos);
    EXPECT_EQ(differing(data, *read), 0);
  }
}

TEST(PiecesOfMerges, OtherScoresMakeOtherTokens) {
  const TokenizerData data = random_pieces(2, 200);
  EXPECT_GT(differing(data, take(through_gguf(data,
                                              [](std::vector<float>& scores) {
                                                std::reverse(scores.end() - 201, scores.end() - 1);
                                              }))),
            100);
  TokenizerData no_space = data;
  no_space.space_prefix = SpacePrefix::kNone;
  EXPECT_GT(differing(data, take(through_gguf(no_space))), 2000);
}

TEST(PiecesOfMerges, PiecesThatMergesMakeComeFirstInTheirOrder) {
  TokenizerData data;
  data.model = TokenizerModel::kTextBpe;
  data.tokens = {"a", "b", "c", "abc", "bc", "ab"};
  data.merges = {"b c", "a b", "a bc", "ab c"};
  const std::vector<float> scores = take(scores_of_merges(data));
  EXPECT_EQ(scores, (std::vector<float>{-3, -4, -5, -2, 0, -1}));
}

// As Gemma's tokenizer.json begins: runs of line ends and of spaces up to `longest` characters, all cuts of
// all runs, the longest left side first.
TokenizerData pieces_with_runs(size_t longest, TokenType line_ends) {
  TokenizerData data = random_pieces(1, 0);
  data.merges.clear();
  const std::string characters[] = {"\n", "\u2581"};
  const auto run = [](const std::string& character, size_t length) {
    std::string out;
    for (; length > 0; --length) out += character;
    return out;
  };
  for (const std::string& c : characters) {
    for (size_t length = 2; length <= longest; ++length) {
      data.tokens.push_back(run(c, length));
      data.token_types.push_back(static_cast<int32_t>(c == "\n" ? line_ends : TokenType::kUserDefined));
    }
  }
  for (size_t left = longest - 1; left > 0; --left) {
    for (size_t right = longest - left; right > 0; --right) {
      for (const std::string& c : characters) data.merges.push_back(run(c, left) + " " + run(c, right));
    }
  }
  // One that has nothing to do with line ends comes before the last of these.
  data.merges.insert(data.merges.end() - 2, "a .");
  data.tokens.emplace_back("a.");
  data.token_types.push_back(static_cast<int32_t>(TokenType::kNormal));
  for (const char* piece : {"\u2581 a", "a b", "\u2581 ab", "\u2581a b", "\n a", ". \n", "e e"}) {
    const std::string merge = piece;
    std::string whole = merge;
    whole.erase(whole.find(' '), 1);
    if (std::find(data.tokens.begin(), data.tokens.end(), whole) == data.tokens.end()) {
      data.tokens.push_back(whole);
      data.token_types.push_back(static_cast<int32_t>(TokenType::kNormal));
    }
    data.merges.push_back(merge);
  }
  return data;
}

TEST(PiecesOfMerges, RunsOfACharacterGrowAsTheyDoByRank) {
  for (const TokenType line_ends : {TokenType::kNormal, TokenType::kUserDefined}) {
    for (const size_t longest : {2, 3, 5, 9}) {
      SCOPED_TRACE(longest);
      const TokenizerData data = pieces_with_runs(longest, line_ends);
      const auto read = through_gguf(data);
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_EQ(differing(data, *read), 0);
      const Tokenizer one = take(Tokenizer::create(data)), other = take(Tokenizer::create(*read));
      for (size_t count = 1; count < 24; ++count) {
        for (const char filler : {' ', '\n'}) {
          const std::string text = "a" + std::string(count, filler) + "ab" + std::string(count, ' ');
          EXPECT_EQ(one.encode(text, false), other.encode(text, false)) << count;
        }
      }
    }
  }
}

TEST(PiecesOfMerges, RefusesRunsThatGrowInAnotherWay) {
  TokenizerData data = pieces_with_runs(4, TokenType::kNormal);
  const auto pair = std::find(data.merges.begin(), data.merges.end(), "\u2581 \u2581");
  ASSERT_NE(pair, data.merges.end());
  std::rotate(data.merges.begin(), pair, pair + 1);  // new runs begin before longer ones grow
  EXPECT_THAT(scores_of_merges(data).status().message(), HasSubstr("are not neighbours"));
  data = pieces_with_runs(4, TokenType::kNormal);
  const auto mixed = std::find(data.merges.begin(), data.merges.end(), "\u2581 a");
  ASSERT_NE(mixed, data.merges.end());
  std::rotate(data.merges.begin(), mixed, mixed + 1);  // a word takes a space before its run grows
  EXPECT_THAT(scores_of_merges(data).status().message(), HasSubstr("are not neighbours"));
}

TEST(PiecesOfMerges, RefusesWhatNoScoresSay) {
  TokenizerData data;
  data.model = TokenizerModel::kTextBpe;
  data.tokens = {"a", "b", "c", "abc", "bc", "ab"};
  const auto refused = [&](std::vector<std::string> merges) {
    data.merges = std::move(merges);
    return scores_of_merges(data).status().message();
  };
  EXPECT_THAT(refused({"b c", "a bc", "a b", "ab c"}),
              HasSubstr("the merges that make the token 'abc' are not neighbours"));
  EXPECT_THAT(refused({"b c", "a b", "a bc"}), HasSubstr("'abc' is not merged of 'ab' and 'c'"));
  EXPECT_THAT(refused({"b c", "a b", "a bc", "ab c", "c c"}), HasSubstr("the merge 'c c' names a token"));
  data.tokens.push_back("bx");  // SentencePiece makes it of "b" and a character that is no token
  EXPECT_THAT(refused({"b c", "a b", "a bc", "ab c"}), HasSubstr("'bx' is not merged of 'b' and 'x'"));
  // A token that is found before text is merged may be anything, unless a space is in it.
  data.token_types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  data.token_types.back() = static_cast<int32_t>(TokenType::kUserDefined);
  EXPECT_EQ(refused({"b c", "a b", "a bc", "ab c"}), "");
  data.tokens.back() = "b\u2581";
  EXPECT_THAT(refused({"b c", "a b", "a bc", "ab c"}), HasSubstr("is not merged of 'b' and"));
}

TEST(PiecesOfMerges, RefusesWhatGgufCannotSayOfPieces) {
  const auto refused = [](const std::function<void(TokenizerData&)>& change) {
    TokenizerData data = random_pieces(2, 20);
    change(data);
    return through_gguf(data).status().message();
  };
  EXPECT_EQ(refused([](TokenizerData&) {}), "");
  EXPECT_THAT(refused([](TokenizerData& d) { d.split = {RunStage{CharSet::kNewline}}; }),
              HasSubstr("splits text"));
  EXPECT_THAT(refused([](TokenizerData& d) { d.ignore_merges = true; }), HasSubstr("looks whole words up"));
  EXPECT_THAT(refused([](TokenizerData& d) { d.nfc = true; }), HasSubstr("composes text"));
  EXPECT_THAT(refused([](TokenizerData& d) { d.space_prefix = SpacePrefix::kFirst; }),
              HasSubstr("puts a space before some texts only"));
  EXPECT_THAT(refused([](TokenizerData& d) { d.eos.reset(); }), HasSubstr("begins or ends"));
  EXPECT_THAT(refused([](TokenizerData& d) { d.token_types[9] = 1; }), HasSubstr("no token for some bytes"));
  EXPECT_EQ(refused([](TokenizerData& d) {
              d.token_types[3 + '\t'] = 1;
              d.tokens[3 + '\t'] = "\t";
            }),
            "");
  EXPECT_THAT(refused([](TokenizerData& d) {
                d.token_types[3 + 0xe9] = 1;
                d.tokens[3 + 0xe9] = "\xe9";
              }),
              HasSubstr("no token for some bytes"));
  EXPECT_THAT(refused([](TokenizerData& d) { d.strips_right = {1}; }), HasSubstr("white space"));
}

}  // namespace
}  // namespace kvasir
