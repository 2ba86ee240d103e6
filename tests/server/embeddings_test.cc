// /v1/embeddings: fields, answers, and how the inputs go through the backend.
#include "server/handlers/embeddings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "server/embedding_job.h"
#include "server/running_server.h"
#include "support/tiny_llama.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kPath = "/v1/embeddings";

// The fake backend's embedding of a prompt is (its first token, its length), which is then made 1 long.
std::vector<float> embedding_of(const std::vector<Token>& prompt) {
  const auto x = static_cast<double>(prompt.at(0)), y = static_cast<double>(prompt.size());
  const double length = std::sqrt(x * x + y * y);
  return {static_cast<float>(x / length), static_cast<float>(y / length)};
}

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> out;
  for (const char c : text) out.push_back(token_of(c));
  return out;
}

class Embeddings : public testing::Test {
 protected:
  explicit Embeddings(Pooling pooling = Pooling::kMean) {
    ModelService service = server_.service();
    service.pooling = pooling;
    service.embedding_size = 2;
    server_->serve(std::move(service));
  }
  HttpAnswer ask(const std::string& body) { return server_.ask(post(kPath, body)); }
  // The vectors of an answer, in its order.
  static std::vector<std::vector<float>> vectors(const HttpAnswer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::vector<std::vector<float>> out;
    const json body = json::parse(answer.body);
    for (const json& item : body["data"]) {
      EXPECT_EQ(item["object"], "embedding");
      EXPECT_EQ(item["index"], out.size());
      out.push_back(item["embedding"].get<std::vector<float>>());
    }
    return out;
  }
  void expect_refused(const std::string& body, const char* param, const char* message, int status = 400) {
    SCOPED_TRACE(body.substr(0, 100));
    const HttpAnswer answer = ask(body);
    EXPECT_EQ(answer.status, status);
    const json error = json::parse(answer.body)["error"];
    EXPECT_EQ(error["param"], param);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message));
  }

  RunningServer server_{say("x"), test_options(), /*ready=*/false};
};

TEST_F(Embeddings, AllFormsOfAnInput) {
  const std::vector<std::vector<float>> ab = {embedding_of(tokens_of("ab"))};
  const HttpAnswer one = ask(R"({"input":"ab","model":"alias","user":"me"})");
  EXPECT_EQ(vectors(one), ab);
  const json answer = json::parse(one.body);
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "alias");
  EXPECT_EQ(answer["usage"], json({{"prompt_tokens", 2}, {"total_tokens", 2}}));
  EXPECT_EQ(vectors(ask(json{{"input", tokens_of("ab")}}.dump())), ab);
  EXPECT_EQ(vectors(ask(json{{"input", json::array({tokens_of("ab")})}, {"dimensions", 2}}.dump())), ab);
  const HttpAnswer three = ask(json{{"input", {"ab", tokens_of("c"), "defg"}}}.dump());
  EXPECT_EQ(vectors(three), (std::vector<std::vector<float>>{ab[0], embedding_of(tokens_of("c")),
                                                             embedding_of(tokens_of("defg"))}));
  EXPECT_EQ(json::parse(three.body)["usage"]["prompt_tokens"], 7);
  for (const GenerationRequest& request : server_.backend().submitted()) {
    EXPECT_EQ(request.pooling, Pooling::kMean);
    EXPECT_EQ(request.max_tokens, 1U);
    EXPECT_TRUE(request.stop_tokens.empty());
  }
}

TEST_F(Embeddings, Base64HasTheSameFloats) {
  const json answer = json::parse(ask(R"({"input":"ab","encoding_format":"base64"})").body);
  const std::vector<float> floats = embedding_of(tokens_of("ab"));
  std::string bytes(floats.size() * sizeof(float), 0);
  std::memcpy(bytes.data(), floats.data(), bytes.size());
  EXPECT_EQ(answer["data"][0]["embedding"].get<std::string>(), to_base64(bytes));
}

TEST_F(Embeddings, WhatIsRefused) {
  expect_refused("{}", "input", "must be a string");
  expect_refused(R"({"input":[]})", "input", "not empty");
  expect_refused(R"({"input":""})", "input", "empty");
  expect_refused(R"({"input":["a",3]})", "input", "must be a string");
  expect_refused(R"({"input":[999]})", "input", "the vocabulary ends at 258");
  expect_refused(json{{"input", std::vector<std::string>(2049, "a")}}.dump(), "input", "at most 2048");
  expect_refused(json{{"input", {"a", std::string(4096, 'a')}}}.dump(), "input",
                 "input 1: the prompt has 4096 tokens");
  expect_refused(R"({"input":"a","encoding_format":"int8"})", "encoding_format", "\"float\" or \"base64\"");
  expect_refused(R"({"input":"a","dimensions":1})", "dimensions", "this model's embeddings have 2");
  expect_refused(R"({"input":"a","normalize":false})", "normalize", "embeddings have length 1");
  expect_refused(R"({"input":"a","priority":1})", "priority", "not read");
  EXPECT_EQ(ask(R"({"input":"a","model":"other"})").status, 404);
  EXPECT_TRUE(server_.backend().submitted().empty());
}

