// The schema: what is accepted, what is refused, and what the refusal names.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/handlers/openai.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::variant<ApiRequest, ApiError> parse_request(ApiKind kind, const std::string& body) {
  return kind == ApiKind::kChat ? parse_chat_request(body) : parse_completion_request(body);
}

ApiRequest accepted(ApiKind kind, const std::string& body) {
  auto parsed = parse_request(kind, body);
  if (auto* e = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << e->message;
    return {};
  }
  return std::get<ApiRequest>(std::move(parsed));
}

ApiError refused(ApiKind kind, const std::string& body) {
  auto parsed = parse_request(kind, body);
  if (auto* e = std::get_if<ApiError>(&parsed)) {
    EXPECT_EQ(e->message.find('\n'), std::string::npos) << e->message;
    return *e;
  }
  ADD_FAILURE() << "accepted: " << body.substr(0, 200);
  return {};
}

std::string chat(const std::string& fields) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}])" +
         (fields.empty() ? "" : "," + fields) + "}";
}
std::string completion(const std::string& fields) {
  return R"({"model":"m","prompt":"hi")" + (fields.empty() ? "" : "," + fields) + "}";
}

TEST(RequestParser, ChatDefaults) {
  const ApiRequest r = accepted(ApiKind::kChat, chat(""));
  EXPECT_EQ(r.model, "m");
  ASSERT_EQ(r.messages.size(), 1u);
  EXPECT_EQ(r.messages[0].role, "user");
  EXPECT_EQ(r.messages[0].content, "hi");
  EXPECT_FALSE(r.stream);
  EXPECT_FALSE(r.include_usage);
  EXPECT_EQ(r.sampling.temperature, 1.0f);
  EXPECT_EQ(r.sampling.top_p, 1.0f);
  EXPECT_EQ(r.sampling.top_k, 0);
  EXPECT_EQ(r.sampling.logprobs, -1);
  EXPECT_FALSE(r.seed);
  EXPECT_FALSE(r.max_tokens);
  EXPECT_TRUE(r.stop.empty());
  EXPECT_FALSE(r.ignore_eos);
  EXPECT_FALSE(r.parse_special) << "the server decides";
}

TEST(RequestParser, EveryChatFieldIsRead) {
  const ApiRequest r = accepted(
      ApiKind::kChat,
      chat(R"("stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.25,"top_k":7,
      "seed":-3,"stop":["a","bc"],"stop_token_ids":[5,6],"max_completion_tokens":9,"ignore_eos":true,
      "logprobs":true,"top_logprobs":4,"priority":0,"cache_salt":"s","user":"u","metadata":{"a":"b"},
      "store":false,"service_tier":"auto","parallel_tool_calls":true,"parse_special":true,"never_heard_of":[1])"));
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
  EXPECT_EQ(r.sampling.temperature, 0.5f);
  EXPECT_EQ(r.sampling.top_p, 0.25f);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_EQ(r.sampling.logprobs, 4);
  EXPECT_EQ(r.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(r.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(r.stop_token_ids, (std::vector<Token>{5, 6}));
  EXPECT_EQ(r.max_tokens, 9u);
  EXPECT_EQ(r.max_tokens_field, "max_completion_tokens");
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.cache_salt, "s");
  EXPECT_EQ(r.parse_special, std::optional(true));
  EXPECT_EQ(accepted(ApiKind::kCompletion, completion(R"("parse_special":false)")).parse_special,
            std::optional(false));
}

TEST(RequestParser, EveryFieldOfSamplingIsRead) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    const std::string fields =
        R"("min_p":0.125,"typical_p":0.5,"repetition_penalty":1.5,"frequency_penalty":-2,"presence_penalty":0.25,
        "logit_bias":{"5":-100,"7":2.5},"bad_words":["a","b c"],"min_tokens":3,"n":4,"top_k":-1,
        "prompt_logprobs":2)";
    const ApiRequest r = accepted(kind, kind == ApiKind::kChat ? chat(fields) : completion(fields));
    EXPECT_EQ(r.sampling.min_p, 0.125F);
    EXPECT_EQ(r.sampling.typical_p, 0.5F);
    EXPECT_EQ(r.sampling.top_k, 0);
    EXPECT_EQ(r.rules.repetition_penalty, 1.5F);
    EXPECT_EQ(r.rules.frequency_penalty, -2.0F);
    EXPECT_EQ(r.rules.presence_penalty, 0.25F);
    EXPECT_EQ(r.rules.bias, (std::vector<std::pair<Token, float>>{{5, -100.0F}, {7, 2.5F}}));
    EXPECT_EQ(r.bad_words, (std::vector<std::string>{"a", "b c"}));
    EXPECT_EQ(r.rules.min_tokens, 3U);
    EXPECT_EQ(r.choices, 4U);
    EXPECT_EQ(r.prompt_logprobs, 2);
    EXPECT_EQ(r.sampling.prompt_logprobs, 2);
  }
}

