// Files of requests with the lengths of their outputs: what is read, what is kept, and what is refused.
#include "apps/predictor/length_trace.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace kvasir {
namespace {

Result<std::vector<TracedRequest>> parse(const std::string& text) {
  std::istringstream in(text);
  return parse_length_trace(in, "trace");
}

TEST(LengthTrace, ReadsEachKindOfLine) {
  const auto parsed =
      parse(R"({"messages": [{"role": "user", "content": "What is a raven?"}], "temperature": 0.7}

{"prompt": "A raven is", "top_p": 0.5, "output_tokens": 9, "finish_reason": "length", "again": [3, 4], "kind": "essay"}
)");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed->size(), 2u);
  const TracedRequest& first = parsed->at(0);
  ASSERT_EQ(first.messages.size(), 1u);
  EXPECT_EQ(first.messages[0].second, "What is a raven?");
  EXPECT_EQ(first.temperature, 0.7);
  EXPECT_EQ(first.top_p, 1);
  EXPECT_EQ(first.output_tokens, 0u);
  const TracedRequest& second = parsed->at(1);
  EXPECT_EQ(second.prompt, "A raven is");
  EXPECT_EQ(second.output_tokens, 9u);
  EXPECT_TRUE(second.cut);
  EXPECT_EQ(second.again, (std::vector<uint32_t>{3, 4}));
}

TEST(LengthTrace, WhatIsWrittenIsReadAgain) {
  const auto parsed = parse(R"({"prompt": "a", "kind": {"of": ["its", "own"]}, "output_tokens": 5}
{"messages": [{"role": "user", "content": "\u00e9"}], "again": [7]})");
  ASSERT_TRUE(parsed.ok());
  const std::string text = length_trace_text(*parsed);
  EXPECT_NE(text.find(R"("kind":{"of":["its","own"]})"), std::string::npos);
  const auto again = parse(text);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(length_trace_text(*again), text);
}

TEST(LengthTrace, NamesTheLineAndTheFieldThatAreWrong) {
  for (const auto& [line, named] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "not a JSON object"},
           {"{", "not a JSON object"},
           {"{}", "\"prompt\" is missing"},
           {R"({"prompt": "a", "x": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
            "nested deeper"},
           {R"({"prompt": 3})", "\"prompt\""},
           {R"({"messages": []})", "\"messages\""},
           {R"({"messages": [{"role": "user"}]})", "\"messages\""},
           {R"({"prompt": "a", "temperature": "hot"})", "\"temperature\""},
           {R"({"prompt": "a", "temperature": -1})", "\"temperature\""},
           {R"({"prompt": "a", "top_p": 2})", "\"top_p\""},
           {R"({"prompt": "a", "output_tokens": 0})", "\"output_tokens\""},
           {R"({"prompt": "a", "output_tokens": 1.5})", "\"output_tokens\""},
           {R"({"prompt": "a", "output_tokens": 99999999999999999999})", "\"output_tokens\""},
           {R"({"prompt": "a", "again": 4})", "\"again\""},
           {R"({"prompt": "a", "again": [0]})", "\"again\""},
           {R"({"prompt": "a", "finish_reason": "bored"})", "\"finish_reason\""}}) {
    const auto parsed = parse("{\"prompt\": \"a\"}\n\n" + line);
    ASSERT_FALSE(parsed.ok()) << line;
    EXPECT_EQ(parsed.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find("trace:3"), std::string::npos) << parsed.status().message();
    EXPECT_NE(parsed.status().message().find(named), std::string::npos) << parsed.status().message();
  }
}

TEST(LengthTrace, AFileThatIsNotThereIsNamed) {
  const auto loaded = load_length_trace("/nowhere/trace.jsonl");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(loaded.status().message().find("/nowhere/trace.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
