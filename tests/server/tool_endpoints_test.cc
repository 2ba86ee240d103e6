// Tools beyond /v1/chat/completions: calls in the answers of /v1/messages and /v1/responses, and the grammars
// that make a model call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "model/grammar/grammar_compiler.h"
#include "server/handlers/anthropic.h"
#include "server/outputs/tool_grammar.h"
#include "server/running_server.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const OutputFormats kHermesFormats{ToolFormat::kHermes, ReasoningFormat::kThink, "tools"};
constexpr const char* kCalling =
    "<think>Let me see.</think>I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
    "1}}\n</tool_call>";
constexpr const char* kMessagesPath = "/v1/messages";
constexpr const char* kResponsesPath = "/v1/responses";

std::string messages_body(const std::string& more) {
  return R"({"max_tokens":400,"messages":[{"role":"user","content":"hi"}],
      "tools":[{"name":"f","input_schema":{"type":"object"}}])" +
         more + "}";
}
std::string responses_body(const std::string& more) {
  return R"({"input":"hi","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}])" + more +
         "}";
}

// A server whose outputs can be held to grammars.
class Calls : public testing::Test {
 protected:
  Calls() : server_(say(kCalling), test_options(), /*ready=*/false, kHermesFormats) {
    ModelService service = server_.service();
    service.grammars = grammars_ = std::make_shared<GrammarCompiler>(*service.tokenizer);
    server_->serve(service);
  }
  json answer(const char* path, const std::string& body) {
    const HttpAnswer got = server_.ask(post(path, body));
    EXPECT_EQ(got.status, 200) << got.body;
    return json::parse(got.body);
  }
  // What a stream has under these names, joined.
  std::string streamed(const char* path, const std::string& body, const json::json_pointer& piece) {
    std::string out;
    for (const std::string& event : events(server_.ask(post(path, body)).body)) {
      const json e = json::parse(event);
      if (e.contains(piece) && e[piece].is_string()) out += e[piece].get<std::string>();
    }
    return out;
  }

  RunningServer server_;
  std::shared_ptr<GrammarCompiler> grammars_;
};

TEST_F(Calls, OfMessages) {
  const json whole = answer(kMessagesPath, messages_body(""));
  ASSERT_EQ(whole["content"].size(), 3U) << whole;
  EXPECT_EQ(whole["content"][0]["thinking"], "Let me see.");
  EXPECT_EQ(whole["content"][1], json({{"type", "text"}, {"text", "I look."}}));
  EXPECT_EQ(whole["content"][2]["type"], "tool_use");
  EXPECT_EQ(whole["content"][2]["name"], "f");
  EXPECT_EQ(whole["content"][2]["input"], json({{"a", 1}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  const std::string stream = messages_body(R"(,"stream":true)");
  EXPECT_EQ(streamed(kMessagesPath, stream, "/delta/partial_json"_json_pointer), R"({"a": 1})");
  EXPECT_EQ(streamed(kMessagesPath, stream, "/delta/stop_reason"_json_pointer), "tool_use");
  const json cut = answer(kMessagesPath, R"({"max_tokens":77,)" + messages_body("").substr(18));
  EXPECT_EQ(cut["stop_reason"], "max_tokens") << cut;
}

TEST_F(Calls, OfResponses) {
  const json whole = answer(kResponsesPath, responses_body(""));
  ASSERT_EQ(whole["output"].size(), 3U) << whole;
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Let me see.");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(whole["output"][2]["type"], "function_call");
  EXPECT_EQ(whole["output"][2]["name"], "f");
  EXPECT_EQ(whole["output"][2]["arguments"], R"({"a": 1})");
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(streamed(kResponsesPath, responses_body(R"(,"stream":true)"), "/item/arguments"_json_pointer),
            R"({"a": 1})")
      << "of the item that is done: it begins empty";
}

TEST_F(Calls, ThatAreDemandedAreHeldToAGrammar) {
  const std::string chat =
      R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}])";
  const auto constraint = [&](const char* path, const std::string& body) {
    answer(path, body);
    return server_.backend().submitted().back().sampling.constraint;
  };
  const std::pair<const char*, std::string> demands[] = {
      {kChatPath, chat + R"(,"tool_choice":"required"})"},
      {kChatPath, chat + R"(,"tool_choice":{"type":"function","function":{"name":"f"}}})"},
      {kMessagesPath, messages_body(R"(,"tool_choice":{"type":"any"})")},
      {kMessagesPath, messages_body(R"(,"tool_choice":{"type":"tool","name":"f"})")},
      {kResponsesPath, responses_body(R"(,"tool_choice":"required")")},
      {kResponsesPath, responses_body(R"(,"tool_choice":{"type":"function","name":"f"})")},
  };
  for (const auto& [path, body] : demands) {
    const auto held = constraint(path, body);
    ASSERT_NE(held, nullptr) << body;
    const TokenMask* mask = held->after({}, kNanosPerSecond);
    ASSERT_NE(mask, nullptr);
    EXPECT_TRUE(mask->has(token_of('<'))) << body;
    EXPECT_FALSE(mask->has(token_of('I'))) << body;
  }
  EXPECT_EQ(constraint(kChatPath, chat + "}"), nullptr);
  EXPECT_EQ(constraint(kMessagesPath, messages_body("")), nullptr);
  EXPECT_EQ(constraint(kResponsesPath, responses_body("")), nullptr);
}