TEST(RequestParser, EchoWithLogprobsScoresThePrompt) {
  const auto scores = [](const std::string& fields) {
    return accepted(ApiKind::kCompletion, completion(fields)).sampling.prompt_logprobs;
  };
  EXPECT_EQ(scores(R"("echo":true)"), -1);
  EXPECT_EQ(scores(R"("logprobs":3)"), -1);
  EXPECT_EQ(scores(R"("echo":true,"logprobs":3,"max_tokens":0)"), 3);
  EXPECT_EQ(scores(R"("echo":true,"logprobs":3,"prompt_logprobs":5)"), 5);
}

TEST(RequestParser, DefaultsGiveWayToWhatARequestSays) {
  ApiRequest defaults;
  ASSERT_FALSE(read_default_fields(
      R"({"temperature":0.25,"top_p":0.5,"top_k":9,"min_p":0.1,"repetition_penalty":1.2})", defaults));
  const auto parsed = parse_completion_request(R"({"prompt":"a","top_p":1,"min_p":null})", defaults);
  const auto& r = std::get<ApiRequest>(parsed);
  EXPECT_EQ(r.sampling.temperature, 0.25F);
  EXPECT_EQ(r.sampling.top_p, 1.0F);
  EXPECT_EQ(r.sampling.top_k, 9);
  EXPECT_EQ(r.sampling.min_p, 0.1F) << "null is as good as nothing";
  EXPECT_EQ(r.rules.repetition_penalty, 1.2F);
  EXPECT_EQ(r.default_max_tokens, 16U);

  EXPECT_EQ(read_default_fields(R"({"temperature":3})", defaults)->param, "temperature");
  EXPECT_EQ(read_default_fields(R"({"seed":3})", defaults)->param, "seed");
  EXPECT_NE(read_default_fields(R"({"seed":3})", defaults)->message.find("there are temperature, top_p"),
            std::string::npos);
  EXPECT_TRUE(read_default_fields("temperature 3", defaults));
}

TEST(RequestParser, TheCacheSaltIsAnyShortText) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    const auto with = [&](const std::string& salt) {
      const std::string field = "\"cache_salt\":" + salt;
      return kind == ApiKind::kChat ? chat(field) : R"({"prompt":"a",)" + field + "}";
    };
    EXPECT_EQ(accepted(kind, with("\"\"")).cache_salt, "");
    EXPECT_EQ(accepted(kind, with("null")).cache_salt, "");
    EXPECT_EQ(accepted(kind, with("\"caf\\u00e9\"")).cache_salt, "caf\xc3\xa9");
    EXPECT_EQ(accepted(kind, with("\"" + std::string(1024, 's') + "\"")).cache_salt.size(), 1024u);
    const ApiError e = refused(kind, with("\"" + std::string(1025, 's') + "\""));
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param, "cache_salt");
    EXPECT_NE(e.message.find("at most 1024 bytes"), std::string::npos) << e.message;
  }
}

TEST(RequestParser, ABiasHasOneSpellingOfEachIdAndThereAreNotTooMany) {
  EXPECT_EQ(accepted(ApiKind::kChat, chat(R"("logit_bias":{"0":1,"7":-2})")).rules.bias.size(), 2u);
  EXPECT_EQ(refused(ApiKind::kChat, chat(R"("logit_bias":{"07":1})")).param, "logit_bias");
  const auto biases = [](int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
    return chat("\"logit_bias\":{" + out + "}");
  };
  EXPECT_EQ(accepted(ApiKind::kChat, biases(1024)).rules.bias.size(), 1024u);
  const ApiError e = refused(ApiKind::kChat, biases(1025));
  EXPECT_NE(e.message.find("at most 1024 members"), std::string::npos) << e.message;
}

