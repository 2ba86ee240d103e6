#include "runtime/model_service.h"

#include <optional>
#include <span>
#include <string>

#include "runtime/join_cluster.h"

namespace kvasir {

ModelService make_service(Runtime& runtime, Backend& backend) {
  ModelService service;
  service.backend = &backend;
  service.tokenizer = &runtime.tokenizer();
  if (const JoinedCluster& joined = runtime.joined(); joined.node) {
    service.outside_metrics = [&joined] { return cluster_metrics(joined); };
  }
  const ChatTemplate* chat = runtime.chat_template();
  if (chat == nullptr) return service;
  const Tokenizer& tokenizer = runtime.tokenizer();
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? std::optional<std::string>(tokenizer.token_text(*id)) : std::nullopt;
  };
  service.render_chat = [chat, bos = text_of(tokenizer.bos()),
                         eos = text_of(tokenizer.eos())](std::span<const ApiMessage> messages) {
    std::vector<ChatMessage> list;
    list.reserve(messages.size());
    for (const ApiMessage& m : messages) list.push_back({m.role, m.content});
    ChatTemplateInputs inputs;
    inputs.messages = list;
    inputs.bos_token = bos;
    inputs.eos_token = eos;
    return chat->render(inputs);
  };
  return service;
}

}  // namespace kvasir
