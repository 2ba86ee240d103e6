// Every rendering of tests/golden/chat_templates.json, against what Jinja2 made of it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/template_json.h"
#include "model/templates/chat_template.h"

namespace kvasir {
namespace {

using test::Json;

Json read_goldens() {
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/chat_templates.json");
  EXPECT_TRUE(in.good());
  return Json::parse(in);
}

Result<std::string> render(const std::string& source, const Json& conversation, bool prompt,
                           std::optional<int64_t> now, const Json& tools = Json::array()) {
  KV_ASSIGN_OR_RETURN(const ChatTemplate chat_template, ChatTemplate::parse(source));
  const std::vector<ChatMessage> messages = test::template_messages(conversation);
  ChatTemplateInputs inputs;
  inputs.messages = messages;
  inputs.add_generation_prompt = prompt;
  inputs.bos_token = "<s>";
  inputs.eos_token = "</s>";
  inputs.now_seconds = now;
  for (const Json& tool : tools) inputs.tools.push_back(test::template_value(tool));
  KV_ASSIGN_OR_RETURN(const MarkedText text, chat_template.render(inputs));
  return text.text();
}

// The same text; or the same words of raise_exception(); or some error where Python has one.
void compare(const Result<std::string>& actual, const Json& golden, const std::string& what) {
  if (golden.contains("text")) {
    EXPECT_TRUE(actual.ok()) << what << "\n" << actual.status().message();
    if (!actual.ok()) return;
    EXPECT_EQ(*actual, golden.at("text").get<std::string>()) << what;
    return;
  }
  if (actual.ok()) {
    ADD_FAILURE() << what << "\ngives: " << *actual;
    return;
  }
  const bool unknown =
      actual.status().code() == ErrorCode::kUnsupported;  // a name that is reached, and is not known
  EXPECT_TRUE(unknown || actual.status().code() == ErrorCode::kInvalidArgument) << what << "\n"
                                                                                << actual.status().message();
  if (golden.contains("raised")) {
    EXPECT_EQ(actual.status().message(), golden.at("raised").get<std::string>()) << what;
  } else {
    EXPECT_TRUE(actual.status().message().starts_with("chat template line ")) << actual.status().message();
  }
}

TEST(ChatTemplateGolden, RendersLikeJinja) {
  const Json goldens = read_goldens();
  size_t compared = 0;
  size_t raised = 0;
  for (const Json& entry : goldens.at("templates")) {
    for (const Json& golden : entry.at("cases")) {
      const Json& conversation = goldens.at("conversations").at(golden.at("conversation").get<size_t>());
      std::optional<int64_t> now;
      if (golden.at("clock").get<bool>()) now = goldens.at("now").get<int64_t>();
      const auto actual = render(entry.at("source"), conversation, golden.at("prompt").get<bool>(), now);
      compare(actual, golden, entry.at("name").get<std::string>() + " " + golden.dump());
      ++compared;
      raised += golden.contains("raised");
    }
  }
  EXPECT_GE(goldens.at("templates").size(), 12u);
  EXPECT_GE(compared, 96u);
  EXPECT_GE(raised, 5u);
}

TEST(ChatTemplateGolden, EvaluatesLikeJinja) {
  const Json goldens = read_goldens();
  const Json& conversation = goldens.at("conversations").at(goldens.at("snippet_conversation").get<size_t>());
  for (const Json& golden : goldens.at("snippets")) {
    const std::string source = golden.at("source");
    compare(render(source, conversation, true, goldens.at("now").get<int64_t>()), golden, source);
  }
  EXPECT_GE(goldens.at("snippets").size(), 100u);
}

TEST(ChatTemplateGolden, RendersToolsLikeJinja2) {
  const Json goldens = read_goldens();
  for (const Json& golden : goldens.at("tool_cases")) {
    const Json& conversation = goldens.at("tool_conversations").at(golden.at("conversation").get<size_t>());
    const Json tools = golden.at("tools").get<bool>() ? goldens.at("tools") : Json::array();
    const auto source = golden.at("source").get<std::string>();
    compare(render(source, conversation, true, std::nullopt, tools), golden, source);
  }
}

}  // namespace
}  // namespace kvasir
