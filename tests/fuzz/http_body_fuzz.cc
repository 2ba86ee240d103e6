// Bodies of the two generating endpoints, through the parser.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "base/check.h"
#include "server/handlers/openai.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto parse : {parse_chat_request, parse_completion_request}) {
    const auto parsed = parse(body, {});
    if (const auto* e = std::get_if<ApiError>(&parsed)) {
      KV_CHECK(!e->message.empty() && e->status >= 400, "an error without a message");
      continue;
    }
    const auto& request = std::get<ApiRequest>(parsed);
    KV_CHECK(request.prompts.size() + request.messages.size() > 0, "nothing to do was accepted");
    KV_CHECK(request.sampling.temperature >= 0 && request.sampling.temperature <= 2, "temperature {}",
             request.sampling.temperature);
    KV_CHECK(request.sampling.top_p > 0 && request.sampling.top_p <= 1, "top_p {}", request.sampling.top_p);
  }
  return 0;
}
