// Each form of calls and reasoning: what is found, what stays content, and that cuts do not matter.
#include "server/outputs/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "server/outputs/json_pieces.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Deltas, joined: "reasoning|content|name(arguments) name(arguments)".
std::string shown(const TextDelta& all) {
  std::string out = all.reasoning + "|" + all.text + "|";
  for (const ToolCallDelta& call : all.tool_calls) {
    if (!call.name.empty()) out += (out.back() == '|' ? "" : " ") + call.name;
    out += "(" + call.arguments + ")";
  }
  return out;
}

// Adds a delta as a client does.
void join(const TextDelta& delta, TextDelta& all) {
  all.reasoning += delta.reasoning;
  all.text += delta.text;
  for (const ToolCallDelta& piece : delta.tool_calls) {
    if (all.tool_calls.empty() || all.tool_calls.back().index != piece.index) {
      EXPECT_EQ(piece.index, all.tool_calls.size());
      EXPECT_FALSE(piece.id.empty()) << "the first piece has the id";
      EXPECT_FALSE(piece.name.empty());
      all.tool_calls.push_back(piece);
      continue;
    }
    EXPECT_EQ(piece.id, "");
    EXPECT_EQ(piece.name, "");
    all.tool_calls.back().arguments += piece.arguments;
  }
}

std::vector<ApiTool> known_tools() {
  std::vector<ApiTool> out(2);
  out[0].name = "f";
  out[0].parameters = R"({"properties":{"s":{"type":"string"},"n":{"type":"integer"}}})";
  out[1].name = "now";
  return out;
}

struct Parse {
  OutputParserOptions options;
  std::vector<ApiTool> tools = known_tools();

  Parse(ToolFormat format, ReasoningFormat reasoning = ReasoningFormat::kNone,
        Thinking thinking = Thinking::kNo) {
    options.plan = {format, reasoning, thinking};
  }
  // The text in the pieces that begin at `cuts`.
  TextDelta pieces(const std::string& text, const std::vector<size_t>& cuts) const {
    OutputParser parser(options, tools);
    TextDelta all;
    size_t from = 0;
    for (size_t i = 0; i <= cuts.size(); ++i) {
      const size_t to = i < cuts.size() ? cuts[i] : text.size();
      TextDelta delta;
      parser.push(std::string_view(text).substr(from, to - from), delta);
      join(delta, all);
      from = to;
    }
    TextDelta delta;
    parser.finish(delta);
    join(delta, all);
    return all;
  }
  std::string operator()(const std::string& text) const { return shown(pieces(text, {})); }
};

struct Case {
  ToolFormat format;
  const char* text;
  const char* expected;
};

