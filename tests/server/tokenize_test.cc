// /tokenize, /detokenize and /tokenizer_info: fields, answers, and the way there and back.
#include "server/handlers/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/running_server.h"
#include "support/tiny_llama.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> out;
  for (const char c : text) out.push_back(token_of(c));
  return out;
}

TEST(Tokenize, TextAndMessages) {
  RunningServer server(say("x"));
  const HttpAnswer text = server.ask(post("/tokenize", R"({"model":"alias","prompt":"h<|im_end|>"})"));
  EXPECT_EQ(text.status, 200);
  EXPECT_EQ(json::parse(text.body), json({{"count", 11},
                                          {"max_model_len", 4096},
                                          {"tokens", tokens_of("h<|im_end|>")},
                                          {"token_strs", nullptr}}));
  const auto tokens = [&](const std::string& body) {
    return json::parse(server.ask(post("/tokenize", body)).body)["tokens"];
  };
  EXPECT_EQ(tokens(R"({"prompt":"h<|im_end|>","parse_special":true})"), json({token_of('h'), kEndToken}));
  EXPECT_EQ(tokens(R"({"messages":[{"role":"user","content":"hi"}]})"), tokens_of("user: hi|assistant:"));
  EXPECT_EQ(tokens(R"({"prompt":""})"), json::array());
  EXPECT_EQ(tokens(R"({"prompt":")" + std::string(4096, 'a') + "\"}").size(), 4096u) << "the most";
}

TEST(Tokenize, StringsAsTheVocabularyHasThem) {
  RunningServer server(say("x"));
  const auto answer = json::parse(
      server
          .ask(post("/tokenize",
                    R"({"prompt":"a é<|im_end|>","parse_special":true,"return_token_strs":true})"))
          .body);
  // A space and the two bytes of é in the letters that byte-level vocabularies have for them.
  EXPECT_EQ(answer["token_strs"], json({"a", "\u0120", "\u00c3", "\u00a9", "<|im_end|>"}));
  EXPECT_EQ(answer["count"], 5);
}

// That of the tests, but plain prompts begin with token 0.
Tokenizer tokenizer_with_bos() {
  TinyVocabulary vocabulary = make_tiny_vocabulary(259);
  TokenizerData data;
  data.split = find_pretokenizer("smollm").value().split;
  data.tokens = std::move(vocabulary.tokens);
  data.token_types = std::move(vocabulary.types);
  data.merges = std::move(vocabulary.merges);
  data.bos = 0;
  data.add_bos = true;
  return Tokenizer::create(std::move(data)).value();
}

TEST(Tokenize, TheBeginningOfASequence) {
  TestService test(say("x"));
  const Tokenizer with_bos = tokenizer_with_bos();
  ModelService service = test.service();
  service.tokenizer = &with_bos;
  const auto tokens = [&](const std::string& body) {
    auto request = std::get<TokenizeRequest>(parse_tokenize_request(body));
    return std::get<std::vector<Token>>(
        tokenize_prompt(service, std::move(request.api), request.add_special_tokens));
  };
  const std::vector<Token> a = tokens_of("a");
  EXPECT_EQ(tokens(R"({"prompt":"a"})"), (std::vector<Token>{0, a[0]}));
  EXPECT_EQ(tokens(R"({"prompt":"a","add_special_tokens":false})"), a);
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}])";
  EXPECT_EQ(tokens(chat + "}"), tokens_of("user: hi|assistant:"));
  EXPECT_EQ(tokens(chat + R"(,"add_special_tokens":true})").front(), 0);
}

