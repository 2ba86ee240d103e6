// Outputs of models through the parser of each form: cuts change nothing, and text without calls is content.
// The first byte chooses the forms, the second how the text is cut.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/outputs/output_parser.h"

namespace {

using namespace kvasir;

std::string parsed(const OutputParserOptions& options, const std::vector<ApiTool>& tools,
                   std::string_view text, size_t piece) {
  OutputParser parser(options, tools);
  std::string content, reasoning, calls;
  uint32_t count = 0;
  const auto take = [&](const TextDelta& delta) {
    content += delta.text;
    reasoning += delta.reasoning;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.id.empty()) {
        KV_CHECK(call.index == count && !call.name.empty(), "call {} after {}", call.index, count);
        ++count;
        calls += "\n" + call.name + " ";
      }
      KV_CHECK(call.index + 1 == count, "a piece of call {} of {}", call.index, count);
      calls += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    TextDelta delta;
    parser.push(text.substr(at, piece), delta);
    take(delta);
  }
  TextDelta delta;
  parser.finish(delta);
  take(delta);
  KV_CHECK(parser.calls() == count, "{} calls of {}", count, parser.calls());
  const bool plain =
      options.plan.reasoning == ReasoningFormat::kNone && options.plan.tools != ToolFormat::kOpenAi;
  KV_CHECK(!plain || count > 0 || content == text, "text is lost");
  return content + "\n|" + reasoning + "\n|" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  OutputParserOptions options;
  options.plan.tools = static_cast<ToolFormat>(data[0] % 8);
  options.plan.reasoning = static_cast<ReasoningFormat>(data[0] / 8 % 5);
  options.plan.thinking = static_cast<Thinking>(data[0] / 40 % 3);
  std::vector<ApiTool> tools(1);
  tools[0].name = "f";
  tools[0].parameters = R"({"properties":{"s":{"type":"string"}}})";
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::string whole = parsed(options, tools, text, text.size() + 1);
  KV_CHECK(parsed(options, tools, text, 1) == whole, "single bytes give something else");
  KV_CHECK(parsed(options, tools, text, 1 + data[1] % 16) == whole, "pieces give something else");
  return 0;
}
