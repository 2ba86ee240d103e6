// One request against a scripted engine, without a socket.
#include "server/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/handlers/openai.h"
#include "server/http_client.h"
#include "server/test_service.h"

namespace kvasir {
namespace {

using nlohmann::json;
using test::events;

// Accepts requests and keeps their sinks, so that a test says what the engine does, and when.
class ManualBackend final : public Backend {
 public:
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) override {
    if (sinks.size() >= accept) return error(ErrorCode::kExhausted, "the queue is full");
    requests.push_back(std::move(request));
    sinks.push_back(std::move(sink));
    return static_cast<RequestId>(sinks.size());
  }
  Result<std::unique_ptr<QueuePlaces>> reserve(std::span<const GenerationRequest> all) override {
    if (sinks.size() + all.size() > places) return error(ErrorCode::kExhausted, "the queue is full");
    reserved += all.size();
    auto kept = std::make_unique<QueuePlaces>([this](uint64_t left, uint64_t) { reserved -= left; });
    kept->got(all.size(), 3 * all.size());
    return kept;
  }
  Result<RequestId> submit_in(QueuePlaces& kept, GenerationRequest request,
                              std::shared_ptr<OutputSink> sink) override {
    kept.used(request.prompt.size());
    --reserved;
    return submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id, FinishReason reason) override {
    cancelled.push_back(raw(id));
    reasons.push_back(reason);
  }
  Nanos silent_for() const override { return 0; }
  uint32_t max_model_len() const override { return 1000; }
  const EngineMetrics& metrics() const override { return metrics_; }
  std::vector<std::pair<std::string, std::string>> cache_config() const override { return {}; }

  size_t accept = 100, places = 100;
  size_t reserved = 0;
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<OutputSink>> sinks;
  std::vector<uint64_t> cancelled;
  std::vector<FinishReason> reasons;

 private:
  EngineMetrics metrics_;
};

class RecordingChannel final : public ResponseChannel {
 public:
  void respond(const HttpResponse& response) override { responses.push_back(response); }
  void begin_stream(std::string_view words) override {
    began = true;
    last_words = words;
  }
  void stream(std::string_view bytes) override {
    EXPECT_TRUE(began && !ended && !abandoned);
    if (broken) throw std::bad_alloc();
    text += bytes;
  }
  void end_stream() override { ended = true; }
  size_t unsent_bytes() const override { return unsent; }
  void abandon_slow_reader() override { abandoned = true; }
  ExchangeRecord& record() override { return recorded; }
  void on_failure(const std::exception& what) override { failures.emplace_back(what.what()); }

  ExchangeRecord recorded;
  std::vector<HttpResponse> responses;
  std::vector<std::string> failures;
  bool began = false, ended = false, abandoned = false;
  bool broken = false;  // stream() throws
  std::string text, last_words;
  size_t unsent = 0;
};

class GenerationTest : public ::testing::Test {
 protected:
  std::shared_ptr<Generation> start(ApiRequest api, ApiKind kind = ApiKind::kChat, size_t prompts = 1) {
    PreparedRequest prepared;
    for (size_t i = 0; i < prompts; ++i) {
      GenerationRequest g;
      g.prompt = {5, 6, 7};
      g.sampling = api.sampling;
      g.max_tokens = 10;
      g.stop_tokens = {test::kEndToken};
      prepared.generations.push_back(g);
    }
    api.model = "m";
    auto writer =
        kind == ApiKind::kChat ? make_chat_writer(tokenizer_, api) : make_completion_writer(tokenizer_, api);
    prepared.api = std::move(api);
    StreamLimits limits;
    limits.gather_bytes = 100;
    limits.max_gathered_bytes = 50;
    auto generation = std::make_shared<Generation>(
        ModelService{&backend_, &tokenizer_, nullptr}, std::move(prepared), std::move(writer),
        [](std::function<void()> f) { f(); }, limits, &channel_);
    generation->start();
    return generation;
  }
  static ApiRequest streaming() {
    ApiRequest api;
    api.stream = true;
    return api;
  }
  void emit(const std::string& text, std::optional<FinishReason> finish = {}, size_t choice = 0,
            const std::string& error_text = "", bool try_again = false) {
    OutputEvent event;
    for (const char c : text) event.tokens.push_back({test::token_of(c), -0.25f, {}});
    event.finish = finish;
    event.error = error_text;
    event.try_again = try_again;
    event.cached_prompt_tokens = 2;
    backend_.sinks.at(choice)->on_output(std::move(event));
  }