TEST(RequestParser, ABadWordIsMoreThanSpaces) {
  EXPECT_EQ(accepted(ApiKind::kChat, chat(R"("bad_words":[" x"])")).bad_words.size(), 1u);
  EXPECT_EQ(refused(ApiKind::kChat, chat(R"("bad_words":["x","  "])")).param, "bad_words");
}

TEST(RequestParser, UnknownFieldsAreNamedAndIgnored) {
  const auto unknown = [](ApiKind kind, const std::string& body) {
    return accepted(kind, body).unknown_fields;
  };
  EXPECT_EQ(unknown(ApiKind::kChat, chat(R"("max_tokenz":5,"metadata":{},"user":"u","best_of":1,"n":1)")),
            std::vector<std::string>{"max_tokenz"});
  // Fields of the other endpoint.
  EXPECT_EQ(unknown(ApiKind::kChat, chat(R"("echo":true)")), std::vector<std::string>{"echo"});
  EXPECT_EQ(unknown(ApiKind::kCompletion, completion(R"("a":1,"temperature":0,"max_tokens":1)")),
            std::vector<std::string>{"a"});
  EXPECT_TRUE(
      unknown(ApiKind::kChat, chat(R"("logprobs":true,"top_logprobs":2,"stop":["x"],"seed":1)")).empty());
}

TEST(RequestParser, AnUnsupportedValueIsShown) {
  EXPECT_EQ(
      refused(ApiKind::kChat, chat(R"("best_of":3)")).message,
      "'best_of' with the value 3 is not supported: it is of completions; ask for `n` and compare their "
      "`logprobs`; leave it out");
  const std::string longer(100, 'x');
  EXPECT_NE(
      refused(ApiKind::kCompletion, completion(R"("suffix":")" + longer + "\"")).message.find("x... is not"),
      std::string::npos);
}

