// The small parts: keys, routes, heads, prompts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/auth.h"
#include "server/http_message.h"
#include "server/prompt.h"
#include "server/response_writer.h"
#include "server/router.h"
#include "server/test_service.h"

namespace kvasir {
namespace {

using nlohmann::json;

TEST(Auth, BearerTokens) {
  EXPECT_TRUE(is_authorized("", {}));
  const std::vector<std::string> keys = {"first-key", "second"};
  EXPECT_TRUE(is_authorized("Bearer first-key", keys));
  EXPECT_TRUE(is_authorized("bearer second", keys));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-keyx",
                            "Bearer secondsecond", "Basic first-key", "first-key", "Bearer  first-key"}) {
    EXPECT_FALSE(is_authorized(wrong, keys)) << wrong;
  }
  EXPECT_FALSE(is_authorized("Bearer ", {""}));
}

TEST(Router, PathsAndMethods) {
  EXPECT_EQ(route("POST", "/v1/chat/completions").endpoint, Endpoint::kChat);
  EXPECT_EQ(route("POST", "/v1/completions?x=1").endpoint, Endpoint::kCompletions);
  EXPECT_EQ(route("GET", "/v1/models").endpoint, Endpoint::kModels);
  EXPECT_EQ(route("GET", "/v1/models/org%2Fm").model_id, "org/m");
  EXPECT_EQ(route("GET", "/v1/models/org/m").model_id, "org/m");
  EXPECT_EQ(route("GET", "/v1/models/%zz%4").model_id, "%zz%4");
  EXPECT_EQ(route("HEAD", "/health").endpoint, Endpoint::kHealth);
  EXPECT_EQ(route("GET", "/metrics").endpoint, Endpoint::kMetrics);
  EXPECT_EQ(route("GET", "/version").endpoint, Endpoint::kVersion);
  EXPECT_EQ(route("POST", "/v1/embeddings").endpoint, Endpoint::kOff);
  EXPECT_EQ(route("POST", "/v1/audio/speech").endpoint, Endpoint::kOff);
  for (const char* path :
       {"/", "", "*", "/v1", "/v1/", "/v1/nothing", "/v1/models/", "/healthy", "/v1/embeddingsx"}) {
    EXPECT_EQ(route("GET", path).endpoint, Endpoint::kUnknown) << path;
  }
  const Route wrong = route("GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.endpoint, Endpoint::kWrongMethod);
  EXPECT_STREQ(wrong.allow, "POST");
  EXPECT_STREQ(route("DELETE", "/v1/models").allow, "GET, HEAD");
  EXPECT_TRUE(route("GET", "/v1/nothing").needs_key);
  EXPECT_FALSE(route("GET", "/metrics").needs_key);
  EXPECT_FALSE(route("GET", "/health").needs_key);
}

TEST(HttpMessage, ChunksAndIds) {
  EXPECT_EQ(format_chunk("0123456789abcdefg"), "11\r\n0123456789abcdefg\r\n");
  EXPECT_EQ(request_id_or_new("my-id"), "my-id");
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("a\x7f"),
                                 std::string(129, 'a'), std::string("\xC3\xA9")}) {
    EXPECT_TRUE(request_id_or_new(bad).starts_with("req-")) << bad;
  }
  EXPECT_NE(random_hex_id(), random_hex_id());
  EXPECT_EQ(random_hex_id().size(), 24u);
}

TEST(HttpMessage, HeadOnly) {
  HttpResponse response = json_response("{}");
  ExchangeInfo info;
  info.request_id = "r";
  info.head_only = true;
  const std::string text = format_response(response, info);
  EXPECT_NE(text.find("Content-Length: 2\r\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\r\n\r\n"));
}

TEST(ResponseWriter, Errors) {
  ApiError e = bad_field("prompt", "too \"long\"");
  e.n_prompt_tokens = 7;
  e.n_ctx = 5;
  const json body = json::parse(error_json(e));
  EXPECT_EQ(body["error"]["message"], "too \"long\"");
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["error"]["param"], "prompt");
  EXPECT_TRUE(body["error"]["code"].is_null());
  EXPECT_EQ(body["error"]["n_prompt_tokens"], 7);
  EXPECT_EQ(body["error"]["n_ctx"], 5);
}