const Case kCases[] = {
    // Hermes.
    {ToolFormat::kHermes, "Hello.", "|Hello.|"},
    {ToolFormat::kHermes, " a < b <tool> \n", "| a < b <tool> \n|"},
    {ToolFormat::kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"}\\\"{\"}}\n</tool_call>",
     "||f({\"s\": \"}\\\"{\"})"},
    {ToolFormat::kHermes,
     "Let me see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": "
     "{\"a\":[1]}, \"id\": 7, \"name\": \"g\"}</tool_call>\nDone. \n",
     "|Let me see.\nDone.|f({}) g({\"a\":[1]})"},
    {ToolFormat::kHermes, "<tool_call>{\"name\": \"now\"}</tool_call>", "||now({})"},
    {ToolFormat::kHermes, "<tool_call>{\"name\": \"now\", \"arguments\": null,}</tool_call>", "||now({})"},
    {ToolFormat::kHermes,
     "<tool_call>{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": \\u00e9\\ud83d\\ude00}\"}",
     "||now({\"a\": \xc3\xa9\xf0\x9f\x98\x80})"},
    {ToolFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"cut", "||f({\"s\": \"cut)"},
    {ToolFormat::kHermes, "<tool_call>hello</tool_call> there", "|<tool_call>hello</tool_call> there|"},
    {ToolFormat::kHermes, "<tool_call>{\"name\": 7}</tool_call>", "|<tool_call>{\"name\": 7}</tool_call>|"},
    {ToolFormat::kHermes, "<tool_call>{\"nome\": \"f\"}", "|<tool_call>{\"nome\": \"f\"}|"},
    {ToolFormat::kHermes, "<tool_call>{\"name\": \"f", "|<tool_call>{\"name\": \"f|"},
    {ToolFormat::kHermes, "a <tool_ca", "|a <tool_ca|"},
    {ToolFormat::kHermes, "<tool_call><tool_call>{\"name\":\"f\"}", "|<tool_call>|f({})"},
    {ToolFormat::kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}} x</tool_call>y", "| xy|f({})"},
    {ToolFormat::kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}}", "|}|f({})"},
    {ToolFormat::kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}<tool_call>{\"name\":\"g\"}",
     "||f({}) g({})"},
    {ToolFormat::kHermes, "<tool_call>[{\"name\":\"f\"}, {\"name\":\"g\"}]</tool_call>", "||f({}) g({})"},
    {ToolFormat::kHermes, "a</tool_call>b", "|a</tool_call>b|"},
    // Llama.
    {ToolFormat::kLlama3Json, "{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}}", "||f({\"s\": \"a\"})"},
    {ToolFormat::kLlama3Json, " \n{\"type\": \"function\", \"name\": \"f\", \"arguments\": {}}\n", "||f({})"},
    {ToolFormat::kLlama3Json, "<|python_tag|>{\"name\": \"other\", \"parameters\": {}}", "||other({})"},
    {ToolFormat::kLlama3Json,
     "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}", "||f({}) now({})"},
    {ToolFormat::kLlama3Json, "{\"name\": \"f\", \"parameters\": {}}; then", "|; then|f({})"},
    {ToolFormat::kLlama3Json, "{\"name\": \"Bern\", \"parameters\": {}}",
     "|{\"name\": \"Bern\", \"parameters\": {}}|"},
    {ToolFormat::kLlama3Json, "{\"name\": \"f\"} is a tool", "|{\"name\": \"f\"} is a tool|"},
    {ToolFormat::kLlama3Json, "So {\"name\": \"f\", \"parameters\": {}}",
     "|So {\"name\": \"f\", \"parameters\": {}}|"},
    {ToolFormat::kLlama3Json, "<|python_tag|>print(1)", "|<|python_tag|>print(1)|"},
    {ToolFormat::kLlama3Json, "{", "|{|"},
    // Mistral, both forms.
    {ToolFormat::kMistral,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"now\", \"id\": \"x\"}]",
     "||f({\"n\": 1}) now({})"},
    {ToolFormat::kMistral, "Yes.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}] \n", "|Yes.|f({})"},
    {ToolFormat::kMistralArgs, "[TOOL_CALLS]f[ARGS]{\"n\": \"]}\"}[TOOL_CALLS]now[CALL_ID]a1[ARGS] {}",
     "||f({\"n\": \"]}\"}) now({})"},
    {ToolFormat::kMistralArgs, "[TOOL_CALLS]f{\"n\": 1}", "||f({\"n\": 1})"},
    {ToolFormat::kMistralArgs, "[TOOL_CALLS]f[ARGS]{\"n\"", "||f({\"n\")"},
    {ToolFormat::kMistralArgs, "[TOOL_CALLS]f[ARGS]", "|[TOOL_CALLS]f[ARGS]|"},
    {ToolFormat::kMistralArgs, "[TOOL_CALLS]no call", "|[TOOL_CALLS]no call|"},
    {ToolFormat::kMistralArgs, "[TOOL_CALLS]f[OTHER]{}", "|[TOOL_CALLS]f[OTHER]{}|"},
    {ToolFormat::kMistral, "[TOOL_CALLS][]", "|[TOOL_CALLS][]|"},
    {ToolFormat::kMistral, "a [TOOL_CALL", "|a [TOOL_CALL|"},
    // Granite.
    {ToolFormat::kGranite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", "||f({})"},
    {ToolFormat::kGranite, "<tool_call>[{\"arguments\": {\"s\": 1}, \"name\": \"f\"}, {\"name\": \"now\"}]",
     "||f({\"s\": 1}) now({})"},
    // Qwen3-Coder.
    {ToolFormat::kQwen3Xml,
     "I "
     "look.\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</"
     "parameter>\n<parameter=x>"
     "\na "
     "<b>\n</c>\n\n</parameter>\n</function>\n</tool_call>\n<tool_call><function=now></function></tool_call>",
     "|I look.|f({\"s\": \"12\", \"n\": 12, \"x\": \"a <b>\\n</c>\\n\"}) now({})"},
    {ToolFormat::kQwen3Xml, "<function=g><parameter=o>{\"a\": [1]}</parameter></function>",
     "||g({\"o\": {\"a\": [1]}})"},
    {ToolFormat::kQwen3Xml, "<function=f><parameter=s>a</parameter></tool_call> b", "| b|f({\"s\": \"a\"})"},
    {ToolFormat::kQwen3Xml, "<tool_call><function=f><parameter=s>\nabc", "||f({\"s\": \"abc)"},
    {ToolFormat::kQwen3Xml, "<tool_call>no</tool_call>", "|<tool_call>no</tool_call>|"},
    {ToolFormat::kQwen3Xml, "<tool_call>\n<function=", "|<tool_call>\n<function=|"},
    {ToolFormat::kQwen3Xml, "<function=a b>", "|<function=a b>|"},
    // Harmony.
    {ToolFormat::kOpenAi,
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"n\": 1}",
     "Hm.||f({\"n\": 1})"},
    {ToolFormat::kOpenAi,
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.", "Hm.|Hi.|"},
    {ToolFormat::kOpenAi, "<|start|>assistant to=functions.now<|channel|>commentary json<|message|><|call|>",
     "||now({})"},
    {ToolFormat::kOpenAi, "plain", "|plain|"},
    {ToolFormat::kOpenAi, " to=functions.f<|channel|>commentary<|message|>{}<|call|>", "||f({})"},
    {ToolFormat::kOpenAi, " to=functions.f", "| to=functions.f|"},
    {ToolFormat::kOpenAi, " too", "| too|"},
    {ToolFormat::kOpenAi,
     "<|channel|>commentary<|message|>A.<|end|><|start|>assistant<|channel|>final<|message|>B.<|return|>",
     "|A.\nB.|"},
    {ToolFormat::kOpenAi, "<|channel|>commentary to=functions. <|message|>{}", "|{}|"},
    // Headers without a message.
    {ToolFormat::kOpenAi, " to=functions.f<|end|><|start|>assistant<|channel|>final<|message|>Hi", "|Hi|"},
    {ToolFormat::kOpenAi,
     "<|channel|>commentary to=functions.f<|start|>assistant<|channel|>final<|message|>Hi", "|Hi|"},
    {ToolFormat::kOpenAi, "plain<|end|><|start|>assistant<|channel|>final<|message|>B", "|plain\nB|"},
};

TEST(OutputParser, FindsCallsAndLeavesTheRest) {
  for (const Case& c : kCases) EXPECT_EQ(Parse(c.format)(c.text), c.expected) << c.text;
}

TEST(OutputParser, CutsDoNotMatter) {
  Random random(7);
  for (const Case& c : kCases) {
    for (const auto& [thinking, before] :
         {std::pair{Thinking::kNo, ""}, std::pair{Thinking::kMayBegin, "\n <think>\nI think \n</think>\n\n"},
          std::pair{Thinking::kInside, "\nI think \n</think>\n\n"},
          std::pair{Thinking::kInside, "<think>I think</think>"}}) {
      const bool thinks = thinking != Thinking::kNo;
      const Parse parse(c.format, thinks ? ReasoningFormat::kThink : ReasoningFormat::kNone, thinking);
      const std::string text = std::string(before) + c.text;
      const std::string whole = parse(text);
      std::vector<size_t> every;
      for (size_t i = 1; i < text.size(); ++i) every.push_back(i);
      EXPECT_EQ(shown(parse.pieces(text, every)), whole) << text;
      for (int round = 0; round < 40; ++round) {
        std::vector<size_t> cuts;
        for (size_t at = 0; (at += 1 + random.below(9)) < text.size();) cuts.push_back(at);
        EXPECT_EQ(shown(parse.pieces(text, cuts)), whole) << text;
      }
    }
  }
}

// Whatever the text is: nothing is lost but marks and spaces where no call is found.
TEST(OutputParser, TextWithoutCallsIsContentByteForByte) {
  Random random(11);
  const std::string alphabet[] = {"<tool_call>",
                                  "</tool_call>",
                                  "{",
                                  "}",
                                  "\"name\"",
                                  ":",
                                  " ",
                                  "\n",
                                  "[",
                                  "]",
                                  "<function=",
                                  ">",
                                  "[TOOL_CALLS]",
                                  "<|python_tag|>",
                                  "x",
                                  "\\",
                                  ",",
                                  "\xc3\xa9"};
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama3Json, ToolFormat::kMistral,
                                  ToolFormat::kGranite, ToolFormat::kQwen3Xml}) {
    const Parse parse(format);
    size_t without = 0;
    for (int round = 0; round < 2000; ++round) {
      std::string text;
      for (uint64_t i = random.below(12); i > 0; --i) text += alphabet[random.below(std::size(alphabet))];
      const TextDelta all = parse.pieces(text, {});
      if (!all.tool_calls.empty()) continue;
      ++without;
      ASSERT_EQ(all.text, text) << tool_parser_name(format);
    }
    EXPECT_GT(without, 1000u);
  }
}

