// The table of fields, in the order of the documentation. To add one, add a line: parsing, its errors,
// /openapi.json and docs/api.md follow. Fields that depend on each other are in check_together().
#include "server/handlers/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/handlers/field_makers.h"
#include "server/handlers/grammar_fields.h"
#include "server/handlers/openai.h"
#include "server/handlers/tool_fields.h"
#include "server/slo_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Field = RequestField;
using Where = Field::Where;

using fields::any;
using fields::boolean;
using fields::ignored;
using fields::integer;
using fields::kMostInt;
using fields::kPrompts;
using fields::number;
using fields::of_model;
using fields::refused;
using fields::string;

constexpr Where kBoth = Where::kBoth, kOnlyChat = Where::kChat, kOnlyText = Where::kCompletion;
constexpr Where kAnswers = Where::kAnswers;
constexpr double kMostPenalty = 1000;
constexpr double kMostSaltBytes = 1024;

// ---------------------------------------------------------------- setters that check their value

constexpr size_t kMaxStopTokens = 128;
constexpr size_t kMaxBadWords = 256, kMaxBadWordBytes = 256;
constexpr size_t kMaxBiases = 1024;

}  // namespace

bool read_texts(const json& list, size_t most, size_t most_bytes, std::vector<std::string>& out) {
  if (!list.is_array() || list.size() > most) return false;
  for (const json& item : list) {
    if (!item.is_string()) return false;
    out.push_back(item.get<std::string>());
    if (out.back().empty() || out.back().size() > most_bytes) return false;
  }
  return true;
}

namespace {

void set_stop(ApiRequest& r, const json& value, JsonFields& errors) {
  const json list = value.is_string() ? json::array({value}) : value;
  if (read_texts(list, kMaxStops, kMaxStopBytes, r.stop)) return;
  errors.fail("stop", fmt::format("'stop' must be a string or a list of at most {} strings, none of them "
                                  "empty or longer than {} bytes",
                                  kMaxStops, kMaxStopBytes));
}

void set_bad_words(ApiRequest& r, const json& value, JsonFields& errors) {
  const auto says_nothing = [](const std::string& word) {
    return word.find_first_not_of(' ') == std::string::npos;
  };
  if (read_texts(value, kMaxBadWords, kMaxBadWordBytes, r.bad_words) &&
      std::none_of(r.bad_words.begin(), r.bad_words.end(), says_nothing)) {
    return;
  }
  errors.fail("bad_words",
              fmt::format("'bad_words' must be a list of at most {} strings, none of them empty, "
                          "only of spaces, or longer than {} bytes",
                          kMaxBadWords, kMaxBadWordBytes));
}

void set_stop_token_ids(ApiRequest& r, const json& value, JsonFields& errors) {
  std::optional<std::vector<Token>> tokens;
  if (value.is_array() && value.size() <= kMaxStopTokens) tokens = token_list(value);
  if (tokens) {
    r.stop_token_ids = *std::move(tokens);
  } else {
    errors.fail("stop_token_ids",
                fmt::format("'stop_token_ids' must be a list of at most {} token ids", kMaxStopTokens));
  }
}

void set_logit_bias(ApiRequest& r, const json& value, JsonFields& errors) {
  const auto wrong = [&] {
    errors.fail("logit_bias",
                fmt::format("'logit_bias' must be an object of at most {} members, from token ids as strings "
                            "to numbers from -100 to 100",
                            kMaxBiases));
  };
  if (!value.is_object() || value.size() > kMaxBiases) return wrong();
  for (const auto& [key, bias] : value.items()) {
    // One spelling for each id, or biases of one token would add up.
    const bool is_id = !key.empty() && key.size() <= 9 && (key[0] != '0' || key.size() == 1) &&
                       std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_id || !bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) return wrong();
    r.rules.bias.emplace_back(static_cast<Token>(std::stol(key)), bias.get<float>());
  }
}

void set_seed(ApiRequest& r, const json& value, JsonFields& errors) {
  if (value.is_number_unsigned()) {
    r.seed = value.get<uint64_t>();
  } else if (const std::optional<int64_t> whole = whole_number(value)) {
    r.seed = static_cast<uint64_t>(*whole);
  } else {
    errors.fail("seed", "'seed' must be a whole number of at most 64 bits");
  }
}

