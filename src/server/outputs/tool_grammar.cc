// Structural tags as text. Schemas are put in as they are, since a grammar takes members in their order.
#include "server/outputs/tool_grammar.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string json_string(const std::string& text) {
  return dump_json(json(text));
}

std::string tag(const std::string& begin, const std::string& content, const std::string& end) {
  return fmt::format(R"({{"type":"tag","begin":{},"content":{},"end":{}}})", json_string(begin), content,
                     json_string(end));
}

std::string schema(const ApiTool& tool, const char* type = "json_schema") {
  return fmt::format(R"({{"type":"{}","json_schema":{}}})", type,
                     tool.parameters.empty() ? R"({"type":"object","properties":{}})" : tool.parameters);
}

std::string joined(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ",") + item;
  return out;
}

std::string separated(const std::vector<std::string>& tags, const std::string& separator, bool one) {
  return fmt::format(
      R"({{"type":"tags_with_separator","tags":[{}],"separator":{},"at_least_one":true,"stop_after_first":{}}})",
      joined(tags), json_string(separator), one);
}

std::string sequence(const std::vector<std::string>& elements) {
  return fmt::format(R"({{"type":"sequence","elements":[{}]}})", joined(elements));
}

std::string either(const std::vector<std::string>& elements) {
  return fmt::format(R"({{"type":"or","elements":[{}]}})", joined(elements));
}

// One call as a tag of its own.
std::string call_tag(ToolFormat format, const ApiTool& tool) {
  const auto object = [&](const char* arguments) {
    return fmt::format(R"({{"name": {}, "{}": )", json_string(tool.name), arguments);
  };
  switch (format) {
    case ToolFormat::kLlama3Json:
      return tag(object("parameters"), schema(tool), "}");
    case ToolFormat::kMistral:
    case ToolFormat::kGranite:
      return tag(object("arguments"), schema(tool), "}");
    case ToolFormat::kMistralArgs:
      return tag("[TOOL_CALLS]" + tool.name + "[ARGS]", schema(tool), "");
    case ToolFormat::kQwen3Xml:
      return tag("<tool_call>\n<function=" + tool.name + ">\n", schema(tool, "qwen_xml_parameter"),
                 "\n</function>\n</tool_call>");
    case ToolFormat::kOpenAi:
      return tag("<|channel|>commentary to=functions." + tool.name + " <|constrain|>json<|message|>",
                 schema(tool), "");
    default:
      return tag("<tool_call>\n" + object("arguments"), schema(tool), "}\n</tool_call>");
  }
}

// The mark before a list of calls; empty: calls stand for themselves.
std::string list_mark(ToolFormat format) {
  if (format == ToolFormat::kMistral) return "[TOOL_CALLS]";
  return format == ToolFormat::kGranite ? "<|tool_call|>" : "";
}

std::string calls(ToolFormat format, std::span<const ApiTool> tools, bool one) {
  std::vector<std::string> tags;
  for (const ApiTool& tool : tools) tags.push_back(call_tag(format, tool));
  if (const std::string mark = list_mark(format); !mark.empty()) {
    return tag(mark + "[", separated(tags, ", ", one), "]");
  }
  if (format == ToolFormat::kLlama3Json) return separated(tags, "; ", one);
  if (format == ToolFormat::kMistralArgs) return separated(tags, "", one);
  // The mark <|call|> ends the output, so there is one.
  return separated(tags, "\n", one || format == ToolFormat::kOpenAi);
}

OutputGrammar structural(const std::string& format) {
  OutputGrammar out;
  out.kind = OutputGrammar::Kind::kStructuralTag;
  out.text = fmt::format(R"({{"type":"structural_tag","format":{}}})", format);
  return out;
}

}  // namespace

OutputGrammar tool_grammar(const OutputPlan& plan, std::span<const ApiTool> tools, bool parallel) {
  if (plan.tools == ToolFormat::kNone) return {};
  const std::string all = calls(plan.tools, tools, !parallel);
  if (plan.thinking == Thinking::kNo) return structural(all);
  const bool harmony = plan.tools == ToolFormat::kOpenAi;
  const std::string open =
      harmony ? "<|channel|>analysis<|message|>" : std::string(marks_of(plan.reasoning)[0]);
  const std::string close = harmony ? "<|end|><|start|>assistant" : std::string(marks_of(plan.reasoning)[1]);
  const auto thought = [&](const std::string& begin) { return tag(begin, R"({"type":"any_text"})", close); };
  const std::string spaces = R"({"type":"regex","pattern":"[ \\n]*"})";
  if (plan.thinking == Thinking::kInside) return structural(sequence({thought(""), spaces, all}));
  return structural(either({sequence({thought(open), spaces, all}), all}));
}

OutputGrammar strict_grammar(const OutputPlan& plan, std::span<const ApiTool> tools) {
  std::string trigger;
  if (plan.tools == ToolFormat::kHermes) trigger = "<tool_call>";
  if (plan.tools == ToolFormat::kQwen3Xml) trigger = "<tool_call>";
  if (plan.tools == ToolFormat::kMistralArgs) trigger = "[TOOL_CALLS]";
  bool strict = false;
  std::vector<std::string> tags;
  for (ApiTool tool : tools) {
    strict = strict || tool.strict;
    if (!tool.strict) tool.parameters = R"({"type":"object"})";
    tags.push_back(call_tag(plan.tools, tool));
  }
  if (!strict || trigger.empty()) return {};
  return structural(fmt::format(R"({{"type":"triggered_tags","triggers":[{}],"tags":[{}]}})",
                                json_string(trigger), joined(tags)));
}

}  // namespace kvasir