TEST(Tokenize, ToolsAreOfTheChat) {
  RunningServer server(say("x"), test_options(), true,
                       {ToolFormat::kHermes, ReasoningFormat::kNone, "tools"});
  const auto count = [&](const char* path, const std::string& more) {
    const HttpAnswer answer = server.ask(post(path, chat_body(more)));
    EXPECT_EQ(answer.status, 200) << answer.body;
    const json body = json::parse(answer.body);
    return body.contains("usage") ? body["usage"]["prompt_tokens"].get<int>() : body["count"].get<int>();
  };
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_EQ(count("/tokenize", tools),
            count("/tokenize", "") + static_cast<int>(std::string("tool f|").size()));
  EXPECT_EQ(count("/tokenize", tools), count(kChatPath, tools));
  RunningServer plain(say("x"));
  const HttpAnswer refused = plain.ask(post("/tokenize", chat_body(tools)));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("the chat template of this model has no tools"));
}

TEST(Tokenize, Refusals) {
  RunningServer server(say("x"));
  const auto refused = [&](const char* path, const std::string& body, const char* what) {
    const HttpAnswer answer = server.ask(post(path, body));
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_THAT(answer.body, HasSubstr(what));
  };
  refused("/tokenize", "{}", "either 'prompt' or 'messages'");
  refused("/tokenize", R"({"prompt":"a","messages":[{"role":"user","content":"a"}]})", "either 'prompt' or");
  refused("/tokenize", R"({"prompt":[1]})", "'prompt' must be a string");
  refused("/tokenize", R"({"messages":[{"role":"user","content":"forbidden"}]})", "the template refuses");
  refused("/tokenize", R"({"prompt":"a","add_generation_prompt":false})", "always begins");
  refused("/detokenize", "{}", "'tokens' must be a list");
  refused("/detokenize", R"({"tokens":[1,"a"]})", "'tokens' must be a list of token ids");
  refused("/detokenize", R"({"tokens":[1,259]})", "token id 259, but the vocabulary ends at 258");
  refused("/detokenize", R"({"tokens":[-1]})", "'tokens' must be a list of token ids");
  refused("/detokenize", json{{"tokens", std::vector<int>(4097, 5)}}.dump(), "context length is 4096");
  refused("/tokenize", json{{"prompt", std::string(4097, 'a')}}.dump(), "context length is 4096");
  EXPECT_EQ(server.ask(post("/tokenize", R"({"prompt":"a","model":"gpt-9"})")).status, 404);
  EXPECT_EQ(server.ask(post("/detokenize", R"({"tokens":[1],"model":"gpt-9"})")).status, 404);
}

TEST(Tokenize, WhatClientsAskOfTheTokenizer) {
  RunningServer server(say("x"), test_options(), /*ready=*/false);
  EXPECT_EQ(server.ask(get("/tokenizer_info")).status, 503);
  ModelService service = server.service();
  service.chat_template = "{{ \"messages\" }}";
  server->serve(service);
  const HttpAnswer answer = server.ask(get("/tokenizer_info"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(json::parse(answer.body), json({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                            {"bos_token", nullptr},
                                            {"eos_token", "<|im_end|>"},
                                            {"unk_token", nullptr},
                                            {"pad_token", nullptr},
                                            {"add_bos_token", false},
                                            {"model_max_length", 4096},
                                            {"chat_template", "{{ \"messages\" }}"}}));
  RunningServer plain(say("x"));
  EXPECT_EQ(json::parse(plain.ask(get("/tokenizer_info")).body)["chat_template"], nullptr);
}

TEST(Detokenize, IsTheWayBack) {
  RunningServer server(say("x"));
  const auto prompt = [&](const json& tokens) {
    return json::parse(server.ask(post("/detokenize", json{{"tokens", tokens}}.dump())).body)["prompt"];
  };
  EXPECT_EQ(prompt(tokens_of("é a")), "é a");
  EXPECT_EQ(prompt({1, token_of('a'), 2}), "<|im_start|>a<|im_end|>");
  EXPECT_EQ(prompt({token_of('\xc3')}), "\xEF\xBF\xBD") << "half a character";
  EXPECT_EQ(prompt(json::array()), "");
}

}  // namespace
}  // namespace kvasir::test
