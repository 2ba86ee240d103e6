// Calls and reasoning in answers, whole and streamed, from the body of a request on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "server/running_server.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::MatchesRegex;

const OutputFormats kFormats{ToolFormat::kHermes, ReasoningFormat::kThink, "tools"};
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
constexpr const char* kOutput =
    "<think>\nLet me see.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
    "\"\xc3\xa9\"}}\n"
    "</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

struct Asker {
  explicit Asker(const std::string& output, const OutputFormats& formats = kFormats)
      : server(say(output), test_options(), true, formats) {}
  json whole(const std::string& fields) {
    const HttpAnswer answer = server.ask(post(kChatPath, chat_body(fields)));
    status = answer.status;
    return json::parse(answer.body);
  }
  json choice(const std::string& fields) { return whole(fields)["choices"][0]; }
  // Of the first choice, with the usage behind them if it is asked for.
  std::vector<json> chunks(const std::string& fields) {
    const HttpAnswer answer = server.ask(post(kChatPath, chat_body(fields + R"(,"stream":true)")));
    std::vector<json> out;
    for (const std::string& e : events(answer.body)) {
      if (e != "[DONE]") out.push_back(json::parse(e));
    }
    return out;
  }
  RunningServer server;
  int status = 0;
};

TEST(ToolAnswers, AWholeAnswerHasThem) {
  Asker ask(kOutput);
  const json answer = ask.whole(kTools);
  const json& choice = answer["choices"][0];
  // Each byte is a token: those from the end of the first mark to before the end of the second.
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 21);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json& message = choice["message"];
  EXPECT_EQ(message["content"], "I look.");
  EXPECT_EQ(message["reasoning"], "Let me see.");
  EXPECT_EQ(message["reasoning_content"], "Let me see.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], json({{"name", "f"}, {"arguments", "{\"a\": \"\xc3\xa9\"}"}}));
  EXPECT_THAT(call["id"].get<std::string>(), MatchesRegex("call_[0-9a-f]{24}"));
  EXPECT_NE(message["tool_calls"][1]["id"], call["id"]);
}