TEST(RequestParser, NeutralValuesOfUnsupportedFieldsPass) {
  accepted(ApiKind::kChat,
           chat(R"("tools":[],"tool_choice":"none","functions":null,"response_format":{"type":"text"},
      "modalities":["text"],"audio":null,"chat_template_kwargs":{},"skip_special_tokens":true,"priority":0,"slo":null,
      "store":false,"verbosity":"medium","service_tier":"default","moderation":null,"parallel_tool_calls":null,
      "add_special_tokens":false,"detokenize":true,"stream":true,
      "stream_options":{"include_obfuscation":false,"continuous_usage_stats":false})"));
  accepted(ApiKind::kCompletion, completion(R"("best_of":1,"suffix":"","logprobs":null,
      "add_special_tokens":true)"));
}

TEST(RequestParser, BestOf) {
  const auto with = [](const std::string& fields) {
    return accepted(ApiKind::kCompletion, completion(fields));
  };
  EXPECT_EQ(with("").candidates(), 1U);
  EXPECT_EQ(with(R"("n":3)").candidates(), 3U);
  EXPECT_FALSE(with(R"("n":3)").ranks());
  EXPECT_EQ(with(R"("n":2,"best_of":5)").candidates(), 5U);
  EXPECT_TRUE(with(R"("n":2,"best_of":5)").ranks());
  EXPECT_FALSE(with(R"("n":2,"best_of":2,"stream":true)").ranks()) << "nothing is left out";
}

struct RefusedField {
  ApiKind kind;
  const char* fields;
  const char* param;
};

class RefusedFields : public ::testing::TestWithParam<RefusedField> {};

TEST_P(RefusedFields, AreNamed) {
  const RefusedField& c = GetParam();
  const std::string body = c.kind == ApiKind::kChat ? chat(c.fields) : completion(c.fields);
  const ApiError e = refused(c.kind, body);
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, c.param) << e.message;
  EXPECT_NE(e.message.find(c.param), std::string::npos) << e.message;
}

constexpr ApiKind kChat = ApiKind::kChat, kText = ApiKind::kCompletion;

INSTANTIATE_TEST_SUITE_P(
    Unsupported, RefusedFields,
    ::testing::Values(RefusedField{kChat, R"("tools":[{"type":"retrieval"}])", "tools[0].type"},
                      RefusedField{kChat, R"("tool_choice":"required")", "tool_choice"},
                      RefusedField{kChat, R"("functions":[{}])", "functions"},
                      RefusedField{kChat, R"("modalities":["text","audio"])", "modalities"},
                      RefusedField{kChat, R"("audio":{"voice":"x"})", "audio"},
                      RefusedField{kChat, R"("prediction":{"type":"content"})", "prediction"},
                      RefusedField{kChat, R"("chat_template_kwargs":[1])", "chat_template_kwargs"},
                      RefusedField{kChat, R"("add_generation_prompt":false)", "add_generation_prompt"},
                      RefusedField{kChat, R"("continue_final_message":true)", "continue_final_message"},
                      RefusedField{kChat, R"("store":true)", "store"},
                      RefusedField{kChat, R"("verbosity":"low")", "verbosity"},
                      RefusedField{kChat, R"("service_tier":"flex")", "service_tier"},
                      RefusedField{kText, R"("service_tier":"priority")", "service_tier"},
                      RefusedField{kChat, R"("moderation":{})", "moderation"},
                      RefusedField{kChat, R"("function_call":"auto")", "function_call"},
                      RefusedField{kChat, R"("add_special_tokens":true)", "add_special_tokens"},
                      RefusedField{kText, R"("add_special_tokens":false)", "add_special_tokens"},
                      RefusedField{kText, R"("detokenize":false)", "detokenize"},
                      RefusedField{kChat, R"("stream":true,"stream_options":{"include_obfuscation":true})",
                                   "stream_options.include_obfuscation"},
                      RefusedField{kText, R"("stream":true,"stream_options":{"continuous_usage_stats":true})",
                                   "stream_options.continuous_usage_stats"},
                      RefusedField{kText, R"("n":3,"best_of":2)", "best_of"},
                      RefusedField{kText, R"("best_of":2,"stream":true)", "best_of"},
                      RefusedField{kText, R"("suffix":"end")", "suffix"}));

INSTANTIATE_TEST_SUITE_P(
    Wrong, RefusedFields,
    ::testing::Values(
        RefusedField{kChat, R"("temperature":2.5)", "temperature"},
        RefusedField{kChat, R"("temperature":-0.1)", "temperature"},
        RefusedField{kChat, R"("temperature":"warm")", "temperature"},
        RefusedField{kChat, R"("temperature":true)", "temperature"},
        RefusedField{kChat, R"("top_p":0)", "top_p"}, RefusedField{kChat, R"("top_p":1.01)", "top_p"},
        RefusedField{kChat, R"("top_k":-2)", "top_k"}, RefusedField{kChat, R"("top_k":1.5)", "top_k"},
        RefusedField{kChat, R"("seed":1.5)", "seed"}, RefusedField{kChat, R"("seed":"x")", "seed"},
        RefusedField{kChat, R"("max_tokens":0)", "max_tokens"},
        RefusedField{kChat, R"("max_tokens":-1)", "max_tokens"},
        RefusedField{kChat, R"("max_tokens":99999999999)", "max_tokens"},
        RefusedField{kChat, R"("max_completion_tokens":0)", "max_completion_tokens"},
        RefusedField{kChat, R"("stop":"")", "stop"}, RefusedField{kChat, R"("stop":[1])", "stop"},
        RefusedField{kChat, R"("stop":{})", "stop"},
        RefusedField{kChat, R"("stop":["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"])",
                     "stop"},
        RefusedField{kChat, R"("stop_token_ids":[-1])", "stop_token_ids"},
        RefusedField{kChat, R"("stop_token_ids":5)", "stop_token_ids"},
        RefusedField{kChat, R"("stream":"yes")", "stream"}, RefusedField{kChat, R"("stream":1)", "stream"},
        RefusedField{kChat, R"("stream_options":{"include_usage":true})", "stream_options"},
        RefusedField{kChat, R"("stream":true,"stream_options":[])", "stream_options"},
        RefusedField{kChat, R"("stream":true,"stream_options":{"include_usage":1})",
                     "stream_options.include_usage"},
        RefusedField{kChat, R"("n":0)", "n"}, RefusedField{kChat, R"("n":129)", "n"},
        RefusedField{kChat, R"("frequency_penalty":2.1)", "frequency_penalty"},
        RefusedField{kChat, R"("presence_penalty":-2.1)", "presence_penalty"},
        RefusedField{kChat, R"("repetition_penalty":0)", "repetition_penalty"},
        RefusedField{kChat, R"("min_p":1.1)", "min_p"}, RefusedField{kChat, R"("min_p":-0.1)", "min_p"},
        RefusedField{kChat, R"("typical_p":0)", "typical_p"},
        RefusedField{kChat, R"("min_tokens":-1)", "min_tokens"},
        RefusedField{kChat, R"("bad_words":"a")", "bad_words"},
        RefusedField{kChat, R"("bad_words":[""])", "bad_words"},
        RefusedField{kChat, R"("logit_bias":[])", "logit_bias"},
        RefusedField{kChat, R"("logit_bias":{"a":1})", "logit_bias"},
        RefusedField{kChat, R"("logit_bias":{"-1":1})", "logit_bias"},
        RefusedField{kChat, R"("logit_bias":{"9999999999":1})", "logit_bias"},
        RefusedField{kChat, R"("logit_bias":{"5":100.5})", "logit_bias"},
        RefusedField{kChat, R"("logit_bias":{"5":"1"})", "logit_bias"},
        RefusedField{kText, R"("max_tokens":0)", "max_tokens"}, RefusedField{kText, R"("echo":1)", "echo"},
        RefusedField{kText, R"("prompt_logprobs":21)", "prompt_logprobs"},
        RefusedField{kChat, R"("stream":true,"prompt_logprobs":1)", "prompt_logprobs"},
        RefusedField{kChat, R"("logprobs":2)", "logprobs"},
        RefusedField{kChat, R"("top_logprobs":3)", "top_logprobs"},
        RefusedField{kChat, R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
        RefusedField{kChat, R"("priority":"high")", "priority"},
        RefusedField{kChat, R"("cache_salt":7)", "cache_salt"}, RefusedField{kChat, R"("model":7)", "model"},
        RefusedField{kChat, R"("ignore_eos":1)", "ignore_eos"},
        RefusedField{kText, R"("logprobs":21)", "logprobs"},
        RefusedField{kText, R"("logprobs":true)", "logprobs"},
        RefusedField{kText, R"("parse_special":1)", "parse_special"},
        RefusedField{kText, R"("prompt":[])", "prompt"}, RefusedField{kText, R"("prompt":null)", "prompt"},
        RefusedField{kText, R"("prompt":[1,"a"])", "prompt"},
        RefusedField{kText, R"("prompt":["a",1])", "prompt"},
        RefusedField{kText, R"("prompt":[[]])", "prompt"},
        RefusedField{kText, R"("prompt":[1,-5])", "prompt"}, RefusedField{kText, R"("prompt":7)", "prompt"},
        RefusedField{kText, R"("prompt":{})", "prompt"}));

TEST(RequestParser, Messages) {
  const auto with = [](const std::string& messages) { return R"({"messages":)" + messages + "}"; };
  const ApiRequest r = accepted(ApiKind::kChat, with(R"([{"role":"developer","content":"d","name":null},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":"c","tool_calls":[]},{"role":"user","content":""}])"));
  ASSERT_EQ(r.messages.size(), 4u);
  EXPECT_EQ(r.messages[0].role, "system");
  EXPECT_EQ(r.messages[1].content, "a\nb");

  const std::pair<const char*, const char*> wrong[] = {
      {R"([])", "messages"},
      {R"("hi")", "messages"},
      {R"([7])", "messages[0]"},
      {R"([{"content":"a"}])", "messages[0].role"},
      {R"([{"role":"wizard","content":"a"}])", "messages[0].role"},
      {R"([{"role":"tool","content":"a"}])", "messages[0].tool_call_id"},
      {R"([{"role":"function","content":"a"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":"a"},{"role":"user","content":5}])", "messages[1].content"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":[{"text":"a"}]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":"a","name":7}])", "messages[0].name"},
      {R"([{"role":"assistant","content":"a","tool_calls":{}}])", "messages[0].tool_calls"},
      {R"([{"role":"assistant","content":"a","tool_calls":[{}]}])", "messages[0].tool_calls[0].id"},
      {R"([{"role":"assistant","tool_calls":[{"id":"1","type":"x"}]}])", "messages[0].tool_calls[0].type"},
      {R"([{"role":"assistant","tool_calls":[{"id":"1"}]}])", "messages[0].tool_calls[0].function"},
      {R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":1}}]}])",
       "messages[0].tool_calls[0].function.name"},
      {R"([{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":1}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"assistant","content":"a","function_call":{"name":"f"}}])", "messages[0].function_call"},
      {R"([{"role":"assistant","content":"a","reasoning":5}])", "messages[0].reasoning"},
      {R"([{"role":"assistant"}])", "messages[0].content"},
  };
  for (const auto& [messages, param] : wrong) {
    const ApiError e = refused(ApiKind::kChat, with(messages));
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param, param) << messages << ": " << e.message;
  }
  EXPECT_NE(refused(ApiKind::kChat, with(R"([{"role":"user","content":[{"type":"image_url"}]}])"))
                .message.find("image_url"),
            std::string::npos);
}