TEST_F(Calls, OfStrictToolsAreFreeUntilTheyBegin) {
  const std::string body =
      R"({"input":"hi","tools":[{"type":"function","name":"f","strict":true,"parameters":{"type":"object"}}]})";
  answer(kResponsesPath, body);
  const auto held = server_.backend().submitted().back().sampling.constraint;
  ASSERT_NE(held, nullptr);
  const TokenMask* mask = held->after({}, kNanosPerSecond);
  ASSERT_NE(mask, nullptr);
  EXPECT_TRUE(mask->has(token_of('I')));
  EXPECT_TRUE(mask->has(token_of('<')));
}

TEST_F(Calls, ASchemaThatIsNoneNamesTheTools) {
  const HttpAnswer got = server_.ask(
      post(kMessagesPath,
           R"({"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"tool_choice":{"type":"any"},
          "tools":[{"name":"f","input_schema":{"type":"nothing"}}]})"));
  EXPECT_EQ(got.status, 400) << got.body;
  EXPECT_THAT(got.body, HasSubstr("'tools': "));
}

// The grammar of each form can be compiled, whether or not the model thinks before it calls.
TEST_F(Calls, EachFormHasAGrammar) {
  const std::vector<ApiTool> tools = {
      {"f", "", R"({"type":"object","properties":{"a":{"type":"integer"}}})", true}, {"g", "", ""}};
  for (const ToolFormat format :
       {ToolFormat::kHermes, ToolFormat::kLlama3Json, ToolFormat::kMistral, ToolFormat::kMistralArgs,
        ToolFormat::kGranite, ToolFormat::kQwen3Xml, ToolFormat::kOpenAi}) {
    for (const Thinking thinking : {Thinking::kNo, Thinking::kMayBegin, Thinking::kInside}) {
      OutputPlan plan;
      plan.tools = format;
      plan.reasoning = format == ToolFormat::kOpenAi ? ReasoningFormat::kOpenAi : ReasoningFormat::kThink;
      plan.thinking = thinking;
      for (const OutputGrammar& grammar :
           {tool_grammar(plan, tools, true), tool_grammar(plan, tools, false), strict_grammar(plan, tools)}) {
        if (grammar.kind == OutputGrammar::Kind::kNone) continue;
        const auto compiled = grammars_->compile(grammar);
        EXPECT_TRUE(compiled.ok()) << compiled.status().message() << "\n" << grammar.text;
      }
    }
  }
}

TEST(FlatTools, KeepTheOrderOfSchemas) {
  const std::string schema = R"({"type":"object","properties":{"z":{},"a":{}}})";
  const auto parsed = parse_messages_request(
      R"({"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"output_config":{"format":{"type":"json_schema",
         "schema":)" +
      schema + R"(}},"tools":[{"name":"f","strict":true,"input_schema":)" + schema + "}]}");
  const auto* e = std::get_if<ApiError>(&parsed);
  ASSERT_EQ(e, nullptr) << e->message;
  const auto& request = std::get<ApiRequest>(parsed);
  EXPECT_EQ(request.tools.at(0).parameters, R"({"type": "object", "properties": {"z": {}, "a": {}}})");
  EXPECT_TRUE(request.tools[0].strict);
  EXPECT_EQ(request.grammar.text, schema);
}

TEST(FlatTools, OneOfANameAnotherHasIsRefused) {
  const auto parsed = parse_messages_request(
      R"({"max_tokens":9,"messages":[{"role":"user","content":"hi"}],
          "tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}]})");
  const auto* e = std::get_if<ApiError>(&parsed);
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e->param, "tools[1].name");
}

}  // namespace
}  // namespace kvasir::test