TEST(ToolAnswers, ContentIsNullBesideACallAlone) {
  Asker ask("<tool_call>{\"name\": \"f\"}</tool_call>");
  const json message = ask.choice(kTools)["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_FALSE(message.contains("reasoning"));
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{}");
}

TEST(ToolAnswers, WithoutToolsTheTextStaysAsItIs) {
  Asker ask(kOutput);
  for (const std::string& fields :
       {std::string(R"("n":1)"), std::string(kTools) + R"(,"tool_choice":"none")"}) {
    const json choice = ask.choice(fields);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(choice["message"]["reasoning"], "Let me see.");
    EXPECT_THAT(
        choice["message"]["content"].get<std::string>(),
        testing::AllOf(testing::StartsWith("I look.\n<tool_call>"), testing::EndsWith("</tool_call>")));
  }
  EXPECT_FALSE(ask.choice(R"("include_reasoning":false)")["message"].contains("reasoning"));
}

TEST(ToolAnswers, AStreamHasThemInPieces) {
  Asker ask(kOutput);
  const std::vector<json> chunks =
      ask.chunks(std::string(kTools) + R"(,"stream_options":{"include_usage":true})");
  std::string reasoning, content, arguments[2];
  std::vector<std::string> kinds;
  for (size_t i = 1; i + 1 < chunks.size(); ++i) {
    const json& delta = chunks[i]["choices"][0]["delta"];
    const bool last = i + 2 == chunks.size();
    EXPECT_EQ(chunks[i]["choices"][0]["finish_reason"], last ? json("tool_calls") : json());
    if (delta.contains("reasoning")) {
      EXPECT_EQ(delta["reasoning"], delta["reasoning_content"]);
      reasoning += delta["reasoning"].get<std::string>();
    }
    if (delta.contains("content")) content += delta["content"].get<std::string>();
    if (!delta.contains("tool_calls")) continue;
    ASSERT_EQ(delta["tool_calls"].size(), 1u);
    const json& piece = delta["tool_calls"][0];
    const auto index = piece["index"].get<size_t>();
    ASSERT_LT(index, 2u);
    if (piece.contains("id")) {
      EXPECT_EQ(arguments[index], "");
      EXPECT_EQ(piece["type"], "function");
      EXPECT_EQ(piece["function"], json({{"name", "f"}, {"arguments", ""}}));
    } else {
      EXPECT_EQ(piece["function"].size(), 1u);
      arguments[index] += piece["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(reasoning, "Let me see.");
  EXPECT_EQ(content, "I look.");
  EXPECT_EQ(arguments[0], "{\"a\": \"\xc3\xa9\"}");
  EXPECT_EQ(arguments[1], "{}");
  EXPECT_EQ(chunks.back()["choices"], json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], std::string(kOutput).size() + 1);
}

TEST(ToolAnswers, ACallThatIsCutByTheLengthIsAsFarAsItCame) {
  Asker ask("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}");
  const json choice = ask.choice(std::string(kTools) + R"(,"max_tokens":42)");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\"");
}

TEST(ToolAnswers, AStopStringEndsThem) {
  Asker ask("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}");
  const json cut = ask.choice(std::string(kTools) + R"(,"stop":"1")");
  EXPECT_EQ(cut["finish_reason"], "stop") << "the call is not whole";
  EXPECT_EQ(cut["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": ");
  const json before = ask.choice(std::string(kTools) + R"(,"stop":"name")");
  EXPECT_EQ(before["finish_reason"], "stop");
  EXPECT_EQ(before["message"]["content"], "<tool_call>{\"");
}

TEST(ToolAnswers, AMalformedCallIsContent) {
  Asker ask("Hm <tool_call>{\"name\": }</tool_call>");
  const json choice = ask.choice(kTools);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], "Hm <tool_call>{\"name\": }</tool_call>");
}

TEST(ToolAnswers, OneCallEndsTheAnswerWithoutParallelCalls) {
  Asker ask(kOutput);
  const json answer = ask.whole(std::string(kTools) + R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(answer["choices"][0]["message"]["tool_calls"].size(), 1u);
  const std::string output = kOutput;
  EXPECT_EQ(answer["usage"]["completion_tokens"], output.find("\n</tool_call>"));
  EXPECT_TRUE(ask.server.backend().wait_for([](const FakeBackend& b) { return b.cancelled().size() == 1; }));
}

TEST(ToolAnswers, EachChoiceHasCallsOfItsOwn) {
  Asker ask(kOutput);
  const json choices = ask.whole(std::string(kTools) + R"(,"n":3)")["choices"];
  std::set<std::string> ids;
  for (const json& choice : choices) {
    for (const json& call : choice["message"]["tool_calls"]) ids.insert(call["id"]);
  }
  EXPECT_EQ(ids.size(), 6u);
}

TEST(ToolAnswers, LogprobsAreThoseOfAllTokens) {
  Asker ask(kOutput);
  const std::string fields = std::string(kTools) + R"(,"logprobs":true)";
  const size_t tokens = ask.choice(fields)["logprobs"]["content"].size();
  EXPECT_EQ(tokens, std::string(kOutput).size());
  size_t streamed = 0;
  for (const json& chunk : ask.chunks(fields)) {
    const json& logprobs = chunk["choices"][0]["logprobs"];
    if (!logprobs.is_null()) streamed += logprobs["content"].size();
  }
  EXPECT_EQ(streamed, tokens);
}

TEST(ToolAnswers, AModelWithoutToolsRefusesThem) {
  Asker ask("a", {});
  const json error = ask.whole(kTools)["error"];
  EXPECT_EQ(ask.status, 400);
  EXPECT_EQ(error["param"], "tools");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("the chat template of this model has no tools"));
  EXPECT_EQ(ask.choice(std::string(kTools) + R"(,"tool_choice":"none")")["message"]["content"], "a");
}

}  // namespace
}  // namespace kvasir::test