void set_stream_options(ApiRequest& r, const json& value, JsonFields& errors) {
  if (!value.is_object()) return errors.fail("stream_options", "'stream_options' must be an object");
  JsonFields inner(value);
  r.include_usage = inner.boolean("include_usage", false);
  if (inner.error()) {
    return errors.fail("stream_options.include_usage",
                       "'stream_options.include_usage' must be true or false");
  }
  for (const char* field : {"include_obfuscation", "continuous_usage_stats"}) {
    const json* given = inner.find(field);
    if (given == nullptr || *given == false) continue;
    const std::string name = std::string("stream_options.") + field;
    return errors.fail(name.c_str(), fmt::format("'{}' is not supported; leave it out", name));
  }
}

void set_slo(ApiRequest& r, const json& value, JsonFields& errors) {
  if (auto e = read_slo_field(value, r.slo)) errors.fail(*std::move(e));
}

// ---------------------------------------------------------------- values that ask for nothing

bool never(const json&) {
  return false;
}
bool one(const json& v) {
  return v.is_number() && v.get<double>() == 1;
}
bool off(const json& v) {
  return v.is_boolean() && !v.get<bool>();
}
bool on(const json& v) {
  return v.is_boolean() && v.get<bool>();
}
bool empty_list(const json& v) {
  return v.is_array() && v.empty();
}
bool empty_string(const json& v) {
  return v.is_string() && v.get_ref<const std::string&>().empty();
}
bool none(const json& v) {
  return v == "none";
}
bool medium(const json& v) {
  return v == "medium";
}
bool text_only(const json& v) {
  return v == json::array({"text"});
}
bool usual_tier(const json& v) {
  return v == "auto" || v == "default";
}

// ---------------------------------------------------------------- the table

constexpr const char* kTexts = R"({"type":"array","items":{"type":"string"}})";
constexpr const char* kTextOrTexts =
    R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]})";
constexpr const char* kFormat =
    R"({"type":"object","properties":{"type":{"enum":["text","json_object","json_schema"]},"json_schema":{"type":"object"}}})";
constexpr const char* kStructured =
    R"({"type":"object","minProperties":1,"maxProperties":1,"properties":{"json":{},"regex":{"type":"string"},"choice":{"type":"array","items":{"type":"string"}},"grammar":{"type":"string"}}})";
constexpr const char* kMessages =
    R"({"type":"array","minItems":1,"items":{"type":"object","required":["role"],"properties":{"role":{"enum":["system","developer","user","assistant","tool"]},"content":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object"}},{"type":"null"}]}}}})";
constexpr const char* kIds = R"({"type":"array","items":{"type":"integer","minimum":0}})";

void set_max_tokens(ApiRequest& r, int64_t v) {
  r.max_tokens = static_cast<uint32_t>(v);
}