  const Tokenizer tokenizer_ = test::byte_tokenizer();
  ManualBackend backend_;
  RecordingChannel channel_;
};

TEST_F(GenerationTest, StreamsAChat) {
  ApiRequest api = streaming();
  api.include_usage = true;
  const auto generation = start(api);
  emit("He");
  emit("y", FinishReason::kLength);
  EXPECT_TRUE(channel_.ended);
  const std::vector<std::string> got = events(channel_.text);
  ASSERT_EQ(got.size(), 5u);
  const json role = json::parse(got[0]);
  EXPECT_EQ(role["object"], "chat.completion.chunk");
  EXPECT_EQ(role["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(role["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(role["usage"].is_null());
  const json first = json::parse(got[1]);
  EXPECT_EQ(first["choices"][0]["delta"], json({{"content", "He"}}));
  EXPECT_TRUE(first["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(first["id"], role["id"]);
  const json last = json::parse(got[2]);
  EXPECT_EQ(last["choices"][0]["delta"]["content"], "y");
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  const json usage = json::parse(got[3]);
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(usage["usage"]["completion_tokens"], 3);
  EXPECT_EQ(usage["usage"]["total_tokens"], 6);
  EXPECT_EQ(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(got[4], "[DONE]");
  EXPECT_TRUE(backend_.cancelled.empty());
}

// Programs that measure a server take its first chunk for the first token.
TEST_F(GenerationTest, TheFirstChunkComesWithTheFirstToken) {
  const auto generation = start(streaming(), ApiKind::kChat, 2);
  EXPECT_TRUE(channel_.began);
  EXPECT_EQ(channel_.text, "");
  emit("a");
  const auto roles = [&] {
    std::vector<int> out;
    for (const std::string& event : events(channel_.text)) {
      const json choice = json::parse(event)["choices"][0];
      if (choice["delta"].contains("role")) out.push_back(choice["index"]);
    }
    return out;
  };
  EXPECT_EQ(roles(), std::vector<int>{0});
  emit("b");
  emit("c", std::nullopt, 1);
  EXPECT_EQ(roles(), (std::vector<int>{0, 1}));
}

TEST_F(GenerationTest, AStopStringCancelsAndCountsItsTokens) {
  ApiRequest api;
  api.stop = {"lo"};
  const auto generation = start(api, ApiKind::kCompletion);
  emit("Hel");
  emit("o and more");
  ASSERT_EQ(channel_.responses.size(), 1u);
  const json body = json::parse(channel_.responses[0].body);
  EXPECT_EQ(body["choices"][0]["text"], "He");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
  EXPECT_EQ(backend_.cancelled, (std::vector<uint64_t>{1}));
  EXPECT_EQ(backend_.reasons, (std::vector<FinishReason>{FinishReason::kStop}));
  emit("", FinishReason::kStop);
  EXPECT_EQ(channel_.responses.size(), 1u);
}

TEST_F(GenerationTest, RefusalComesBeforeTheStream) {
  backend_.accept = 1;
  const auto generation = start(streaming(), ApiKind::kCompletion, 3);
  EXPECT_FALSE(channel_.began);
  ASSERT_EQ(channel_.responses.size(), 1u);
  EXPECT_EQ(channel_.responses[0].status, 503);
  EXPECT_GT(channel_.responses[0].retry_after_s, 0);
  EXPECT_EQ(backend_.cancelled, (std::vector<uint64_t>{1}));  // the one that had been accepted
}

TEST_F(GenerationTest, ErrorInsideAStream) {
  const auto generation = start(streaming());
  emit("a");
  emit("", FinishReason::kError, 0, "the disk is gone");
  EXPECT_TRUE(channel_.ended);
  const std::vector<std::string> got = events(channel_.text);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(json::parse(got[2])["error"]["message"], "the disk is gone");
  EXPECT_EQ(got[3], "[DONE]");
}

TEST_F(GenerationTest, WhatThereIsNoMemoryForMayBeTriedAgain) {
  const auto generation = start(ApiRequest{});
  emit("a");
  emit("", FinishReason::kError, 0, "there is no memory", /*try_again=*/true);
  ASSERT_EQ(channel_.responses.size(), 1u);
  EXPECT_EQ(channel_.responses[0].status, 503);
  EXPECT_GT(channel_.responses[0].retry_after_s, 0);
  const json error = json::parse(channel_.responses[0].body)["error"];
  EXPECT_EQ(error["code"], "overloaded");
  EXPECT_EQ(error["message"], "there is no memory");
}

TEST_F(GenerationTest, WhatHasFailedIsTheServersFault) {
  const auto generation = start(ApiRequest{});
  emit("", FinishReason::kError, 0, "the disk is gone");
  ASSERT_EQ(channel_.responses.size(), 1u);
  EXPECT_EQ(channel_.responses[0].status, 500);
  EXPECT_EQ(channel_.responses[0].retry_after_s, 0);
}

TEST_F(GenerationTest, AbortByTheEngine) {
  ApiRequest api;
  const auto generation = start(api);
  emit("a");
  emit("", FinishReason::kAbort);
  ASSERT_EQ(channel_.responses.size(), 1u);
  EXPECT_EQ(channel_.responses[0].status, 503);
  EXPECT_TRUE(backend_.cancelled.empty());
}

TEST_F(GenerationTest, SeveralPromptsAreChoices) {
  const auto generation = start(streaming(), ApiKind::kCompletion, 2);
  emit("b", FinishReason::kLength, 1);
  emit("a", FinishReason::kStop, 0);
  EXPECT_TRUE(channel_.ended);
  const std::vector<std::string> got = events(channel_.text);
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(json::parse(got[0])["choices"][0]["index"], 1);
  EXPECT_EQ(json::parse(got[0])["choices"][0]["text"], "b");
  EXPECT_EQ(json::parse(got[1])["choices"][0]["index"], 0);
  EXPECT_EQ(json::parse(got[1])["choices"][0]["finish_reason"], "stop");
}

TEST_F(GenerationTest, GathersForASlowReaderThenGivesItUp) {
  const auto generation = start(streaming());
  const size_t before = channel_.text.size();
  channel_.unsent = 1000;
  emit("one");
  emit("two");
  EXPECT_EQ(channel_.text.size(), before);
  channel_.unsent = 0;
  generation->on_drained();
  EXPECT_EQ(json::parse(events(channel_.text).at(1))["choices"][0]["delta"]["content"], "onetwo");
  channel_.unsent = 1000;
  emit(std::string(60, 'x'));
  EXPECT_TRUE(channel_.abandoned);
  EXPECT_EQ(backend_.cancelled, (std::vector<uint64_t>{1}));
}

TEST_F(GenerationTest, FinishWhileGatheringIsReportedOnceDrained) {
  const auto generation = start(streaming());
  channel_.unsent = 1000;
  emit("x", FinishReason::kLength);
  EXPECT_FALSE(channel_.ended);
  channel_.unsent = 0;
  generation->on_drained();
  EXPECT_TRUE(channel_.ended);
  EXPECT_EQ(events(channel_.text).back(), "[DONE]");
}

TEST_F(GenerationTest, EventsAfterTheEndAreIgnored) {
  auto generation = start(streaming());
  generation->abort();
  EXPECT_EQ(backend_.cancelled, (std::vector<uint64_t>{1}));
  const std::string before = channel_.text;
  emit("late");
  EXPECT_EQ(channel_.text, before);
  generation.reset();
  emit("later", FinishReason::kLength);
  EXPECT_EQ(channel_.text, before);
}

TEST_F(GenerationTest, AnExceptionInAnEventEndsOnlyThisExchange) {
  const auto generation = start(streaming());
  channel_.broken = true;
  EXPECT_NO_THROW(emit("a"));
  EXPECT_EQ(channel_.failures.size(), 1u);
  EXPECT_EQ(backend_.cancelled, (std::vector<uint64_t>{1}));
  EXPECT_EQ(backend_.reasons, (std::vector<FinishReason>{FinishReason::kAbort}));
  EXPECT_NO_THROW(emit("b", FinishReason::kLength));
  EXPECT_EQ(channel_.failures.size(), 1u);
}

TEST_F(GenerationTest, ChatLogprobs) {
  ApiRequest api;
  api.sampling.logprobs = 1;
  const auto generation = start(api);
  OutputEvent event;
  event.tokens.push_back({test::token_of('\xC3'), -0.5f, {{test::token_of('\xC3'), -0.5f}}});
  event.tokens.push_back({test::token_of('\xA9'), -INFINITY, {{test::token_of('q'), -1.5f}}});
  event.finish = FinishReason::kLength;
  backend_.sinks[0]->on_output(std::move(event));
  const json body = json::parse(channel_.responses.at(0).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "\xC3\xA9");
  const json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["bytes"], json({0xC3}));
  EXPECT_EQ(content[0]["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 1u);
  EXPECT_EQ(content[1]["logprob"], -9999.0);
  EXPECT_EQ(content[1]["top_logprobs"][0]["token"], "q");
}

TEST_F(GenerationTest, CompletionLogprobs) {
  ApiRequest api;
  api.sampling.logprobs = 1;
  const auto generation = start(api, ApiKind::kCompletion);
  OutputEvent event;
  event.tokens.push_back({test::token_of('a'), -0.5f, {{test::token_of('b'), -0.25f}}});
  event.tokens.push_back({test::token_of('\xC3'), -0.5f, {}});
  event.finish = FinishReason::kLength;
  backend_.sinks[0]->on_output(std::move(event));
  const json body = json::parse(channel_.responses.at(0).body);
  const json& logprobs = body["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"a", "bytes:\\xc3"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({-0.5, -0.5}));
  EXPECT_EQ(logprobs["top_logprobs"][0], json({{"a", -0.5}, {"b", -0.25}}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 1}));
}

// Streamed or not, a client that joins the pieces has the same log-probabilities; of an empty output, empty
// lists.
TEST_F(GenerationTest, AStreamAndAWholeAnswerAgreeOnLogprobs) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    for (const std::string text : {"", "ab"}) {
      json whole, joined;
      for (const bool stream : {false, true}) {
        ApiRequest api = streaming();
        api.stream = stream;
        api.sampling.logprobs = 0;
        channel_ = {};
        backend_.sinks.clear();
        const auto generation = start(api, kind);
        emit(text);
        OutputEvent end;
        end.tokens.push_back({test::kEndToken, -0.25f, {}});
        end.finish = FinishReason::kStop;
        backend_.sinks.at(0)->on_output(std::move(end));
        if (!stream) {
          whole = json::parse(channel_.responses.at(0).body)["choices"][0]["logprobs"];
          continue;
        }
        for (const std::string& event : events(channel_.text)) {
          if (event == "[DONE]") continue;
          const json piece = json::parse(event)["choices"][0]["logprobs"];
          if (piece.is_null()) continue;
          if (joined.is_null())
            joined = piece;
          else
            for (const auto& [key, value] : piece.items()) {
              if (value.is_array()) joined[key].insert(joined[key].end(), value.begin(), value.end());
            }
        }
      }
      EXPECT_FALSE(whole.is_null());
      EXPECT_EQ(joined, whole) << (kind == ApiKind::kChat ? "chat" : "completion") << " of '" << text << "'";
    }
  }
}

// ---------------------------------------------------------------- prompts that are shown, choices

// As the engine scores the prompt {5, 6, 7} of these tests.
std::vector<PromptToken> scored_prompt() {
  return {{6, -1.5F, 2, {{9, -0.5F}, {6, -1.5F}}}, {7, -0.25F, 1, {{7, -0.25F}, {8, -2.0F}}}};
}

TEST_F(GenerationTest, EchoPutsThePromptBeforeTheOutput) {
  ApiRequest api;
  api.echo = true;
  api.sampling.logprobs = 1;
  api.sampling.prompt_logprobs = 1;
  const auto generation = start(api, ApiKind::kCompletion);
  OutputEvent event;
  event.prompt = scored_prompt();
  event.tokens.push_back({test::token_of('x'), -0.75F, {}});
  event.finish = FinishReason::kLength;
  backend_.sinks.at(0)->on_output(std::move(event));
  ASSERT_EQ(channel_.responses.size(), 1U);
  const json choice = json::parse(channel_.responses[0].body)["choices"][0];
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["token_logprobs"], json::parse("[null, -1.5, -0.25, -0.75]"));
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 2U) << "the token, and the one that is more likely";
  EXPECT_EQ(logprobs["top_logprobs"][2].size(), 1U);
  std::string joined;
  for (const json& token : logprobs["tokens"]) joined += token.get<std::string>();
  EXPECT_EQ(choice["text"], joined);
  EXPECT_TRUE(joined.ends_with("x") && joined.size() > 1) << joined;
  EXPECT_EQ(json::parse(channel_.responses[0].body)["usage"]["completion_tokens"], 1);
}

TEST_F(GenerationTest, NoTokenIsShownWhereNoneIsWanted) {
  ApiRequest api;
  api.echo = true;
  api.max_tokens = 0;
  const auto generation = start(api, ApiKind::kCompletion);
  emit("x", FinishReason::kLength);
  const json answer = json::parse(channel_.responses.at(0).body);
  EXPECT_FALSE(answer["choices"][0]["text"].get<std::string>().ends_with("x"));
  EXPECT_FALSE(answer["choices"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST_F(GenerationTest, PromptLogprobsAreInTheChoiceOrInTheAnswer) {
  for (const ApiKind kind : {ApiKind::kCompletion, ApiKind::kChat}) {
    ApiRequest api;
    api.prompt_logprobs = api.sampling.prompt_logprobs = 2;
    const auto generation = start(api, kind);
    OutputEvent event;
    event.prompt = scored_prompt();
    event.finish = FinishReason::kLength;
    backend_.sinks.back()->on_output(std::move(event));
    const json answer = json::parse(channel_.responses.back().body);
    const json& list =
        kind == ApiKind::kChat ? answer["prompt_logprobs"] : answer["choices"][0]["prompt_logprobs"];
    ASSERT_EQ(list.size(), 3U);
    EXPECT_TRUE(list[0].is_null());
    EXPECT_EQ(list[1]["6"]["rank"], 2);
    EXPECT_EQ(list[1]["6"]["logprob"], -1.5);
    EXPECT_EQ(list[1]["9"]["rank"], 1);
    EXPECT_EQ(list[2]["8"]["rank"], 2);
    EXPECT_EQ(list[2].size(), 2U);
  }
}

TEST_F(GenerationTest, TheOtherChoicesOfAPromptFollowTheFirst) {
  ApiRequest api;
  api.choices = 3;
  const auto generation = start(api, ApiKind::kCompletion, /*prompts=*/6);
  ASSERT_EQ(backend_.sinks.size(), 2U) << "the first choice of each prompt";
  emit("a", {}, 1);
  ASSERT_EQ(backend_.sinks.size(), 4U) << "those of the second prompt";
  emit("b", FinishReason::kLength, 0);
  ASSERT_EQ(backend_.sinks.size(), 6U);
  for (const size_t choice : {1, 2, 3, 4, 5}) emit("c", FinishReason::kStop, choice);
  const json answer = json::parse(channel_.responses.at(0).body);
  std::vector<std::string> texts;
  for (const json& choice : answer["choices"]) texts.push_back(choice["text"]);
  EXPECT_EQ(texts, (std::vector<std::string>{"b", "c", "c", "ac", "c", "c"}));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6) << "each prompt counts once";
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

TEST_F(GenerationTest, TheBestOfACandidatesAreTheChoices) {
  ApiRequest api;
  api.choices = 2;
  api.best_of = 3;
  const auto generation = start(api, ApiKind::kCompletion, /*prompts=*/6);
  const auto say = [&](size_t sink, const std::string& text, float logprob) {
    OutputEvent event;
    for (const char c : text) event.tokens.push_back({test::token_of(c), logprob, {}});
    event.finish = FinishReason::kLength;
    backend_.sinks.at(sink)->on_output(std::move(event));
  };
  // Sinks 0 and 1 lead; those of the first prompt follow, then those of the second.
  say(0, "aaaa", -1);  // longer, so a smaller sum, but a larger mean than that of "b"
  say(1, "d", -3);
  say(2, "b", -2);
  say(3, "c", -0.5);
  say(4, "e", -2);
  EXPECT_TRUE(channel_.responses.empty());
  say(5, "f", -2);
  const json answer = json::parse(channel_.responses.at(0).body);
  std::vector<std::string> texts;
  for (const json& choice : answer["choices"]) {
    EXPECT_EQ(choice["index"], texts.size());
    EXPECT_TRUE(choice["logprobs"].is_null()) << "they were not asked for";
    texts.push_back(choice["text"]);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"c", "aaaa", "e", "f"}));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 9) << "all that were generated";
}

TEST_F(GenerationTest, WithoutPlacesForAllChoicesNoStreamBegins) {
  ApiRequest api = streaming();
  api.choices = 3;
  backend_.places = 2;
  const auto generation = start(api, ApiKind::kCompletion, /*prompts=*/3);
  EXPECT_FALSE(channel_.began);
  EXPECT_EQ(channel_.responses.at(0).status, 503);
  EXPECT_TRUE(backend_.requests.empty() && backend_.cancelled.empty());
  backend_.places = 3;
  channel_.responses.clear();
  const auto another = start(api, ApiKind::kCompletion, /*prompts=*/3);
  EXPECT_TRUE(channel_.began);
  EXPECT_EQ(backend_.requests.size(), 1u);
  EXPECT_EQ(backend_.reserved, 2u) << "for those that follow";
  another->abort();
  EXPECT_EQ(backend_.reserved, 0u);
}

TEST_F(GenerationTest, AChoiceThatIsRefusedLaterEndsTheAnswer) {
  ApiRequest api = streaming();
  api.choices = 3;
  backend_.accept = 2;
  const auto generation = start(api, ApiKind::kCompletion, /*prompts=*/3);
  emit("a");
  EXPECT_TRUE(channel_.ended);
  EXPECT_NE(channel_.text.find("the queue is full"), std::string::npos);
  EXPECT_EQ(backend_.cancelled, (std::vector<uint64_t>{1, 2}));
}

}  // namespace
}  // namespace kvasir
