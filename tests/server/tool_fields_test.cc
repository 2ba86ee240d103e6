// What requests say of tools, and what chat templates are given of it.
#include "server/handlers/tool_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/templates/chat_template.h"
#include "server/chat_inputs.h"
#include "server/handlers/openai.h"
#include "server/json_values.h"

namespace kvasir {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kWeather =
    R"({"type":"function","function":{"name":"weather","description":"Now","parameters":)"
    R"({"type":"object","properties":{"place":{"type":"string"},"days":{"type":"integer"}},"required":["place"]}}})";

std::variant<ApiRequest, ApiError> parse(const std::string& fields, const std::string& messages = "") {
  const std::string said = messages.empty() ? R"([{"role":"user","content":"hi"}])" : messages;
  return parse_chat_request(R"({"messages":)" + said + "," + fields + "}");
}

ApiRequest accepted(const std::string& fields, const std::string& messages = "") {
  auto parsed = parse(fields, messages);
  if (auto* e = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << fields << ": " << e->message;
    return {};
  }
  return std::get<ApiRequest>(std::move(parsed));
}

std::string tools(const std::string& list) {
  return "\"tools\":[" + list + "]";
}

TEST(ToolFields, AreRead) {
  const ApiRequest r = accepted(
      tools(std::string(kWeather) + R"(,{"type":"function","function":{"name":"now","strict":true}})") +
      R"(,"tool_choice":{"type":"function","function":{"name":"now"}},"parallel_tool_calls":false,
                  "include_reasoning":false,"chat_template_kwargs":{"z":1,"enable_thinking":false,"a":[null,"b"]})");
  ASSERT_EQ(r.tools.size(), 2u);
  EXPECT_EQ(r.tools[0].name, "weather");
  EXPECT_EQ(r.tools[0].description, "Now");
  EXPECT_FALSE(r.tools[0].strict);
  EXPECT_TRUE(r.tools[1].strict);
  EXPECT_EQ(r.tools[1].parameters, "");
  EXPECT_EQ(r.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(r.named_tool, "now");
  EXPECT_FALSE(r.parallel_tool_calls);
  EXPECT_FALSE(r.include_reasoning);
  EXPECT_EQ(json_of(r.template_variables), R"({"z": 1, "enable_thinking": false, "a": [null, "b"]})");

  const ApiRequest plain = accepted(tools(kWeather));
  EXPECT_EQ(plain.tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(plain.parallel_tool_calls);
  EXPECT_TRUE(plain.include_reasoning);
  EXPECT_EQ(accepted(tools(kWeather) + R"(,"tool_choice":"none")").tool_choice, ToolChoice::kNone);
  EXPECT_EQ(accepted(tools(kWeather) + R"(,"tool_choice":"required")").tool_choice, ToolChoice::kRequired);
  EXPECT_TRUE(accepted(R"("tools":null,"tool_choice":"auto")").tools.empty());
}

TEST(ToolFields, MembersKeepTheOrderOfTheClient) {
  const ApiRequest r = accepted(tools(kWeather));
  EXPECT_EQ(r.tools.at(0).parameters,
            R"({"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}, )"
            R"("required": ["place"]})");
}

TEST(ToolFields, AnErrorNamesItsField) {
  const auto f = [](const std::string& function) {
    return R"({"type":"function","function":)" + function + "}";
  };
  const std::string good = f(R"({"name":"f"})");
  const std::pair<std::string, std::string> wrong[] = {
      {R"("tools":{})", "tools"},
      {R"("tools":"f")", "tools"},
      {tools("7"), "tools[0].type"},
      {tools(good + R"(,{"type":"custom"})"), "tools[1].type"},
      {tools(R"({"type":"function"})"), "tools[0].function"},
      {tools(good + "," + f(R"({"name":"a"})") + "," + f("{}")), "tools[2].function.name"},
      {tools(f(R"({"name":"a b"})")), "tools[0].function.name"},
      {tools(f(R"({"name":""})")), "tools[0].function.name"},
      {tools(f("{\"name\":\"" + std::string(129, 'a') + "\"}")), "tools[0].function.name"},
      {tools(good + "," + good), "tools[1].function.name"},
      {tools(f(R"({"name":"f","description":1})")), "tools[0].function.description"},
      {tools(f(R"({"name":"f","parameters":"x"})")), "tools[0].function.parameters"},
      {tools(f(R"({"name":"f","strict":"x"})")), "tools[0].function.strict"},
      {tools(good) + R"(,"tool_choice":"any")", "tool_choice"},
      {tools(good) + R"(,"tool_choice":{"type":"allowed_tools"})", "tool_choice"},
      {tools(good) + R"(,"tool_choice":{"type":"function","function":{}})", "tool_choice.function.name"},
      {tools(good) + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})",
       "tool_choice.function.name"},
      {R"("tool_choice":{"type":"function","function":{"name":"g"}})", "tool_choice.function.name"},
      {R"("tools":[],"tool_choice":"required")", "tool_choice"},
      {tools(good) + R"(,"parallel_tool_calls":1)", "parallel_tool_calls"},
      {R"("include_reasoning":"no")", "include_reasoning"},
      {R"("chat_template_kwargs":"x")", "chat_template_kwargs"},
      {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages"},
      {R"("chat_template_kwargs":{"bos_token":"x"})", "chat_template_kwargs.bos_token"},
      {R"("functions":[{"name":"f"}])", "functions"},
  };
  for (const auto& [fields, param] : wrong) {
    const auto parsed = parse(fields);
    const auto* e = std::get_if<ApiError>(&parsed);
    ASSERT_NE(e, nullptr) << fields;
    EXPECT_EQ(e->status, 400);
    EXPECT_EQ(e->param, param) << fields;
    EXPECT_THAT(e->message, HasSubstr(param)) << fields;
  }
  EXPECT_THAT(std::get<ApiError>(parse(R"("functions":[{"name":"f"}])")).message, HasSubstr("`tools`"));
}