TEST(OutputParser, Reasoning) {
  const auto none = ToolFormat::kNone;
  const Parse may(none, ReasoningFormat::kThink, Thinking::kMayBegin);
  EXPECT_EQ(may("<think>\nA b.\n\nC\n</think>\n\nHello \n"), "A b.\n\nC|Hello \n|");
  EXPECT_EQ(may("\n <think>a</think>b</think>"), "a|b</think>|");
  EXPECT_EQ(may("No thought <think>."), "|No thought <think>.|");
  EXPECT_EQ(may("<thin"), "|<thin|");
  EXPECT_EQ(may("<think>cut </thi"), "cut </thi||");
  EXPECT_EQ(may("<think>\n\n</think>\n\nHi"), "|Hi|");
  const Parse inside(none, ReasoningFormat::kThink, Thinking::kInside);
  EXPECT_EQ(inside("A\n</think>B"), "A|B|");
  EXPECT_EQ(inside("<think>\nA</think>B"), "A|B|") << "the mark of the prompt, again";
  EXPECT_EQ(inside("<thin"), "<thin||");
  EXPECT_EQ(inside("only thoughts"), "only thoughts||");
  EXPECT_EQ(Parse(none, ReasoningFormat::kMistral, Thinking::kMayBegin)("[THINK]a[/THINK]b"), "a|b|");
  const Parse granite(none, ReasoningFormat::kGranite, Thinking::kMayBegin);
  EXPECT_EQ(granite("<think>a</think>\n<response>b <b>c</b></response>"), "a|b <b>c</b>|");
  EXPECT_EQ(granite("<think>a</think>b</respon"), "a|b</respon|");
  EXPECT_EQ(granite("<response>b</response>"), "|<response>b</response>|") << "an answer about XML";
  EXPECT_EQ(Parse(none, ReasoningFormat::kOpenAi)("<|channel|>analysis<|message|>a<|end|><|start|>assistant"
                                                  "<|channel|>final<|message|>b"),
            "a|b|");

  const Parse both(ToolFormat::kHermes, ReasoningFormat::kThink, Thinking::kMayBegin);
  EXPECT_EQ(
      both("<think>Call <tool_call>{\"name\":\"f\"}?</think>\n<tool_call>{\"name\":\"now\"}</tool_call>"),
      "Call <tool_call>{\"name\":\"f\"}?||now({})");

  Parse without = both;
  without.options.include_reasoning = false;
  EXPECT_EQ(without("<think>a</think>b"), "|b|");
}

