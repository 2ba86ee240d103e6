// Prompts: random ones by seed and number, and a file's lines with their mistakes.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "apps/bench/prompts.h"

namespace kvasir {
namespace {

int64_t words_of(const std::string& text) {
  return 1 + std::count(text.begin(), text.end(), ' ');
}

Result<std::vector<Prompt>> parse_prompts(const std::string& text) {
  std::istringstream in(text);
  return parse_custom_prompts(in, "p.jsonl", 256);
}

TEST(Prompts, LengthsAreExactWithoutARange) {
  for (const Prompt& prompt : random_prompts({50, 20, 0, 1}, 0, 10)) {
    EXPECT_EQ(prompt.words, 50);
    EXPECT_EQ(words_of(prompt.text), 50);
    EXPECT_EQ(prompt.max_tokens, 20);
  }
}

TEST(Prompts, LengthsFillTheRange) {
  std::set<int64_t> inputs;
  std::set<int64_t> outputs;
  for (const Prompt& prompt : random_prompts({10, 4, 0.3, 1}, 0, 500)) {
    EXPECT_EQ(words_of(prompt.text), prompt.words);
    inputs.insert(prompt.words);
    outputs.insert(prompt.max_tokens);
  }
  // [10 - 3, 10 + 3], and [floor(2.8), ceil(5.2)].
  EXPECT_EQ(inputs, (std::set<int64_t>{7, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(outputs, (std::set<int64_t>{2, 3, 4, 5, 6}));
}

TEST(Prompts, ALengthIsAtLeastOne) {
  for (const Prompt& prompt : random_prompts({1, 1, 0.99, 1}, 0, 100)) {
    EXPECT_GE(prompt.words, 1);
    EXPECT_GE(prompt.max_tokens, 1);
  }
}

TEST(Prompts, APromptDependsOnSeedAndNumberAlone) {
  const auto all = random_prompts({30, 8, 0.5, 7}, 0, 20);
  const auto some = random_prompts({30, 8, 0.5, 7}, 5, 3);
  for (size_t i = 0; i < some.size(); ++i) {
    EXPECT_EQ(some[i].text, all[i + 5].text);
    EXPECT_EQ(some[i].max_tokens, all[i + 5].max_tokens);
  }
  EXPECT_NE(random_prompts({30, 8, 0, 8}, 0, 1)[0].text, random_prompts({30, 8, 0, 7}, 0, 1)[0].text);
  std::set<std::string> distinct;
  for (const Prompt& prompt : all) distinct.insert(prompt.text);
  EXPECT_EQ(distinct.size(), all.size());
}

TEST(Prompts, CustomLinesAreReadInOrder) {
  const auto prompts = parse_prompts(
      "{\"prompt\": \"one two\", \"max_tokens\": 5}\r\n\n"
      "{\"prompt\": \" a\\tb \\n c\", \"output_tokens\": 6}\n"
      "{\"prompt\": \"\\u00e9\", \"max_tokens\": null, \"extra\": []}");
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_EQ((*prompts)[0].text, "one two");
  EXPECT_EQ((*prompts)[0].words, 2);
  EXPECT_EQ((*prompts)[0].max_tokens, 5);
  EXPECT_EQ((*prompts)[1].words, 3);
  EXPECT_EQ((*prompts)[1].max_tokens, 6);
  EXPECT_EQ((*prompts)[2].text, "\xc3\xa9");
  EXPECT_EQ((*prompts)[2].max_tokens, 256);
}

TEST(Prompts, AMistakeNamesItsLine) {
  const std::string good = "{\"prompt\": \"x\"}\n\n";
  for (const char* bad : {"{\"prompt\": 3}", "{}", "[1]", "{\"prompt\": \"x\"",
                          "{\"prompt\":\"x\",\"max_tokens\":0}", "{\"prompt\":\"x\",\"max_tokens\":\"9\"}"}) {
    const auto prompts = parse_prompts(good + bad + "\n");
    ASSERT_FALSE(prompts.ok()) << bad;
    EXPECT_EQ(prompts.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(prompts.status().message().starts_with("p.jsonl:3: ")) << prompts.status().message();
  }
}

TEST(Prompts, AnEmptyOrMissingFileIsAnError) {
  EXPECT_EQ(parse_prompts("\n \n").status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(load_custom_prompts("no/such/file.jsonl", 1).status().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvasir
