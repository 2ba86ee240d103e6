// From the messages, tools and variables of a request to what a chat template is given.
#pragma once

#include <vector>

#include "model/templates/chat_template.h"
#include "server/api_request.h"

namespace kvasir {

struct ChatInputs {
  std::vector<ChatMessage> messages;
  TemplateValue::List tools;
  TemplateValue::Dict variables;
};

// As Hugging Face's apply_chat_template has them: tool_calls are {"id", "type": "function", "function":
// {"name", "arguments"}} with the arguments as an object (text that is no JSON object stays text), tools are
// their OpenAI schemas. What the model thought is there as `reasoning_content`, as `reasoning` and, unless
// the message has content and calls, as `thinking`. With the choice kNone there are no tools. All of it is
// plain text.
ChatInputs chat_inputs(const ApiRequest& request);

}  // namespace kvasir