constexpr Field kFields[] = {
    string("model", Where::kAll, kMostInt, "the served one", "an unknown name gets 404",
           [](ApiRequest& r, std::string v) { r.model = std::move(v); }),
    any("messages", kOnlyChat, kMessages, "required",
        "roles `system`, `developer`, `user`, `assistant`, `tool`; content is text, or a list of text parts. "
        "See [tools and reasoning](serving.md#tools-and-reasoning) for `tool_calls`, `tool_call_id` and "
        "`reasoning`",
        set_messages),
    any("prompt", kOnlyText, kPrompts, "required",
        "a text, a list of token ids, or a list of at most 128 of either; each is a choice", set_prompt),
    integer(
        "n", kBoth, {1, 128}, "1",
        "choices for each prompt, at most 128 in all. The prompt is computed once where prefixes are cached. "
        "With `seed`, choice i draws with seed + i",
        [](ApiRequest& r, int64_t v) { r.choices = static_cast<uint32_t>(v); }),
    integer(
        "best_of", kOnlyText, {1, 128}, "`n`",
        "so many choices are generated for each prompt, and the `n` with the highest mean log-probability "
        "of a token are the answer, the best first; not with `stream`. `usage` counts all",
        [](ApiRequest& r, int64_t v) { r.best_of = static_cast<uint32_t>(v); }),

    // Length.
    integer("max_tokens", kOnlyChat, {1, kMostInt}, "all that fits", "the most tokens to generate",
            set_max_tokens),
    integer("max_completion_tokens", kOnlyChat, {1, kMostInt}, "all that fits",
            "OpenAI's newer name of `max_tokens`; it wins",
            [](ApiRequest& r, int64_t v) {
              set_max_tokens(r, v);
              r.max_tokens_field = "max_completion_tokens";
            }),
    integer("max_tokens", kOnlyText, {0, kMostInt}, "16", "the most tokens to generate; 0 only with `echo`",
            set_max_tokens),
    integer("min_tokens", kAnswers, {0, kMostInt}, "0",
            "no end, stop token or stop string before so many tokens; at most `max_tokens`",
            [](ApiRequest& r, int64_t v) { r.rules.min_tokens = static_cast<uint32_t>(v); }),
    any("stop", kBoth, kTextOrTexts, "none",
        "at most 16 texts of at most 1,024 bytes, before which the output ends", set_stop),
    any("stop_token_ids", kAnswers, kIds, "none", "at most 128 tokens that end the output",
        set_stop_token_ids),
    boolean("ignore_eos", kAnswers, "false", "go on after the model's end token",
            [](ApiRequest& r, bool v) { r.ignore_eos = v; }),

    // Sampling.
    of_model(number("temperature", kAnswers, {0, 2}, "the model's, else 1; 0.7 if the model says nothing",
                    "divides the logits; 0 takes the most likely token",
                    [](ApiRequest& r, double v) { r.sampling.temperature = static_cast<float>(v); })),
    of_model(number("top_p", kAnswers, {0, 1, true}, "the model's, else 1",
                    "draw from the most likely tokens that together have this probability",
                    [](ApiRequest& r, double v) {
                      // So small that it is 0 as a float, it still keeps the most likely token.
                      r.sampling.top_p = std::max(static_cast<float>(v), 1e-30F);
                    })),
    of_model(integer(
        "top_k", kAnswers, {-1, kMostInt}, "the model's, else all",
        "draw from so many of the most likely tokens; -1 or 0: all",
        [](ApiRequest& r, int64_t v) { r.sampling.top_k = static_cast<int32_t>(std::max<int64_t>(v, 0)); })),
    of_model(number("min_p", kAnswers, {0, 1}, "the model's, else 0; 0.05 if the model says nothing",
                    "draw from tokens with at least this share of the largest probability",
                    [](ApiRequest& r, double v) { r.sampling.min_p = static_cast<float>(v); })),
    of_model(number(
        "typical_p", kAnswers, {0, 1, true}, "1",
        "draw from the tokens nearest to the entropy that together have this probability",
        [](ApiRequest& r, double v) { r.sampling.typical_p = std::max(static_cast<float>(v), 1e-30F); })),
    of_model(number("repetition_penalty", kAnswers, {0, kMostPenalty, true}, "the model's, else 1",
                    "divides positive logits of tokens in prompt or output, multiplies negative ones",
                    [](ApiRequest& r, double v) {
                      r.rules.repetition_penalty = std::max(static_cast<float>(v), 1e-6F);
                    })),
    of_model(number("frequency_penalty", kAnswers, {-2, 2}, "0",
                    "subtracted from a token's logit for each time that it is in the output",
                    [](ApiRequest& r, double v) { r.rules.frequency_penalty = static_cast<float>(v); })),
    of_model(number("presence_penalty", kAnswers, {-2, 2}, "0",
                    "subtracted from the logits of tokens that are in the output",
                    [](ApiRequest& r, double v) { r.rules.presence_penalty = static_cast<float>(v); })),
    any("logit_bias", kAnswers,
        R"({"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100}})", "none",
        "added to logits, by token id as a string: -100 to 100, of at most 1,024 tokens", set_logit_bias),
    any("bad_words", kAnswers, kTexts, "none",
        "at most 256 texts of at most 256 bytes whose tokens never come one after the other in the output",
        set_bad_words),
    any("seed", kAnswers, R"({"type":"integer"})", "drawn for each choice",
        "two requests with the same seed sample the same tokens", set_seed),

    // Log-probabilities.
    boolean("logprobs", kOnlyChat, "false", "the log-probability of each token of the output",
            [](ApiRequest& r, bool v) { r.sampling.logprobs = v ? 0 : -1; }),
    integer("top_logprobs", kOnlyChat, {0, kMaxLogprobs}, "0",
            "and those of so many of the most likely tokens; only with `logprobs`",
            [](ApiRequest& r, int64_t v) {
              if (r.sampling.logprobs >= 0) r.sampling.logprobs = static_cast<int32_t>(v);
            }),
    integer("logprobs", kOnlyText, {0, kMaxLogprobs}, "off",
            "the log-probability of each token, and those of so many of the most likely tokens",
            [](ApiRequest& r, int64_t v) { r.sampling.logprobs = static_cast<int32_t>(v); }),
    boolean("echo", kOnlyText, "false",
            "the text begins with the prompt; with `logprobs`, its tokens have theirs, but for the first",
            [](ApiRequest& r, bool v) { r.echo = v; }),
    integer("prompt_logprobs", kBoth, {0, kMaxLogprobs}, "off",
            "a list with the log-probabilities of the prompt's tokens and of so many of the most likely "
            "tokens in "
            "their places; not with `stream`",
            [](ApiRequest& r, int64_t v) { r.prompt_logprobs = static_cast<int32_t>(v); }),

    // Form of the answer.
    boolean("stream", kAnswers, "false", "server-sent events", [](ApiRequest& r, bool v) { r.stream = v; }),
    any("stream_options", kBoth, R"({"type":"object","properties":{"include_usage":{"type":"boolean"}}})",
        "none", "`include_usage`: a last event with the usage; only with `stream`", set_stream_options),

    // Tools and reasoning.
    any("tools", kOnlyChat | Where::kTokenize, R"({"type":"array","items":{"type":"object"}})", "none",
        "at most 128 functions that the model may call, of at most 1 MiB of JSON: see "
        "[tools and reasoning](serving.md#tools-and-reasoning)",
        set_tools),
    any("tool_choice", kOnlyChat, R"({"anyOf":[{"type":"string"},{"type":"object"}]})", "auto",
        "`none`, `auto`, `required`, or `{\"type\":\"function\",\"function\":{\"name\":...}}`",
        set_tool_choice),
    boolean("parallel_tool_calls", kOnlyChat, "true", "false: the answer ends behind its first call",
            [](ApiRequest& r, bool v) { r.parallel_tool_calls = v; }),
    boolean("include_reasoning", kOnlyChat, "true", "false: what the model thinks is left out of the answer",
            [](ApiRequest& r, bool v) { r.include_reasoning = v; }),
    any("chat_template_kwargs", kOnlyChat | Where::kTokenize, R"({"type":"object"})", "none",
        "variables for the chat template, such as `enable_thinking`; at most 64 KiB of JSON",
        set_template_variables),
    // What the output is held to: see serving.md.
    any("response_format", kBoth, kFormat, "`{\"type\":\"text\"}`",
        "`json_object`, or `json_schema` with the schema in `json_schema.schema`, is what the output is held "
        "to, whatever `json_schema.strict` says: see [structured outputs](serving.md#structured-outputs)",
        set_response_format),
    any("structured_outputs", kBoth, kStructured, "none",
        "vLLM's: the output is held to exactly one of `json` (a schema), `regex`, `choice` (a list of texts) "
        "and `grammar` (EBNF)",
        set_structured_outputs),
    any("guided_json", kBoth, R"({"type":"object"})", "none", "the older name of `structured_outputs.json`",
        set_guided_json),
    any("guided_regex", kBoth, R"({"type":"string"})", "none", "the same of `structured_outputs.regex`",
        set_guided_regex),
    any("guided_choice", kBoth, kTexts, "none", "the same of `structured_outputs.choice`", set_guided_choice),
    any("guided_grammar", kBoth, R"({"type":"string"})", "none", "the same of `structured_outputs.grammar`",
        set_guided_grammar),

    // Beyond OpenAI's.
    string(
        "cache_salt", kAnswers | Where::kEmbeddings, kMostSaltBytes, "none",
        "prefixes are reused only among requests with the same salt. A request without one, or with an empty "
        "one, shares with all others that have none",
        [](ApiRequest& r, std::string v) { r.cache_salt = std::move(v); }),
    boolean("parse_special", kAnswers | Where::kCountTokens | Where::kTokenize | Where::kEmbeddings,
            "false, or `--parse-special`",
            "text may spell control tokens: see [control tokens](serving.md#control-tokens)",
            [](ApiRequest& r, bool v) { r.parse_special = v; }),
    any("slo", kAnswers | Where::kEmbeddings,
        R"({"type":"object","additionalProperties":{"type":"integer","minimum":1}})", "none",
        "`ttft_ms`, `tpot_ms`, `tbt_ms`, `e2el_ms`: see [latency bounds](serving.md#latency-bounds)",
        set_slo),
    integer("priority", kAnswers | Where::kEmbeddings, {INT32_MIN, kMostInt}, "0",
            "lower is more urgent: a weight under `--scheduling-policy auto`, an order under `priority`; "
            "refused otherwise",
            [](ApiRequest& r, int64_t v) { r.priority = static_cast<int32_t>(v); }),
    integer("forced_output_tokens", kAnswers, {1, kMostInt}, "none",
            "for experiments: the output ends after exactly so many tokens. Only the sampler knows, no "
            "policy and "
            "no predictor",
            [](ApiRequest& r, int64_t v) { r.forced_output_tokens = static_cast<uint32_t>(v); }),
    integer("output_tokens_hint", kAnswers, {1, kMostInt}, "none",
            "for experiments: what the `oracle` length predictor reads",
            [](ApiRequest& r, int64_t v) { r.output_tokens_hint = static_cast<uint32_t>(v); }),
    ignored("metadata", kBoth | Where::kMessages, "nothing is kept with a request"),
    ignored("user", kBoth | Where::kResponses | Where::kTokenize | Where::kEmbeddings,
            "quotas are by key and address"),

    // OpenAI's.
    refused("best_of", kOnlyChat, one, "1", "it is of completions; ask for `n` and compare their `logprobs`"),
    refused("functions", kOnlyChat, empty_list, "[]", "it is the older form of `tools`"),
    refused("function_call", kOnlyChat, none, "\"none\"",
            "it is the older form of `tool_choice` and `tools`"),
    refused("modalities", kOnlyChat, text_only, R"(["text"])", "there is only text"),
    refused("audio", kOnlyChat, never, "", "there is only text"),
    refused("prediction", kOnlyChat, never, "", "there is no speculative decoding"),
    refused("reasoning_effort", kOnlyChat, none, "\"none\"",
            "`chat_template_kwargs` has what a template takes"),
    refused("verbosity", kOnlyChat, medium, "\"medium\"", "no template takes it"),
    refused("web_search_options", kOnlyChat, never, "", "the server looks nothing up"),
    refused("moderation", kBoth, never, "", "texts are not judged"),
    refused("store", kBoth, off, "false", "answers are not stored"),
    refused("service_tier", kBoth, usual_tier, R"("auto", "default")", "there is one tier; see `priority`"),
    refused("suffix", kOnlyText, empty_string, "\"\"", "outputs only continue"),
    // Of other servers that offer this interface.
    refused("add_special_tokens", kOnlyChat, off, "false", "the template writes them"),
    refused("add_special_tokens", kOnlyText, on, "true", "send token ids to have none"),
    refused("detokenize", kBoth, on, "true", "answers are text"),
    refused("skip_special_tokens", kBoth, on, "true", "control tokens have no text"),
    refused("include_stop_str_in_output", kBoth, off, "false", "the text ends before the stop string"),
    refused("return_token_ids", kBoth, off, "false", "answers are text"),
    refused("length_penalty", kBoth, one, "1", "it is for beam search, which is not offered"),
    refused("use_beam_search", kBoth, off, "false", "it is not offered"),
    refused("allowed_token_ids", kBoth, empty_list, "[]", "see `logit_bias` and `structured_outputs`"),
    refused("logits_processors", kBoth, empty_list, "[]", "they would be Python"),
    refused("prompt_embeds", kOnlyText, never, "", "prompts are text or token ids"),
    refused("truncate_prompt_tokens", kBoth | Where::kEmbeddings, never, "",
            "a prompt that is too long is an error"),
    refused("add_generation_prompt", kOnlyChat, on, "true", "the assistant's turn always begins"),
    refused("continue_final_message", kOnlyChat, off, "false", "the assistant's turn always begins"),
    refused("chat_template", kOnlyChat, never, "", "the server has one: `--chat-template`"),
    refused("documents", kOnlyChat, empty_list, "[]", "the template takes none"),
};

}  // namespace

std::span<const RequestField> request_fields() {
  static const std::vector<RequestField> all = [] {
    std::vector<RequestField> fields(std::begin(kFields), std::end(kFields));
    const std::span<const RequestField> more = endpoint_fields();
    fields.insert(fields.end(), more.begin(), more.end());
    return fields;
  }();
  return all;
}

}  // namespace kvasir