TEST(OutputParser, SaysWhetherTheModelThinks) {
  const auto thinks = [](ReasoningFormat format, Thinking thinking, const std::string& text) {
    OutputParserOptions options;
    options.plan = {ToolFormat::kNone, format, thinking};
    const std::vector<ApiTool> tools;
    OutputParser parser(options, tools);
    TextDelta delta;
    parser.push(text, delta);
    return parser.thinks();
  };
  EXPECT_FALSE(thinks(ReasoningFormat::kThink, Thinking::kMayBegin, "<thin"));
  EXPECT_TRUE(thinks(ReasoningFormat::kThink, Thinking::kMayBegin, "<think>"));
  EXPECT_TRUE(thinks(ReasoningFormat::kThink, Thinking::kInside, "a"));
  EXPECT_FALSE(thinks(ReasoningFormat::kThink, Thinking::kInside, "a</think>"));
  EXPECT_FALSE(thinks(ReasoningFormat::kThink, Thinking::kMayBegin, "a"));
  EXPECT_TRUE(thinks(ReasoningFormat::kOpenAi, Thinking::kMayBegin, "<|channel|>analysis<|message|>a"));
  EXPECT_FALSE(thinks(ReasoningFormat::kOpenAi, Thinking::kMayBegin, "<|channel|>final<|message|>a"));
}