TEST(ToolFields, AreBounded) {
  std::string many = kWeather, of_names;
  for (size_t i = 0; i <= kMaxTools; ++i) {
    of_names += fmt::format(R"({}{{"type":"function","function":{{"name":"f{}"}}}})", i > 0 ? "," : "", i);
    if (i + 1 == kMaxTools) {
      EXPECT_EQ(accepted(tools(of_names)).tools.size(), kMaxTools);
    }
  }
  EXPECT_TRUE(std::holds_alternative<ApiError>(parse(tools(of_names))));
  const auto described = [](size_t bytes) {
    return tools(R"({"type":"function","function":{"name":"f","description":")" + std::string(bytes, 'a') +
                 "\"}}");
  };
  EXPECT_EQ(accepted(described(kMaxToolsBytes - 200)).tools.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ApiError>(parse(described(kMaxToolsBytes))));
  const auto variable = [](size_t bytes) {
    return R"("chat_template_kwargs":{"a":")" + std::string(bytes, 'a') + "\"}";
  };
  EXPECT_EQ(accepted(variable(kMaxVariablesBytes - 100)).template_variables.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ApiError>(parse(variable(kMaxVariablesBytes))));
}

constexpr const char* kHistory =
    R"([{"role":"user","content":"Weather?","name":"Ann"},
        {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
          {"id":"1","type":"function","function":{"name":"weather","arguments":"{\"place\": \"Bern\", \"days\": 2, \"at\": [1.5]}"}},
          {"id":"2","function":{"name":"now","arguments":""}},
          {"id":"3","function":{"name":"now","arguments":"{\"cut"}},
          {"id":"4","function":{"name":"now","arguments":{"a":1}}}]},
        {"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"sunny"}]}])";

TEST(ChatInputs, AreWhatTemplatesExpect) {
  ApiRequest r = accepted(tools(std::string(kWeather) + R"(,{"type":"function","function":{"name":"now"}})") +
                              R"(,"chat_template_kwargs":{"enable_thinking":false})",
                          kHistory);
  const ChatInputs made = chat_inputs(r);
  ASSERT_EQ(made.messages.size(), 3u);
  EXPECT_EQ(json_of(made.messages[0].more), R"({"name": "Ann"})");
  EXPECT_EQ(made.messages[1].content, "");
  EXPECT_EQ(json_of(made.messages[1].more),
            R"({"reasoning_content": "hm", "reasoning": "hm", "thinking": "hm", "tool_calls": [)"
            R"({"id": "1", "type": "function", "function": {"name": "weather", "arguments": )"
            R"({"place": "Bern", "days": 2, "at": [1.5]}}}, )"
            R"({"id": "2", "type": "function", "function": {"name": "now", "arguments": {}}}, )"
            R"({"id": "3", "type": "function", "function": {"name": "now", "arguments": "{\"cut"}}, )"
            R"({"id": "4", "type": "function", "function": {"name": "now", "arguments": {"a": 1}}}]})");
  r.messages[1].content = "I look.";
  EXPECT_THAT(json_of(chat_inputs(r).messages[1].more), testing::Not(testing::HasSubstr("thinking")));
  EXPECT_EQ(made.messages[2].role, "tool");
  EXPECT_EQ(made.messages[2].content, "sunny");
  EXPECT_EQ(json_of(made.messages[2].more), R"({"tool_call_id": "1"})");
  EXPECT_EQ(json_of(made.variables), R"({"enable_thinking": false})");
  EXPECT_EQ(json_of(made.tools),
            R"([{"type": "function", "function": {"name": "weather", "description": "Now", "parameters": )" +
                r.tools[0].parameters +
                R"(}}, {"type": "function", "function": {"name": "now", "parameters": )"
                R"({"type": "object", "properties": {}}}}])");
  r.tool_choice = ToolChoice::kNone;
  EXPECT_TRUE(chat_inputs(r).tools.empty()) << "the model is not told of them";
}