TEST(ResponseWriter, AnyNameAndTextBecomeValidJson) {
  const Tokenizer tokenizer = test::byte_tokenizer();
  const ResponseWriter writer(&tokenizer, ApiKind::kChat, "id", 1, "a\"b\\\xff", false, true);
  TextDelta delta;
  delta.text = "q\"\n\x01\xF0\x9F\x98\x80";
  const json body = json::parse(writer.delta_chunk(0, delta, ""));
  EXPECT_EQ(body["choices"][0]["delta"]["content"], delta.text);
  EXPECT_EQ(body["model"], "a\"b\\\xEF\xBF\xBD");
  EXPECT_TRUE(json::accept(writer.role_chunk(3)));
  EXPECT_TRUE(json::accept(writer.usage_chunk({})));
  EXPECT_TRUE(json::accept(writer.full({{delta, "stop"}, {{}, "length"}}, {})));
}

class PromptTest : public ::testing::Test {
 protected:
  PreparedRequest prepared(ApiRequest request) {
    auto outcome = prepare_request(service_.service(), std::move(request));
    if (auto* e = std::get_if<ApiError>(&outcome)) {
      ADD_FAILURE() << e->message;
      return {};
    }
    return std::get<PreparedRequest>(std::move(outcome));
  }
  ApiError refused(ApiRequest request) {
    auto outcome = prepare_request(service_.service(), std::move(request));
    if (auto* e = std::get_if<ApiError>(&outcome)) return *e;
    ADD_FAILURE() << "accepted";
    return {};
  }
  static ApiRequest completion(PromptInput prompt) {
    ApiRequest r;
    r.kind = ApiKind::kCompletion;
    r.prompts = {std::move(prompt)};
    return r;
  }

  test::TestService service_{test::say("x"), 20};
};

TEST_F(PromptTest, ChatGoesThroughTheTemplate) {
  ApiRequest r;
  r.messages = {{"user", "a"}};
  r.sampling.temperature = 0.5f;
  r.seed = 42;
  const PreparedRequest p = prepared(r);
  ASSERT_EQ(p.generations.size(), 1u);
  const GenerationRequest& g = p.generations[0];
  EXPECT_EQ(g.prompt.size(), std::string("user: a|assistant:").size());
  EXPECT_EQ(g.max_tokens, 20 - g.prompt.size());
  EXPECT_EQ(g.stop_tokens, (std::vector<Token>{test::kEndToken}));
  EXPECT_EQ(g.sampling.seed, 42u);
  EXPECT_EQ(g.sampling.temperature, 0.5f);
}

TEST_F(PromptTest, SeedsAreDrawnWhereNoneIsGiven) {
  const uint64_t a = prepared(completion("a")).generations[0].sampling.seed;
  const uint64_t b = prepared(completion("a")).generations[0].sampling.seed;
  EXPECT_NE(a, b);
}

TEST_F(PromptTest, TemplateErrorsAreTheClients) {
  ApiRequest r;
  r.messages = {{"user", "forbidden"}};
  const ApiError e = refused(r);
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, "messages");
  EXPECT_EQ(e.message, "the template refuses this message");
  ModelService bare = service_.service();
  bare.render_chat = nullptr;
  EXPECT_TRUE(std::holds_alternative<ApiError>(prepare_request(bare, r)));
}

TEST_F(PromptTest, IgnoreEosAndStopTokens) {
  ApiRequest r = completion("a");
  r.ignore_eos = true;
  r.stop_token_ids = {77};
  EXPECT_EQ(prepared(r).generations[0].stop_tokens, (std::vector<Token>{77}));
  r.stop_token_ids = {259};
  EXPECT_EQ(refused(r).param, "stop_token_ids");
}

TEST_F(PromptTest, Lengths) {
  ApiError e = refused(completion(std::string(20, 'a')));
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.code, "context_length_exceeded");
  EXPECT_EQ(e.n_prompt_tokens, 20u);
  EXPECT_EQ(e.n_ctx, 20u);
  EXPECT_EQ(e.param, "prompt");
  EXPECT_EQ(prepared(completion(std::string(19, 'a'))).generations[0].max_tokens, 1u);
  ApiRequest r = completion(std::string(15, 'a'));
  r.max_tokens = 5;
  EXPECT_EQ(prepared(r).generations[0].max_tokens, 5u);
  r.max_tokens = 6;
  e = refused(r);
  EXPECT_EQ(e.param, "max_tokens");
  EXPECT_NE(e.message.find("at most 5 fit"), std::string::npos) << e.message;
  EXPECT_EQ(refused(completion("")).message, "the prompt is empty");
}

TEST_F(PromptTest, TokenPromptsAreChecked) {
  EXPECT_EQ(prepared(completion(std::vector<Token>{0, 258})).generations[0].prompt,
            (std::vector<Token>{0, 258}));
  EXPECT_EQ(refused(completion(std::vector<Token>{259})).param, "prompt");
}

}  // namespace
}  // namespace kvasir