TEST(RequestParser, Prompts) {
  const auto with = [](const std::string& prompt) { return R"({"prompt":)" + prompt + "}"; };
  const auto prompts = [&](const std::string& p) { return accepted(ApiKind::kCompletion, with(p)).prompts; };
  EXPECT_EQ(prompts(R"("a")"), (std::vector<PromptInput>{std::string("a")}));
  EXPECT_EQ(prompts("[1,2,3.0]"), (std::vector<PromptInput>{std::vector<Token>{1, 2, 3}}));
  EXPECT_EQ(prompts(R"(["a","b"])"), (std::vector<PromptInput>{std::string("a"), std::string("b")}));
  EXPECT_EQ(prompts("[[1],[2,3]]"),
            (std::vector<PromptInput>{std::vector<Token>{1}, std::vector<Token>{2, 3}}));
  EXPECT_FALSE(accepted(ApiKind::kCompletion, with(R"("a")")).max_tokens);
  EXPECT_EQ(accepted(ApiKind::kCompletion, with(R"("a")")).default_max_tokens, 16u);
}

TEST(RequestParser, BodiesThatAreNotJson) {
  const std::string bad[] = {
      "",
      "nonsense",
      "[1]",
      "\"a\"",
      "{",
      R"({"prompt":"a"} trailing)",
      R"({"prompt":"\ud800"})",         // a lone high surrogate
      R"({"prompt":"\udc00 x"})",       // a lone low one
      "{\"prompt\":\"\xff\"}",          // not UTF-8
      "{\"prompt\":\"\xc3\"}",          // cut short
      "{\"prompt\":\"\xed\xa0\x80\"}",  // a surrogate in UTF-8
      "{\"prompt\":\"a\x01\"}",         // a control character
      R"({"prompt":"a","temperature":1e999})",
      R"({"prompt":"a","temperature":NaN})",
      std::string("{\"prompt\":\"a\0\"}", 14),
  };
  for (const std::string& body : bad) {
    const ApiError e = refused(ApiKind::kCompletion, body);
    EXPECT_EQ(e.status, 400) << body;
    EXPECT_LT(e.message.size(), 200u);
  }
  // Escapes that are whole characters are fine.
  EXPECT_EQ(
      std::get<std::string>(accepted(ApiKind::kCompletion, R"({"prompt":"\ud83d\ude00\u0000"})").prompts[0]),
      std::string("\xF0\x9F\x98\x80\0", 5));
}

TEST(RequestParser, BoundsOnNestingAndValues) {
  const auto nested = [](size_t levels) {
    return R"({"prompt":"a","x":)" + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
  };
  accepted(ApiKind::kCompletion, nested(64));
  refused(ApiKind::kCompletion, nested(65));
  refused(ApiKind::kCompletion, std::string(1'000'000, '['));
  std::string many = R"({"prompt":"a","x":[0)";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  refused(ApiKind::kCompletion, many + "]}");
  // Brackets and commas inside a string do not count.
  accepted(ApiKind::kCompletion, R"({"prompt":")" + std::string(100, '[') + R"(\"[[,,"})");
}

TEST(RequestParser, EveryCutOfABodyIsRefused) {
  const std::string body = chat(R"("stop":["a\u00e9"],"temperature":0.5,"logit_bias":{})");
  for (size_t n = 0; n < body.size(); ++n) refused(ApiKind::kChat, body.substr(0, n));
  accepted(ApiKind::kChat, body);
}

}  // namespace
}  // namespace kvasir