class WithoutPooling : public Embeddings {
 protected:
  WithoutPooling() : Embeddings(Pooling::kNone) {}
};

TEST_F(WithoutPooling, SaysWhatToDo) {
  expect_refused(R"({"input":"a"})", "model", "serve it with --pooling last or --pooling mean");
}

// More inputs than run at once, and a queue that is full after the fifth: the others wait for their turn.
TEST_F(Embeddings, ManyInputsTakeTurns) {
  FakeBackend& backend = server_.backend();
  backend.hold(true);
  backend.refuse(error(ErrorCode::kExhausted, "the queue is full"), 5);
  HttpClient client(server_.port());
  std::vector<std::string> inputs;
  for (size_t i = 1; i <= 200; ++i) inputs.emplace_back(i, 'a');
  client.send(post(kPath, json{{"input", inputs}}.dump()));
  ASSERT_TRUE(backend.wait_for([](const FakeBackend& b) { return b.live() == 5; }));
  backend.refuse(Status());
  backend.hold(false);
  const auto got = vectors(client.receive().value_or(HttpAnswer{}));
  ASSERT_EQ(got.size(), 200U);
  for (size_t i = 0; i < 200; ++i) EXPECT_EQ(got[i], embedding_of(tokens_of(inputs[i]))) << i;
}

TEST_F(Embeddings, NoMoreThanSomeAreSubmittedAtOnce) {
  FakeBackend& backend = server_.backend();
  backend.hold(true);
  HttpClient client(server_.port());
  client.send(post(kPath, json{{"input", std::vector<std::string>(100, "a")}}.dump()));
  ASSERT_TRUE(backend.wait_for([](const FakeBackend& b) { return b.live() == 64; }));
  client.close();  // and those that run are cancelled, the others never submitted
  ASSERT_TRUE(
      backend.wait_for([](const FakeBackend& b) { return b.cancelled().size() == 64 && b.live() == 0; }));
  EXPECT_EQ(backend.submitted().size(), 64U);
}

TEST_F(Embeddings, AFullQueueAndAFault) {
  FakeBackend& backend = server_.backend();
  backend.refuse(error(ErrorCode::kExhausted, "the queue is full"));
  EXPECT_EQ(ask(R"({"input":["a","b"]})").status, 503);
  backend.refuse(Status());
  backend.hold(true);
  HttpClient client(server_.port());
  client.send(post(kPath, R"({"input":["a","b"]})"));
  ASSERT_TRUE(backend.wait_for([](const FakeBackend& b) { return b.live() == 2; }));
  backend.end_all(FinishReason::kError, "the step failed");
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 500);
  EXPECT_THAT(answer->body, HasSubstr("the step failed"));
}

TEST(EmbeddingJson, HasLengthOneAndIsFinite) {
  EXPECT_EQ(embedding_json({3, 4}, false), "[0.6,0.8]");
  EXPECT_EQ(embedding_json({std::ldexp(3.0F, 100), std::ldexp(4.0F, 100)}, false), "[0.6,0.8]")
      << "the squares do not fit a float";
  EXPECT_EQ(embedding_json({0, 0}, false), "[0,0]");
  EXPECT_EQ(embedding_json({1, std::numeric_limits<float>::quiet_NaN()}, false), "");
  EXPECT_EQ(embedding_json({1, 0}, true), R"("AACAPwAAAAA=")");
}

TEST(EmbeddingPrompts, BeginAndEndAsTheModelWants) {
  TestService test(say("x"));
  TinyVocabulary vocabulary = make_tiny_vocabulary(259);
  TokenizerData data;
  data.split = find_pretokenizer("smollm").value().split;
  data.tokens = std::move(vocabulary.tokens);
  data.token_types = std::move(vocabulary.types);
  data.merges = std::move(vocabulary.merges);
  data.bos = 1;
  data.add_bos = true;
  data.closing = 0;
  const Tokenizer tokenizer = Tokenizer::create(std::move(data)).value();
  ModelService service = test.service();
  service.tokenizer = &tokenizer;
  auto request = std::get<ApiRequest>(parse_embeddings_request(R"({"input":["a",[7]]})"));
  const auto made = std::get<std::vector<GenerationRequest>>(prepare_embeddings(service, std::move(request)));
  EXPECT_EQ(made[0].prompt, (std::vector<Token>{1, token_of('a'), 0}));
  EXPECT_EQ(made[1].prompt, std::vector<Token>{7}) << "ids are as they are";
}

}  // namespace
}  // namespace kvasir::test
