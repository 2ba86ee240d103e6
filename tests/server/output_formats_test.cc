// Which form of calls and reasoning a model has, by its chat template; and the grammars that demand a call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "server/outputs/output_format.h"
#include "server/outputs/output_plan.h"
#include "server/outputs/tool_grammar.h"
#include "server/test_service.h"

namespace kvasir {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(OutputFormats, ArePickedByTheMarksOfATemplate) {
  const std::pair<const char*, ToolFormat> cases[] = {
      {"{{ m.content }}", ToolFormat::kNone},
      {R"(return <tool_call>\n{\"name\": N, \"arguments\": A}\n</tool_call>)", ToolFormat::kHermes},
      {"<tool_call>{name}<arg_key>k</arg_key> arguments", ToolFormat::kNone},
      {"<tool_call>\n<function=f>\n<parameter=p>", ToolFormat::kQwen3Xml},
      {"{{ '[TOOL_CALLS][' }}", ToolFormat::kMistral},
      {"{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", ToolFormat::kMistralArgs},
      {"<|tool_call|>", ToolFormat::kGranite},
      {"{{ '<|python_tag|>' }}", ToolFormat::kLlama3Json},
      {R"(<|start_header_id|> '"parameters": ')", ToolFormat::kLlama3Json},
      {"<|python_tag|> <function=", ToolFormat::kNone},
      {"<|start|>assistant<|channel|>analysis<|message|>", ToolFormat::kOpenAi},
  };
  for (const auto& [text, format] : cases) EXPECT_EQ(pick_tool_format(text), format) << text;
  EXPECT_EQ(pick_reasoning_format("a"), ReasoningFormat::kNone);
  EXPECT_EQ(pick_reasoning_format("content.split('</think>')"), ReasoningFormat::kThink);
  EXPECT_EQ(pick_reasoning_format("[THINK]"), ReasoningFormat::kMistral);
  EXPECT_EQ(pick_reasoning_format("between <think></think> and <response></response>"),
            ReasoningFormat::kGranite);
  EXPECT_EQ(pick_reasoning_format("<|channel|><|message|>"), ReasoningFormat::kOpenAi);
}

TEST(OutputFormats, ATemplateHasToolsIfItsCodeNamesThem) {
  for (const char* yes : {"{% if tools %}", "{%- for t in tools-%}", "{{tools|tojson}}", "{{ '}}' ~ tools }}",
                          R"({% set a = 'it\'s' %}{{ tools }})", "{% if a.b and (tools) %}"}) {
    EXPECT_TRUE(template_reads(yes, "tools")) << yes;
  }
  for (const char* no : {"", "tools", "{ tools }", "{# tools #}", "{{ 'tools' }}", "{{ message.tools }}",
                         "{{ my_tools }}", "{{ tools_in }}", "{{ message['tools'] }}",
                         "{{ a }} tools {{ b }}", "{{ \"it's tools", "{", "{{", "{#"}) {
    EXPECT_FALSE(template_reads(no, "tools")) << no;
  }
  EXPECT_EQ(pick_formats("{{ xml_tools }}").tools_variable, "xml_tools");
  EXPECT_EQ(pick_formats("{{ xml_tools }}{{ tools }}").tools_variable, "tools");
  EXPECT_EQ(pick_formats("{{ messages }}").tools_variable, "");
}

TEST(OutputFormats, OfTheTemplatesThatRenderingIsComparedFor) {
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/chat_templates.json");
  const json goldens = json::parse(in);
  std::map<std::string, std::string> got;
  for (const json& t : goldens.at("templates")) {
    const OutputFormats f = pick_formats(t.at("source").get<std::string>());
    got[t.at("name")] = fmt::format("{} {} {}", f.tools_variable, tool_parser_name(f.tools),
                                    reasoning_parser_name(f.reasoning));
  }
  EXPECT_EQ(got["qwen"], "tools hermes none");
  EXPECT_EQ(got["thinking"], " none qwen3");
  EXPECT_EQ(got["smollm2"], " none none");
  EXPECT_EQ(got["gemma"], " none none");
}

TEST(OutputFormats, FlagsChooseByName) {
  OutputFormats formats;
  for (const char* name : {"hermes", "llama3_json", "mistral", "granite", "qwen3_xml", "openai", "none"}) {
    ASSERT_TRUE(override_tool_parser(name, formats).ok());
    EXPECT_EQ(tool_parser_name(formats.tools), name);
  }
  for (const char* name : {"qwen3", "deepseek_r1", "granite", "mistral", "openai_gptoss", "none"}) {
    ASSERT_TRUE(override_reasoning_parser(name, formats).ok());
    EXPECT_EQ(reasoning_parser_name(formats.reasoning), name);
  }
  formats.tools = ToolFormat::kMistralArgs;
  ASSERT_TRUE(override_tool_parser("mistral", formats).ok());
  EXPECT_EQ(formats.tools, ToolFormat::kMistralArgs) << "the template says which of the two";
  ASSERT_TRUE(override_tool_parser("auto", formats).ok());
  EXPECT_EQ(formats.tools, ToolFormat::kMistralArgs);
  const Status unknown = override_tool_parser("pythonic", formats);
  EXPECT_EQ(unknown.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("auto, none, hermes"));
  EXPECT_FALSE(override_reasoning_parser("x", formats).ok());
}

TEST(OutputFormats, ThePromptsEndSaysWhetherTheModelThinks) {
  const auto kThink = ReasoningFormat::kThink;
  EXPECT_EQ(thinking_behind("<|assistant|>", kThink), Thinking::kMayBegin);
  EXPECT_EQ(thinking_behind("<|assistant|><think>\n", kThink), Thinking::kInside);
  EXPECT_EQ(thinking_behind("<think>\n\n</think>\n\n", kThink), Thinking::kNo);
  EXPECT_EQ(thinking_behind("<think>a", kThink), Thinking::kMayBegin);
  EXPECT_EQ(thinking_behind("", kThink), Thinking::kMayBegin);
  EXPECT_EQ(thinking_behind("a", ReasoningFormat::kThinkFirst), Thinking::kInside);
  EXPECT_EQ(thinking_behind("</think>", ReasoningFormat::kThinkFirst), Thinking::kNo);
  EXPECT_EQ(thinking_behind("a[THINK]", ReasoningFormat::kMistral), Thinking::kInside);
  EXPECT_EQ(thinking_behind("a<think>", ReasoningFormat::kNone), Thinking::kNo);
}

TEST(OutputFormats, OnlyControlTokensOfThePlanAreShown) {
  const Tokenizer tokenizer = test::byte_tokenizer({}, {"[TOOL_CALLS]", "<think>", "<tool_call>", "[ARGS]"});
  EXPECT_THAT(control_marks(tokenizer, {ToolFormat::kMistralArgs, ReasoningFormat::kThink}),
              ElementsAre(test::control_token(0), test::control_token(3), test::control_token(1)));
  EXPECT_TRUE(control_marks(tokenizer, {}).empty());
}

ApiTool tool(const char* name, const char* parameters = R"({"type": "object", "b": 1, "a": 2})") {
  ApiTool out;
  out.name = name;
  out.parameters = parameters;
  return out;
}

// The tag's `format`, with its members in their order.
nlohmann::ordered_json format_of(const OutputGrammar& grammar) {
  EXPECT_EQ(grammar.kind, OutputGrammar::Kind::kStructuralTag);
  const auto root = nlohmann::ordered_json::parse(grammar.text);
  EXPECT_EQ(root["type"], "structural_tag");
  return root["format"];
}

TEST(ToolGrammar, DemandsACallInTheModelsForm) {
  const std::vector<ApiTool> tools = {tool("f"), tool("g", "")};
  struct Case {
    ToolFormat format;
    const char *begin, *end, *separator;
  };
  const Case cases[] = {
      {ToolFormat::kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>", "\n"},
      {ToolFormat::kLlama3Json, R"({"name": "f", "parameters": )", "}", "; "},
      {ToolFormat::kMistralArgs, "[TOOL_CALLS]f[ARGS]", "", ""},
      {ToolFormat::kQwen3Xml, "<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>", "\n"},
      {ToolFormat::kOpenAi, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "", "\n"},
  };
  for (const Case& c : cases) {
    const auto f = format_of(tool_grammar({c.format}, tools, /*parallel=*/true));
    EXPECT_EQ(f["type"], "tags_with_separator");
    EXPECT_EQ(f["separator"], c.separator);
    EXPECT_EQ(f["at_least_one"], true);
    EXPECT_EQ(f["stop_after_first"], c.format == ToolFormat::kOpenAi);
    ASSERT_EQ(f["tags"].size(), 2u);
    EXPECT_EQ(f["tags"][0]["begin"], c.begin);
    EXPECT_EQ(f["tags"][0]["end"], c.end);
    const bool xml = c.format == ToolFormat::kQwen3Xml;
    EXPECT_EQ(f["tags"][0]["content"]["type"], xml ? "qwen_xml_parameter" : "json_schema");
    EXPECT_EQ(f["tags"][0]["content"]["json_schema"].dump(), R"({"type":"object","b":1,"a":2})");
    EXPECT_EQ(f["tags"][1]["content"]["json_schema"].dump(), R"({"type":"object","properties":{}})");
    EXPECT_EQ(format_of(tool_grammar({c.format}, tools, false))["stop_after_first"], true);
  }
  for (const auto& [format, begin] : {std::pair{ToolFormat::kMistral, "[TOOL_CALLS]["},
                                      std::pair{ToolFormat::kGranite, "<|tool_call|>["}}) {
    const auto f = format_of(tool_grammar({format}, tools, true));
    EXPECT_EQ(f["begin"], begin);
    EXPECT_EQ(f["end"], "]");
    EXPECT_EQ(f["content"]["separator"], ", ");
    EXPECT_EQ(f["content"]["tags"][0]["begin"], R"({"name": "f", "arguments": )");
  }
  EXPECT_EQ(tool_grammar({}, tools, true).kind, OutputGrammar::Kind::kNone);
}

TEST(ToolGrammar, LeavesRoomForReasoning) {
  const std::vector<ApiTool> tools = {tool("f")};
  OutputPlan plan{ToolFormat::kHermes, ReasoningFormat::kThink, Thinking::kInside};
  const auto inside = format_of(tool_grammar(plan, tools, true));
  EXPECT_EQ(inside["type"], "sequence");
  EXPECT_EQ(inside["elements"][0]["begin"], "");
  EXPECT_EQ(inside["elements"][0]["end"], "</think>");
  EXPECT_EQ(inside["elements"][2]["type"], "tags_with_separator");
  plan.thinking = Thinking::kMayBegin;
  const auto may = format_of(tool_grammar(plan, tools, true));
  EXPECT_EQ(may["type"], "or");
  EXPECT_EQ(may["elements"][0]["elements"][0]["begin"], "<think>");
  EXPECT_EQ(may["elements"][1]["type"], "tags_with_separator");
}

ApiRequest with_tools(ToolChoice choice) {
  ApiRequest r;
  r.tools = {tool("f"), tool("g")};
  r.tool_choice = choice;
  r.named_tool = "g";
  return r;
}

TEST(OutputPlan, SetsAGrammarWhereACallIsDemanded) {
  const OutputFormats formats{ToolFormat::kHermes, ReasoningFormat::kNone, "tools"};
  const auto grammar = [&](ApiRequest r) {
    EXPECT_EQ(plan_output(formats, "", r).tools, ToolFormat::kHermes);
    return r.grammar;
  };
  EXPECT_EQ(grammar(with_tools(ToolChoice::kAuto)).kind, OutputGrammar::Kind::kNone);
  EXPECT_EQ(format_of(grammar(with_tools(ToolChoice::kRequired)))["tags"].size(), 2u);
  const auto named = format_of(grammar(with_tools(ToolChoice::kNamed)));
  ASSERT_EQ(named["tags"].size(), 1u);
  EXPECT_THAT(named["tags"][0]["begin"].get<std::string>(), HasSubstr("\"g\""));
  EXPECT_EQ(named["stop_after_first"], true);
  ApiRequest strict = with_tools(ToolChoice::kAuto);
  strict.tools[1].strict = true;
  const auto f = format_of(grammar(strict));
  EXPECT_EQ(f["type"], "triggered_tags");
  EXPECT_EQ(f["triggers"].dump(), R"(["<tool_call>"])");
  EXPECT_EQ(f["tags"][0]["content"]["json_schema"].dump(), R"({"type":"object"})");
  EXPECT_EQ(f["tags"][1]["content"]["json_schema"].dump(), R"({"type":"object","b":1,"a":2})");

  ApiRequest none = with_tools(ToolChoice::kNone);
  EXPECT_FALSE(plan_output(formats, "", none).active());
}

// It holds from the first token on: what comes is the answer, though the prompt has begun the reasoning.
TEST(OutputPlan, AClientsGrammarLeavesNoRoomForReasoning) {
  ApiRequest r = with_tools(ToolChoice::kAuto);
  const OutputFormats think{ToolFormat::kHermes, ReasoningFormat::kThink, "tools"};
  EXPECT_EQ(plan_output(think, "<think>\n", r).thinking, Thinking::kInside);
  r.grammar.kind = OutputGrammar::Kind::kJson;
  EXPECT_EQ(plan_output(think, "<think>\n", r).thinking, Thinking::kNo);
  r.tools.clear();
  EXPECT_EQ(plan_output(think, "<think>\n", r).thinking, Thinking::kNo);
  ApiRequest demanded = with_tools(ToolChoice::kRequired);
  EXPECT_EQ(plan_output(think, "<think>\n", demanded).thinking, Thinking::kInside) << "its grammar has room";
}

TEST(OutputPlan, ToolsThatAModelHasNotAreRefused) {
  const auto refusal = [](const OutputFormats& formats, const ApiRequest& r) {
    const auto e = check_outputs(formats, r);
    return e ? fmt::format("{} {}: {}", e->status, e->param, e->message) : "";
  };
  const OutputFormats known{ToolFormat::kHermes, ReasoningFormat::kNone, "tools"};
  EXPECT_EQ(refusal(known, with_tools(ToolChoice::kAuto)), "");
  EXPECT_EQ(refusal({}, with_tools(ToolChoice::kNone)), "");
  EXPECT_EQ(refusal({}, ApiRequest()), "");
  EXPECT_THAT(refusal({}, with_tools(ToolChoice::kAuto)),
              HasSubstr("400 tools: the chat template of this model has no tools"));
  EXPECT_THAT(refusal({ToolFormat::kNone, ReasoningFormat::kNone, "tools"}, with_tools(ToolChoice::kAuto)),
              HasSubstr("--tool-call-parser"));
  ApiRequest both = with_tools(ToolChoice::kRequired);
  both.grammar.kind = OutputGrammar::Kind::kJson;
  EXPECT_THAT(refusal(known, both), HasSubstr("400 tool_choice"));
  both.tool_choice = ToolChoice::kAuto;
  EXPECT_EQ(refusal(known, both), "");
}

}  // namespace
}  // namespace kvasir