// gpt-oss's template asks this of a message with calls.
TEST(ChatInputs, CallsOfGptOssWithThoughtsAndContentAreRendered) {
  const auto chat_template = ChatTemplate::parse(
      "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}"
      "{{ raise_exception('content and thinking') }}{% endif %}[{{ m.thinking or m.content }}]{% endfor %}");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().message();
  ApiRequest r = accepted(tools(kWeather), kHistory);
  for (const auto& [content, expected] : {std::pair{"", "hm"}, std::pair{"I look.", "I look."}}) {
    r.messages[1].content = content;
    const ChatInputs made = chat_inputs(r);
    ChatTemplateInputs inputs;
    inputs.messages = made.messages;
    const auto text = chat_template->render(inputs);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(text->text(), fmt::format("[Weather?][{}][sunny]", expected));
  }
}

TEST(JsonValues, AreReadInTheirOrderAndWithinBounds) {
  size_t budget = 100;
  const auto read = [&](std::string_view text) {
    const auto value = template_value_of(text, budget);
    return value ? json_of(*value) : "nothing";
  };
  EXPECT_EQ(read(R"( {"b": 1, "a": {"z": "\u00e9\n", "y": -2.5e3}, "b": true} )"),
            "{\"b\": true, \"a\": {\"z\": \"\xc3\xa9\\n\", \"y\": -2500.0}}");
  EXPECT_EQ(read("18446744073709551615"), "1.8446744073709552e+19");
  EXPECT_EQ(read("[1, 2"), "nothing");
  EXPECT_EQ(read("\"\xff\""), "nothing");
  EXPECT_EQ(read("1e999"), "nothing");
  EXPECT_EQ(read(std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']')).size(),
            2 * kMaxJsonDepth);
  EXPECT_EQ(read(std::string(kMaxJsonDepth + 1, '[') + std::string(kMaxJsonDepth + 1, ']')), "nothing");
  budget = 3;
  EXPECT_EQ(read("[1,2]"), "[1, 2]");
  EXPECT_EQ(budget, 0u);
  EXPECT_EQ(read("1"), "nothing");
}

TEST(JsonValues, TheTextOfAMember) {
  constexpr std::string_view kText = R"( {"a" : [1, {"b": "}"}], "b":"x\"y" ,"c":-1.5 , "b" : null})";
  EXPECT_EQ(member_text(kText, "a"), R"([1, {"b": "}"}])");
  EXPECT_EQ(member_text(kText, "b"), "null") << "the last one counts";
  EXPECT_EQ(member_text(kText, "c"), "-1.5 ");
  EXPECT_EQ(member_text(kText, "d"), std::nullopt);
  EXPECT_EQ(member_text("{}", "a"), std::nullopt);
  for (size_t i = 0; i < kText.size(); ++i) (void)member_text(kText.substr(0, i), "z");
}

// The value is read from the text for the order of its members; the text may be that of another member.
TEST(ToolFields, ANameWithEscapesIsNoWayAroundTheChecks) {
  const auto refused = [](const std::string& fields, const char* field) {
    const auto parsed = parse(fields);
    const auto* e = std::get_if<ApiError>(&parsed);
    ASSERT_NE(e, nullptr) << fields.substr(0, 99);
    EXPECT_EQ(e->status, 400);
    EXPECT_EQ(e->param, field);
  };
  refused(R"("tools":5,"tool\u0073":[])", "tools");
  refused(R"("chat_template_kwargs":[],"chat_template_kwarg\u0073":{})", "chat_template_kwargs");
  std::string many;
  for (size_t i = 0; i <= kMaxTools; ++i) {
    many += fmt::format(R"({}{{"type":"function","function":{{"name":"f{}"}}}})", i == 0 ? "" : ",", i);
  }
  refused(tools(many) + R"(,"tool\u0073":[])", "tools");
}

}  // namespace
}  // namespace kvasir
