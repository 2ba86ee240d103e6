// The small parts: routes, heads, prompts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/random.h"
#include "server/handlers/openai.h"
#include "server/http_client.h"
#include "server/http_message.h"
#include "server/prompt.h"
#include "server/prompt_bound.h"
#include "server/router.h"
#include "server/test_service.h"

namespace kvasir {
namespace {

using nlohmann::json;

Route find(std::string_view method, std::string_view target) {
  return find_route(all_endpoints(), method, target);
}

std::string_view path_of(const Route& route) {
  return route.endpoint == nullptr ? "none" : route.endpoint->path;
}

TEST(Router, PathsAndMethods) {
  EXPECT_EQ(path_of(find("POST", "/v1/chat/completions")), "/v1/chat/completions");
  EXPECT_EQ(path_of(find("POST", "/v1/completions?x=1")), "/v1/completions");
  EXPECT_EQ(path_of(find("GET", "/v1/models")), "/v1/models");
  EXPECT_EQ(path_of(find("GET", "/v1/models/m")), "/v1/models/*");
  EXPECT_EQ(find("GET", "/v1/models/org%2Fm").parameter, "org/m");
  EXPECT_EQ(find("GET", "/v1/models/org/m").parameter, "org/m");
  EXPECT_EQ(find("GET", "/v1/models/%zz%4").parameter, "%zz%4");
  EXPECT_EQ(path_of(find("HEAD", "/health")), "/health");
  EXPECT_EQ(path_of(find("GET", "/metrics")), "/metrics");
  EXPECT_EQ(path_of(find("GET", "/version")), "/version");
  EXPECT_EQ(path_of(find("GET", "/tokenizer_info")), "/tokenizer_info");
  EXPECT_EQ(path_of(find("POST", "/v1/messages/count_tokens?beta=true")), "/v1/messages/count_tokens");
  EXPECT_EQ(path_of(find("DELETE", "/v1/responses/resp_1")), "/v1/responses/*");
  EXPECT_EQ(find("POST", "/v1/responses/resp_1").refusal.allow, "GET, HEAD, DELETE");
  EXPECT_EQ(path_of(find("GET", "/?chat=1")), "/");
  EXPECT_EQ(find("GET", "/assets/common/style.css").parameter, "common/style.css");
  EXPECT_EQ(find("GET", "/docs/page.js").parameter, "page.js");
  EXPECT_EQ(find("POST", "/v1/audio/speech").refusal.status, 501);
  for (const char* path :
       {"/assets", "", "*", "/v1", "/v1/", "/v1/nothing", "/v1/models/", "/healthy", "/v1/audiox"}) {
    EXPECT_EQ(path_of(find("GET", path)), "none") << path;
    EXPECT_EQ(find("GET", path).refusal.status, 404) << path;
  }
  const std::string nothing = find("GET", "/nothing").refusal.body;
  EXPECT_NE(
      nothing.find("there is nothing at /nothing; the endpoints are /v1/chat/completions, /v1/completions, "),
      std::string::npos)
      << nothing;
  for (const Endpoint& e : all_endpoints()) {
    if (!e.path.ends_with('*')) {
      EXPECT_NE(nothing.find(e.path), std::string::npos) << e.path;
    }
  }
  const Route wrong = find("GET", "/v1/chat/completions");
  EXPECT_EQ(path_of(wrong), "none");
  EXPECT_EQ(wrong.refusal.status, 405);
  EXPECT_EQ(wrong.refusal.allow, "POST");
  EXPECT_EQ(find("DELETE", "/v1/models").refusal.allow, "GET, HEAD");
  EXPECT_TRUE(find("GET", "/v1/nothing").needs_key);
  EXPECT_TRUE(wrong.needs_key);
  EXPECT_FALSE(find("GET", "/metrics").needs_key);
  EXPECT_FALSE(find("GET", "/health").needs_key);
}

TEST(Router, OnePathWithTwoMethods) {
  const Endpoint table[] = {{"GET", "/a", Endpoint::Key::kNoKey}, {"POST", "/a", Endpoint::Key::kNoKey}};
  EXPECT_EQ(find_route(table, "POST", "/a").endpoint, &table[1]);
  EXPECT_EQ(find_route(table, "PUT", "/a").refusal.allow, "GET, HEAD, POST");
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

TEST(ApiErrors, AsJson) {
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

TEST(AnswerWriter, AnyNameAndTextBecomeValidJson) {
  const Tokenizer tokenizer = test::byte_tokenizer();
  ApiRequest request;
  request.model = "a\"b\\\xff";
  request.include_usage = true;
  const std::unique_ptr<AnswerWriter> writer = make_chat_writer(tokenizer, request);
  const auto data = [](const std::string& event) { return test::events(event).at(0); };
  TextDelta delta;
  delta.text = "q\"\n\x01\xF0\x9F\x98\x80";
  EXPECT_TRUE(json::accept(data(writer->delta_event(0, delta, "")))) << "the role";
  const json body = json::parse(data(writer->delta_event(0, delta, "")));
  EXPECT_EQ(body["choices"][0]["delta"]["content"], delta.text);
  EXPECT_EQ(body["model"], "a\"b\\\xEF\xBF\xBD");
  EXPECT_TRUE(json::accept(data(writer->usage_event({}))));
  EXPECT_TRUE(json::accept(writer->whole({{delta, "stop"}, {{}, "length"}}, {})));
}

using test::token_of;

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

TEST_F(PromptTest, RulesOfLogitsAreSharedByTheChoices) {
  ApiRequest r = completion("a");
  r.bad_words = {"ab", " c"};
  r.rules.min_tokens = 2;
  r.rules.bias = {{token_of('q'), 1.5F}};
  r.stop_token_ids = {token_of('s')};
  r.choices = 2;
  r.seed = 7;
  const PreparedRequest p = prepared(r);
  ASSERT_EQ(p.generations.size(), 2U);
  EXPECT_EQ(p.generations[0].sampling.seed, 7U);
  EXPECT_EQ(p.generations[1].sampling.seed, 8U) << "else both would say the same";
  ASSERT_TRUE(p.generations[0].sampling.rules);
  EXPECT_EQ(p.generations[0].sampling.rules, p.generations[1].sampling.rules);
  const LogitRules& rules = *p.generations[0].sampling.rules;
  // Behind a space they are a token more, and so no words of their own.
  EXPECT_EQ(rules.bad_words,
            (std::vector<std::vector<Token>>{{token_of('a'), token_of('b')}, {token_of('c')}}));
  EXPECT_EQ(rules.ends, (std::vector<Token>{token_of('s'), test::kEndToken}));
  EXPECT_FALSE(prepared(completion("a")).generations[0].sampling.rules) << "nothing to do for plain requests";
}

TEST_F(PromptTest, WhatCannotBeSampledIsRefused) {
  ApiRequest r = completion("a");
  r.rules.min_tokens = 6;
  r.max_tokens = 5;
  EXPECT_EQ(refused(r).param, "min_tokens");
  r = completion("a");
  r.rules.bias = {{100000, 1.0F}};
  EXPECT_EQ(refused(r).param, "logit_bias");
  r.rules.bias = {};
  r.prompts = {"a", "b"};
  r.choices = 65;
  EXPECT_EQ(refused(r).param, "n");
}

TEST_F(PromptTest, SeedsAreDrawnWhereNoneIsGiven) {
  const uint64_t a = prepared(completion("a")).generations[0].sampling.seed;
  const uint64_t b = prepared(completion("a")).generations[0].sampling.seed;
  EXPECT_NE(a, b);
}

TEST_F(PromptTest, EveryPromptHasASeedOfItsOwnUnlessOneIsGiven) {
  ApiRequest r = completion("a");
  r.prompts.emplace_back("a");
  const PreparedRequest drawn = prepared(r);
  EXPECT_NE(drawn.generations.at(0).sampling.seed, drawn.generations.at(1).sampling.seed);
  r.seed = 7;
  const PreparedRequest given = prepared(r);
  EXPECT_EQ(given.generations.at(0).sampling.seed, 7u);
  EXPECT_EQ(given.generations.at(1).sampling.seed, 7u);
}

TEST_F(PromptTest, ADefaultLengthGivesWayWhereAnOrderedOneDoesNot) {
  ApiRequest r = completion(std::string(15, 'a'));
  r.default_max_tokens = 16;
  EXPECT_EQ(prepared(r).generations.at(0).max_tokens, 5u);
  r.prompts[0] = std::string(2, 'a');
  EXPECT_EQ(prepared(r).generations.at(0).max_tokens, 16u);
  r.max_tokens = 19;
  EXPECT_EQ(refused(r).param, "max_tokens");
}

TEST_F(PromptTest, HugeTextsAreRefusedUntokenised) {
  // The longest token of the tests' vocabulary is <|endoftext|>, of 13 bytes.
  ApiError e = refused(completion(std::string(20 * 13 - 12, 'a')));
  EXPECT_EQ(e.n_prompt_tokens, 20u);
  EXPECT_NE(e.message.find("at least 20 tokens"), std::string::npos) << e.message;
  EXPECT_EQ(e.code, "context_length_exceeded");
  EXPECT_EQ(e.param, "prompt");
  // One byte less might fit by its bytes alone: only its tokens tell.
  e = refused(completion(std::string(20 * 13 - 13, 'a')));
  EXPECT_EQ(e.n_prompt_tokens, 20u * 13 - 13);
  ApiRequest chat;
  chat.messages = {{"user", std::string(1300, 'a')}};
  EXPECT_EQ(refused(chat).param, "messages");
  EXPECT_LT(*refused(chat).n_prompt_tokens, 1300u);
  // Nothing that fits is refused, however few its tokens.
  std::string special;
  for (int i = 0; i < 19; ++i) special += "<|endoftext|>";
  ApiRequest few = completion(special);
  few.parse_special = true;
  EXPECT_EQ(prepared(few).generations.at(0).prompt.size(), 19u);
}

TEST_F(PromptTest, TheLeastTokensAreNeverMoreThanThoseThereAre) {
  Random random(3);
  const char* pieces[] = {"<|endoftext|>", "<|im_start|>", "a", " ", "\xC3\xA9", "\n", "<|"};
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (uint64_t n = random.below(40); n > 0; --n) text += pieces[random.below(7)];
    const size_t least = least_tokens(service_.tokenizer, text);
    EXPECT_LE(least, service_.tokenizer.encode(text, true).size()) << text;
    EXPECT_LE(least, service_.tokenizer.encode(text, false).size()) << text;
    EXPECT_EQ(least == 0, text.empty());
  }
}

TEST_F(PromptTest, NothingIsRenderedForAClientThatHasLeft) {
  std::atomic<bool> abandoned{true};
  ModelService service = service_.service();
  int rendered = 0;
  service.render_chat = [&](const ApiRequest& request) {
    ++rendered;
    return test::render_test_chat(request);
  };
  ApiRequest chat;
  chat.messages = {{"user", "a"}};
  EXPECT_TRUE(std::holds_alternative<ApiError>(prepare_request(service, chat, &abandoned)));
  EXPECT_EQ(rendered, 0);
  EXPECT_TRUE(std::holds_alternative<ApiError>(prepare_request(service, completion("a"), &abandoned)));
  abandoned = false;
  EXPECT_TRUE(std::holds_alternative<PreparedRequest>(prepare_request(service, chat, &abandoned)));
  EXPECT_EQ(rendered, 1);
}

TEST(PromptLogprobs, AnAnswerInOnePieceHasABound) {
  test::TestService wide(test::say("x"), 100'000);
  ApiRequest r;
  for (int i = 0; i < 128; ++i) r.prompts.emplace_back("a");
  r.sampling.logprobs = 3;
  r.max_tokens = kMaxHeldLogprobs / 128 / 4;
  EXPECT_TRUE(std::holds_alternative<PreparedRequest>(prepare_request(wide.service(), r)));
  r.max_tokens = *r.max_tokens + 1;
  const auto over = prepare_request(wide.service(), r);
  ASSERT_TRUE(std::holds_alternative<ApiError>(over));
  EXPECT_EQ(std::get<ApiError>(over).param, "logprobs");
  EXPECT_NE(std::get<ApiError>(over).message.find(std::to_string(kMaxHeldLogprobs)), std::string::npos);
  r.stream = true;
  EXPECT_TRUE(std::holds_alternative<PreparedRequest>(prepare_request(wide.service(), r)));
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

TEST_F(PromptTest, EveryEndOfTheModelStopsAnOutput) {
  service_.tokenizer = test::byte_tokenizer({0, test::kEndToken});
  EXPECT_EQ(prepared(completion("a")).generations[0].stop_tokens, (std::vector<Token>{test::kEndToken, 0}));
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
