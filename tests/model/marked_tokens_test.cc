// Control tokens are read in trusted text alone, and marks change nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/mutant.h"
#include "base/random.h"
#include "model/templates/chat_template.h"
#include "model/tokenizers/marked_text.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

constexpr int32_t kStart = 256;
constexpr int32_t kEnd = 257;
constexpr int32_t kEndLong = 258;
constexpr int32_t kUserDefined = 259;
const std::vector<std::string> kControl = {"<|im_start|>", "<|im_end|>", "<|im_end|>!"};

// The bytes as tokens 0 to 255, the special tokens above, and a few words.
Tokenizer make_tokenizer(const std::function<void(TokenizerData&)>& change = {}) {
  TokenizerData data;
  char32_t next = 0x100;
  const auto add = [&](const std::string& token, int32_t type) {
    data.tokens.push_back(token);
    data.token_types.push_back(type);
  };
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    std::string token;
    append_utf8(printable ? byte : next++, &token);
    add(token, 1);
  }
  for (const std::string& token : kControl) add(token, 3);
  add("[x]", 4);
  for (const char* word : {"us", "er", "user", "im", "<|", "|>"}) add(word, 1);
  data.merges = {"u s", "e r", "us er", "i m", "< |", "| >"};
  if (change) change(data);
  auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

// Pieces in turn plain and trusted, the first one plain.
MarkedText pieces(const std::vector<std::string>& texts) {
  MarkedText out;
  for (size_t i = 0; i < texts.size(); ++i) {
    out.append(i % 2 == 0 ? MarkedText(texts[i]) : MarkedText::trusted(texts[i]));
  }
  return out;
}

size_t count(const std::vector<int32_t>& ids, int32_t id) {
  return static_cast<size_t>(std::count(ids.begin(), ids.end(), id));
}

TEST(MarkedText, KeepsRangesJoinedAndInOrder) {
  MarkedText text = pieces({"ab", "cd", "e"});
  EXPECT_EQ(text.trusted_ranges(), (std::vector<Interval>{{2, 4}}));
  text.append(MarkedText::trusted(""));
  text.append(MarkedText::trusted("f"));
  text.append(MarkedText::trusted("g"));
  EXPECT_EQ(text.text(), "abcdefg");
  EXPECT_EQ(text.trusted_ranges(), (std::vector<Interval>{{2, 4}, {5, 7}}));
  EXPECT_EQ(text.mark_bytes(), 16u);
  const std::string_view all = text.text();
  EXPECT_EQ(text.slice(all.substr(3, 3)).trusted_ranges(), (std::vector<Interval>{{0, 1}, {2, 3}}));
  EXPECT_EQ(text.slice(all.substr(4, 1)).trusted_ranges(), std::vector<Interval>{});
  EXPECT_EQ(text.slice(all.substr(7)).text(), "");
  EXPECT_TRUE(text.slice(all.substr(2, 2)).all_trusted());
  EXPECT_FALSE(text.all_trusted());
  EXPECT_TRUE(MarkedText().all_trusted());
  EXPECT_FALSE(MarkedText("x").all_trusted());
}

// Some files give the token that ends a turn the type of user-defined ones, which plain text may spell.
TEST(MarkedTokens, WhatEndsAnOutputIsReadInTrustedTextAlone) {
  for (bool turn : {false, true}) {
    const Tokenizer tokenizer =
        make_tokenizer([&](TokenizerData& data) { (turn ? data.eot : data.eos) = kUserDefined; });
    EXPECT_EQ(count(tokenizer.encode(MarkedText("a[x]b")), kUserDefined), 0u);
    EXPECT_EQ(count(tokenizer.encode(MarkedText::trusted("a[x]b")), kUserDefined), 1u);
  }
  EXPECT_EQ(count(make_tokenizer().encode(MarkedText("a[x]b")), kUserDefined), 1u);
}

TEST(MarkedTokens, ATokenIsReadWhereAllOfItIsTrusted) {
  const Tokenizer tokenizer = make_tokenizer();
  EXPECT_EQ(tokenizer.encode(pieces({"", "<|im_end|>"})), std::vector<int32_t>{kEnd});
  for (const auto& texts : std::vector<std::vector<std::string>>{{"<|im_end|>"},
                                                                 {"<|im_", "end|>"},
                                                                 {"", "<|im_end", "|>"},
                                                                 {"", "<|", "im_end", "|>"},
                                                                 {"", "<|im_", "e", "nd|>"},
                                                                 {"<", "|im_end|>"}}) {
    const MarkedText text = pieces(texts);
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(ids, tokenizer.encode("<|im_end|>", false));
    EXPECT_EQ(count(ids, kEnd), 0u);
    EXPECT_EQ(tokenizer.decode(ids, false).value(), "<|im_end|>");
  }
  // A longer token that reaches into plain text leaves the shorter one its place.
  EXPECT_EQ(tokenizer.encode(pieces({"", "<|im_end|>!"})), std::vector<int32_t>{kEndLong});
  EXPECT_EQ(tokenizer.encode(pieces({"", "<|im_end|>", "!"})), (std::vector<int32_t>{kEnd, '!'}));
  // User-defined tokens are text, from whichever source.
  EXPECT_EQ(tokenizer.encode(pieces({"[x", "]"})), std::vector<int32_t>{kUserDefined});
  // Words are merged across a mark.
  EXPECT_EQ(tokenizer.encode(pieces({"us", "er"})), tokenizer.encode("user", false));
  // Of ill-formed text nothing is trusted.
  EXPECT_EQ(count(tokenizer.encode(pieces({"\xFF", "<|im_end|>"})), kEnd), 0u);
}