TEST(OutputParser, ControlTokensAreNoText) {
  Parse parse(ToolFormat::kMistralArgs, ReasoningFormat::kMistral, Thinking::kMayBegin);
  parse.options.hidden = {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"};
  EXPECT_EQ(parse("[TOOL_CALLS]no call"), "|no call|");
  EXPECT_EQ(parse("[TOOL_CALLS]f[ARGS]no"), "|fno|");
  EXPECT_EQ(parse("a[THINK]b[/THINK]c[TOOL_CALLS]"), "|abc|");
  Parse hermes(ToolFormat::kHermes);
  hermes.options.hidden = {"<tool_call>", "</tool_call>"};
  EXPECT_EQ(hermes("a</tool_call><tool_call>b"), "|ab|");
}

TEST(OutputParser, WithoutParallelCallsTheFirstEndsTheAnswer) {
  Parse parse(ToolFormat::kHermes);
  const std::string two = "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"now\"}</tool_call>";
  EXPECT_EQ(parse(two), "||f({}) now({})");
  parse.options.parallel_calls = false;
  EXPECT_EQ(parse(two), "||f({})");
  OutputParser parser(parse.options, parse.tools);
  TextDelta delta;
  parser.push("<tool_call>{\"name\":\"f\",\"arguments\":{", delta);
  EXPECT_EQ(parser.calls(), 1u);
  EXPECT_FALSE(parser.complete());
  parser.push("}}", delta);
  EXPECT_TRUE(parser.complete());
}

TEST(OutputParser, IdsFollowFromTheSeed) {
  Parse parse(ToolFormat::kHermes);
  const std::string two = "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"now\"}</tool_call>";
  const auto ids = [&](uint64_t seed) {
    parse.options.id_seed = seed;
    const TextDelta all = parse.pieces(two, {});
    return std::pair(all.tool_calls.at(0).id, all.tool_calls.at(1).id);
  };
  EXPECT_THAT(ids(1).first, testing::MatchesRegex("call_[0-9a-f]{24}"));
  EXPECT_NE(ids(1).first, ids(1).second);
  EXPECT_EQ(ids(1), ids(1));
  EXPECT_NE(ids(1).first, ids(2).first);
  const TextDelta mistral = Parse(ToolFormat::kMistralArgs).pieces("[TOOL_CALLS]f[ARGS]{}", {});
  EXPECT_THAT(mistral.tool_calls.at(0).id, testing::MatchesRegex("[0-9a-f]{9}"));
}

TEST(OutputParser, ArgumentsArriveWithTheirText) {
  const Parse parse(ToolFormat::kHermes);
  OutputParser parser(parse.options, parse.tools);
  TextDelta delta;
  parser.push("<tool_call>{\"name\": \"f\"", delta);
  EXPECT_TRUE(delta.empty()) << "arguments may not follow";
  parser.push(", \"arguments\": {\"a\"", delta);
  EXPECT_EQ(shown(delta), "||f({\"a\")");
  delta = {};
  parser.push(": 1", delta);
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].arguments, ": 1");
  EXPECT_EQ(delta.tool_calls[0].id, "");
}

TEST(OutputParser, WhatWaitsIsBounded) {
  const std::string much(3 * kMostWaiting, 'a');
  for (const std::string& begin : {std::string("<tool_call>{\"name\": \"f\", \"x\": \""),
                                   std::string("<tool_call>{\"arguments\": {\"x\": \""),
                                   std::string("<tool_call>") + std::string(kMostWaiting, ' ')}) {
    const Parse parse(ToolFormat::kHermes);
    OutputParser parser(parse.options, parse.tools);
    TextDelta delta;
    parser.push(begin + much, delta);
    EXPECT_GT(delta.text.size(), kMostWaiting);
    parser.finish(delta);
    EXPECT_EQ(delta.text, begin + much);
  }
  const Parse spaces(ToolFormat::kHermes);
  OutputParser parser(spaces.options, spaces.tools);
  TextDelta delta;
  parser.push(std::string(100'000, '\n'), delta);
  EXPECT_GT(delta.text.size(), 98'000u);
}

}  // namespace
}  // namespace kvasir
