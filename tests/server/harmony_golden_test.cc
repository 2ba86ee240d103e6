// Outputs of gpt-oss as the package openai-harmony writes and reads them: see make_harmony_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "server/outputs/output_parser.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string trimmed(std::string text, bool front) {
  const char* spaces = " \t\r\n";
  text.erase(text.find_last_not_of(spaces) + 1);
  if (front) text.erase(0, std::min(text.find_first_not_of(spaces), text.size()));
  return text;
}

std::string lines(const json& parts) {
  std::string out;
  for (const json& part : parts) out += (out.empty() ? "" : "\n") + part.get<std::string>();
  return out;
}

struct Heard {
  std::string reasoning, content;
  std::vector<ToolCallDelta> calls;
};

// What a client puts together of an output that comes in pieces.
Heard hear(const std::string& output, Random& random) {
  OutputParserOptions options;
  options.plan = {ToolFormat::kOpenAi, ReasoningFormat::kOpenAi, Thinking::kMayBegin};
  const std::vector<ApiTool> tools;
  OutputParser parser(options, tools);
  Heard out;
  for (size_t at = 0; at <= output.size();) {
    TextDelta delta;
    const size_t size = 1 + random.below(12);
    if (at < output.size()) {
      parser.push(std::string_view(output).substr(at, size), delta);
    } else {
      parser.finish(delta);
    }
    at = at < output.size() ? std::min(at + size, output.size()) : at + 1;
    out.reasoning += delta.reasoning;
    out.content += delta.text;
    for (const ToolCallDelta& piece : delta.tool_calls) {
      if (piece.index == out.calls.size()) {
        out.calls.push_back(piece);
      } else {
        out.calls.at(piece.index).arguments += piece.arguments;
      }
    }
  }
  return out;
}

// With the mark that ends an output, which a server does not see as text if the tokenizer knows that it ends
// outputs, and without it.
TEST(HarmonyGolden, OutputsAreReadAsByOpenaiHarmony) {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/harmony.txt");
  Random random(5);
  size_t cases = 0, calls = 0, thoughts = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const json golden = json::parse(line);
    const auto whole = golden.at("output").get<std::string>();
    for (const std::string& output : {whole, whole.substr(0, whole.rfind("<|"))}) {
      const Heard heard = hear(output, random);
      const bool called = !golden.at("calls").empty();
      const std::string content = lines(golden.at("content"));
      EXPECT_EQ(heard.reasoning, trimmed(lines(golden.at("reasoning")), true)) << output;
      EXPECT_EQ(heard.content, called ? trimmed(content, false) : content) << output;
      ASSERT_EQ(heard.calls.size(), golden.at("calls").size()) << output;
      for (size_t i = 0; i < heard.calls.size(); ++i) {
        EXPECT_EQ(heard.calls[i].name, golden["calls"][i]["name"]) << output;
        EXPECT_EQ(heard.calls[i].arguments, golden["calls"][i]["arguments"]) << output;
      }
    }
    calls += golden.at("calls").size();
    thoughts += golden.at("reasoning").size();
  }
  EXPECT_EQ(cases, 200u);
  EXPECT_GT(calls, 50u);
  EXPECT_GT(thoughts, 100u);
}

}  // namespace
}  // namespace kvasir