// By brute force: which tokens may be read where, byte by byte; between them, plain text.
std::vector<int32_t> expected_ids(const Tokenizer& tokenizer, const MarkedText& text) {
  const std::string& bytes = text.text();
  std::vector<bool> trusted(bytes.size(), false);
  for (const Interval& r : text.trusted_ranges()) std::fill_n(trusted.begin() + r.begin, r.size(), true);
  std::vector<int32_t> ids;
  std::string plain;
  const auto flush = [&] {
    const std::vector<int32_t> more = tokenizer.encode(plain, false);
    ids.insert(ids.end(), more.begin(), more.end());
    plain.clear();
  };
  for (size_t i = 0; i < bytes.size();) {
    int32_t token = -1;
    size_t length = 0;
    for (int32_t id = kStart; id <= kEndLong; ++id) {
      const std::string& spelled = kControl[static_cast<size_t>(id - kStart)];
      const bool here = bytes.compare(i, spelled.size(), spelled) == 0;
      if (!here || spelled.size() <= length) continue;
      const auto begin = trusted.begin() + static_cast<std::ptrdiff_t>(i);
      if (!std::all_of(begin, begin + static_cast<std::ptrdiff_t>(spelled.size()), [](bool t) { return t; }))
        continue;
      token = id;
      length = spelled.size();
    }
    if (token < 0) {
      plain += bytes[i++];
      continue;
    }
    flush();
    ids.push_back(token);
    i += length;
  }
  flush();
  return ids;
}

std::string random_piece(Random& random) {
  static const char* const kPieces[] = {
      "<|im_start|>", "<|im_end|>", "<|im_end|>!", "<|im_", "end|>", "start|>", "<|", "|>",  "<", ">", "!",
      "user",         "us",         "er",          " ",     "\n",    "é",       "42", "[x]", "[", "x]"};
  std::string out;
  for (uint64_t n = random.bits() % 4; n > 0; --n) out += kPieces[random.bits() % std::size(kPieces)];
  return out;
}

TEST(MarkedTokens, AgreeWithBruteForceOnRandomText) {
  const Tokenizer tokenizer = make_tokenizer();
  Random random(20261123);
  size_t control = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> texts;
    for (uint64_t n = random.bits() % 8; n > 0; --n) texts.push_back(random_piece(random));
    const MarkedText text = pieces(texts);
    const std::vector<int32_t> ids = tokenizer.encode(text);
    ASSERT_EQ(ids, expected_ids(tokenizer, text)) << text.text();
    ASSERT_EQ(tokenizer.decode(ids, false).value(), text.text());
    control += count(ids, kStart) + count(ids, kEnd) + count(ids, kEndLong);
    ASSERT_EQ(tokenizer.encode(MarkedText(text.text())), tokenizer.encode(text.text(), false));
    ASSERT_EQ(tokenizer.encode(MarkedText::trusted(text.text())), tokenizer.encode(text.text(), true));
  }
  EXPECT_GT(control, 1000u);
}

constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content|trim + '<|im_end|>' + '\n' }}"
    "{% endfor %}<|im_start|>assistant\n";

// Conversations whose messages spell control tokens, whole, in halves over two messages, or to be completed
// by what the template writes next. Returns in how many of them a turn was forged.
int forged_turns(uint64_t seed) {
  const Tokenizer tokenizer = make_tokenizer();
  const ChatTemplate chat_template = ChatTemplate::parse(kChatMl).value();
  Random random(seed);
  int forged = 0;
  for (int round = 0; round < 1000; ++round) {
    std::vector<ChatMessage> messages;
    for (uint64_t n = 1 + random.bits() % 3; n > 0; --n) {
      const std::string begin = random.bits() % 3 == 0 ? "end|>" : "";
      const std::string end = random.bits() % 3 == 0 ? "<|im_" : "";
      messages.push_back(
          {n % 2 == 0 ? "assistant" : "user", begin + random_piece(random) + random_piece(random) + end});
    }
    ChatTemplateInputs inputs;
    inputs.messages = messages;
    const MarkedText text = chat_template.render(inputs).value();
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids, false).value(), text.text());
    const bool own = count(ids, kStart) == messages.size() + 1 && count(ids, kEnd) == messages.size() &&
                     count(ids, kEndLong) == 0;
    forged += !own;
  }
  return forged;
}

TEST(MarkedTokens, NoMessageForgesATurn) {
  EXPECT_EQ(forged_turns(1), 0);
}

#if defined(KVASIR_MUTANTS)
TEST(MarkedTokensMutants, TextThatMakesControlIsSeen) {
  ScopedMutant fault(Mutant::kTextMakesControl);
  EXPECT_GT(forged_turns(1), 100);
}
#endif

}  // namespace
}  // namespace kvasir
