// The lines of the table of fields that chat and completions do not have, endpoint by endpoint.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/handlers/anthropic.h"
#include "server/handlers/embeddings.h"
#include "server/handlers/field_makers.h"
#include "server/handlers/openai.h"
#include "server/handlers/responses.h"

namespace kvasir {
namespace {

using fields::any;
using fields::boolean;
using fields::ignored;
using fields::integer;
using fields::kBooleanLater;
using fields::kMostInt;
using fields::kPrompts;
using fields::kStringLater;
using fields::refused;
using fields::string;
using nlohmann::json;
using Where = RequestField::Where;

// ---------------------------------------------------------------- values that ask for nothing

bool is_never(const json&) {
  return false;
}
bool is_off(const json& v) {
  return v.is_boolean() && !v.get<bool>();
}
bool is_on(const json& v) {
  return v.is_boolean() && v.get<bool>();
}
bool is_empty_list(const json& v) {
  return v.is_array() && v.empty();
}
bool is_zero(const json& v) {
  return v.is_number() && v.get<double>() == 0;
}
bool is_disabled(const json& v) {
  return v == "disabled";
}
bool is_usual_tier(const json& v) {
  return v == "auto" || v == "default";
}
// Reasoning comes back as text, encrypted or not.
bool is_adds_nothing(const json& v) {
  return v.is_array() && std::all_of(v.begin(), v.end(),
                                     [](const json& item) { return item == "reasoning.encrypted_content"; });
}

// ---------------------------------------------------------------- setters that check their value

void set_tokens(ApiRequest& r, const json& value, JsonFields& errors) {
  std::optional<std::vector<Token>> tokens;
  if (value.is_array()) tokens = token_list(value);
  if (!tokens) return errors.fail("tokens", "'tokens' must be a list of token ids");
  r.prompts.emplace_back(*std::move(tokens));
}

// ---------------------------------------------------------------- the table

constexpr Where kAnthropic = Where::kMessages | Where::kCountTokens;

constexpr const char* kTextOrBlocks = R"({"anyOf":[{"type":"string"},{"type":"array"}]})";
constexpr const char* kObjects = R"({"type":"array","minItems":1,"items":{"type":"object"}})";
constexpr const char* kTokenIds = R"({"type":"array","items":{"type":"integer","minimum":0}})";

constexpr RequestField kEndpointFields[] = {
    // Anthropic's.
    any("system", kAnthropic, kTextOrBlocks, "none", "the system prompt: a text or text blocks", set_system),
    any("messages", kAnthropic, kObjects, "required",
        "roles `user`, `assistant`; content is text or blocks: `text`, `tool_result`, `tool_use`, `thinking`",
        set_anthropic_messages),
    integer("max_tokens", Where::kMessages, {1, kMostInt}, "required", "the most tokens to generate",
            [](ApiRequest& r, int64_t v) { r.max_tokens = static_cast<uint32_t>(v); }),
    any("stop_sequences", Where::kMessages, R"({"type":"array","items":{"type":"string"}})", "none",
        "at most 16 texts of at most 1,024 bytes, before which the output ends", set_stop_sequences),
    any("tools", kAnthropic, R"({"type":"array","items":{"type":"object"}})", "none",
        "tools that the client runs: `name`, `description`, `input_schema`, `strict`", set_anthropic_tools),
    any("tool_choice", kAnthropic, R"({"type":"object"})", "`auto`",
        "`type` auto, any, tool with `name`, or none; `disable_parallel_tool_use`",
        set_anthropic_tool_choice),
    any("thinking", kAnthropic, R"({"type":"object"})", "the template's",
        "`type` enabled, adaptive or disabled: the template's variable `enable_thinking`; a budget is not "
        "kept",
        set_thinking),
    any("output_config", kAnthropic, R"({"type":"object"})", "none",
        "`format` with `type` json_schema and `schema`: the output is such JSON", set_output_config),
    refused("mcp_servers", kAnthropic, is_empty_list, "[]", "this server runs no tools"),
    refused("container", Where::kMessages, is_never, "", "this server runs no tools"),
    ignored("cache_control", kAnthropic, "prefixes are cached without being asked for"),
    ignored("service_tier", Where::kMessages, "there is one tier; see `priority`"),

    // OpenAI's newer API.
    string("instructions", Where::kResponses, kMostInt, "none",
           "a system prompt of this answer alone: `previous_response_id` does not bring it back",
           set_instructions),
    any("input", Where::kResponses, kTextOrBlocks, "required",
        "a text, or items: `message`, `function_call`, `function_call_output`, `reasoning`; content is text",
        set_input),
    string("previous_response_id", Where::kResponses, 128, "none",
           "the stored answer whose conversation goes on: see [stored responses](serving.md#responses)",
           kStringLater),
    boolean("store", Where::kResponses, "true", "keep the answer, as far as there is room", kBooleanLater),
    integer("max_output_tokens", Where::kResponses, {1, kMostInt}, "all that fits",
            "the most tokens to generate",
            [](ApiRequest& r, int64_t v) { r.max_tokens = static_cast<uint32_t>(v); }),
    any("tools", Where::kResponses, R"({"type":"array","items":{"type":"object"}})", "none",
        "tools that the client runs: `type` function, `name`, `description`, `parameters`, `strict`",
        set_responses_tools),
    any("tool_choice", Where::kResponses, R"({"anyOf":[{"type":"string"},{"type":"object"}]})", "`auto`",
        "`none`, `auto`, `required`, or `{\"type\":\"function\",\"name\":…}`", set_responses_tool_choice),
    boolean("parallel_tool_calls", Where::kResponses, "true", "false: at most one call in an answer",
            [](ApiRequest& r, bool v) { r.parallel_tool_calls = v; }),
    any("text", Where::kResponses, R"({"type":"object"})", "none",
        "`format`: `type` text, json_object, or json_schema with `schema`", set_text),
    any("reasoning", Where::kResponses, R"({"type":"object"})", "the template's",
        "`effort`: the template's variables `reasoning_effort` and, unless it is none, `enable_thinking`",
        set_reasoning),
    any("metadata", Where::kResponses, R"({"type":"object"})", "none", "comes back with the answer",
        check_metadata),
    refused("truncation", Where::kResponses, is_disabled, "\"disabled\"",
            "a prompt that is too long is an error"),
    refused("background", Where::kResponses, is_off, "false", "an answer is sent when it is made"),
    refused("conversation", Where::kResponses, is_never, "", "see `previous_response_id`"),
    refused("prompt", Where::kResponses, is_never, "", "prompts are not kept here"),
    refused("include", Where::kResponses, is_adds_nothing, R"([], ["reasoning.encrypted_content"])",
            "there is nothing to add"),
    refused("top_logprobs", Where::kResponses, is_zero, "0", "see `logprobs` of chat"),
    refused("service_tier", Where::kResponses, is_usual_tier, R"("auto", "default")",
            "there is one tier; see `priority`"),
    ignored("max_tool_calls", Where::kResponses, "this server runs no tools"),
    ignored("stream_options", Where::kResponses, "there is nothing to choose"),
    ignored("prompt_cache_key", Where::kResponses, "prefixes are cached without it; see `cache_salt`"),
    ignored("safety_identifier", Where::kResponses, "quotas are by key and address"),

    // vLLM's /tokenize and /detokenize.
    string("prompt", Where::kTokenize, kMostInt, "none", "a text; or give `messages`",
           [](ApiRequest& r, std::string v) { r.prompts.emplace_back(std::move(v)); }),
    any("messages", Where::kTokenize, kObjects, "none", "as of chat, through the chat template",
        set_messages),
    boolean("add_special_tokens", Where::kTokenize, "true; false with `messages`",
            "begin with the token that the model wants before a plain prompt, if there is one",
            kBooleanLater),
    boolean("return_token_strs", Where::kTokenize, "false",
            "`token_strs`: the tokens as the vocabulary spells them", kBooleanLater),
    refused("add_generation_prompt", Where::kTokenize, is_on, "true", "the assistant's turn always begins"),
    refused("continue_final_message", Where::kTokenize, is_off, "false",
            "the assistant's turn always begins"),
    refused("chat_template", Where::kTokenize, is_never, "", "the server has one: `--chat-template`"),
    any("tokens", Where::kDetokenize, kTokenIds, "required", "token ids; control tokens become text, too",
        set_tokens),

    // OpenAI's /v1/embeddings.
    any("input", Where::kEmbeddings, kPrompts, "required",
        "a text, a list of token ids, or a list of at most 2,048 of either; each has its embedding",
        set_embedding_input),
    any("encoding_format", Where::kEmbeddings, R"({"type":"string","enum":["float","base64"]})", "float",
        "base64: the bytes of little-endian f32", set_encoding_format),
    integer("dimensions", Where::kEmbeddings, {1, kMostInt}, "the model's",
            "no other number is offered: embeddings are not shortened",
            [](ApiRequest& r, int64_t v) { r.dimensions = static_cast<uint32_t>(v); }),
    refused("normalize", Where::kEmbeddings, is_on, "true", "embeddings have length 1"),
    refused("add_special_tokens", Where::kEmbeddings, is_on, "true", "send token ids to have none"),
};

}  // namespace

std::span<const RequestField> endpoint_fields() {
  return kEndpointFields;
}

}  // namespace kvasir
