// Renders chat templates, for the script that compares the texts with Jinja2's.
//
// Standard input: a line of JSON for each rendering, with `source` and `messages`, and perhaps `tools`,
// `variables`, `add_generation_prompt` and `now`. Standard output: for each a line of JSON with `text` or
// `error`.
#include <cstdint>
#include <iostream>
#include <string>

#include "model/template_json.h"

int main() {
  using kvasir::test::Json;
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line);
    const auto messages = kvasir::test::template_messages(request.at("messages"));
    kvasir::ChatTemplateInputs inputs;
    inputs.messages = messages;
    inputs.add_generation_prompt = request.value("add_generation_prompt", true);
    inputs.bos_token = "<s>";
    inputs.eos_token = "</s>";
    if (request.contains("now")) inputs.now_seconds = request.at("now").get<int64_t>();
    const Json tools = request.value("tools", Json::array());
    for (const Json& tool : tools) {
      inputs.tools.push_back(kvasir::test::template_value(tool));
    }
    const Json variables = request.value("variables", Json::object());
    for (const auto& [name, value] : variables.items()) {
      inputs.variables.emplace_back(name, kvasir::test::template_value(value));
    }
    Json answer;
    const auto chat = kvasir::ChatTemplate::parse(request.at("source").get<std::string>());
    if (!chat.ok()) {
      answer["error"] = chat.status().message();
    } else if (const auto text = chat->render(inputs); text.ok()) {
      answer["text"] = text->text();
    } else {
      answer["error"] = text.status().message();
    }
    std::cout << answer.dump() << '\n';
  }
  return 0;
}
