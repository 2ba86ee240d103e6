// API keys over HTTP: what a client is told when it is over a limit, and what others learn of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/keys/key_file.h"
#include "server/running_server.h"

namespace kvasir {
namespace {

using nlohmann::json;
using test::chat_body;
using test::get;
using test::HttpAnswer;
using test::HttpClient;
using test::kChatPath;
using test::post;
using test::repeat;
using test::RunningServer;
using test::say;
using test::test_options;
using ::testing::HasSubstr;

// Its key is its name.
ApiKey named(const std::string& name) {
  ApiKey key;
  key.name = name;
  key.digest = key_digest(name);
  key.identity = "name:" + name;
  return key;
}

ServerOptions options_of(std::vector<ApiKey> keys) {
  ServerOptions options = test_options();
  options.named_keys = std::move(keys);
  return options;
}

std::string bearer(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

std::string ask_as(const std::string& key, const std::string& fields = "") {
  return post(kChatPath, chat_body(fields), bearer(key));
}

json error_of(const HttpAnswer& answer) {
  return json::parse(answer.body).at("error");
}

TEST(KeyServer, OverALimitIs429WithItsNameAndHeaders) {
  ApiKey few = named("few"), spare = named("spare");
  few.requests_per_minute = 2;
  spare.tokens_per_minute = 20;
  RunningServer server(say("0123456789"), options_of({few, spare, named("free")}));
  const HttpAnswer first = server.ask(ask_as("few"));
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.headers.at("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first.headers.at("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(first.headers.at("x-ratelimit-reset-requests").back(), 's');
  EXPECT_FALSE(first.headers.contains("x-ratelimit-limit-tokens"));
  const HttpAnswer stream = server.ask(ask_as("few", R"("stream":true)"));
  EXPECT_EQ(stream.headers.at("x-ratelimit-remaining-requests"), "0");
  const HttpAnswer over = server.ask(ask_as("few"));
  EXPECT_EQ(over.status, 429);
  EXPECT_GE(std::stoi(over.headers.at("retry-after")), 1);
  EXPECT_EQ(error_of(over)["type"], "rate_limit_error");
  EXPECT_EQ(error_of(over)["code"], "rate_limit_exceeded");
  EXPECT_THAT(std::string(error_of(over)["message"]), HasSubstr("requests_per_minute"));
  EXPECT_EQ(server.ask(get("/v1/models", bearer("few"))).status, 200) << "it costs the model nothing";

  // 19 tokens in, 11 out: the second must wait for the first's debt.
  EXPECT_EQ(server.ask(ask_as("spare")).status, 200);
  const HttpAnswer spent = server.ask(ask_as("spare"));
  EXPECT_EQ(spent.status, 429);
  EXPECT_EQ(spent.headers.at("x-ratelimit-remaining-tokens"), "0");
  EXPECT_THAT(std::string(error_of(spent)["message"]), HasSubstr("tokens_per_minute"));

  const HttpAnswer free = server.ask(ask_as("free"));
  EXPECT_EQ(free.status, 200);
  EXPECT_FALSE(free.headers.contains("x-ratelimit-limit-requests"));

  const std::string page = server.ask(get("/metrics")).body;
  for (const char* line :
       {R"(kvasir:key_requests_total{model_name="test-model",key="few"} 2)",
        R"(kvasir:key_refusals_total{model_name="test-model",key="few",limit="requests_per_minute"} 1)",
        R"(kvasir:key_refusals_total{model_name="test-model",key="spare",limit="tokens_per_minute"} 1)",
        R"(kvasir:key_prompt_tokens_total{model_name="test-model",key="free"} 19)",
        R"(kvasir:key_generation_tokens_total{model_name="test-model",key="free"} 11)",
        R"(kvasir:key_requests_running{model_name="test-model",key="free"} 0)"}) {
    EXPECT_THAT(page, HasSubstr(std::string(line) + "\n"));
  }
}

TEST(KeyServer, WithoutKeysThereAreNoMetricsOfKeys) {
  RunningServer server(say("x"));
  EXPECT_EQ(server.ask(post(kChatPath, chat_body())).status, 200);
  EXPECT_EQ(server.ask(get("/metrics")).body.find("kvasir:key_"), std::string::npos);
}

TEST(KeyServer, ChoicesInProgressCountUntilTheyEndOrTheirClientLeaves) {
  ApiKey two = named("two");
  two.concurrent_requests = 2;
  RunningServer server(repeat("a"), options_of({two, named("other")}));
  server.backend().set_round_time(kNanosPerMilli);
  EXPECT_EQ(server.ask(ask_as("two", R"("n":3,"max_tokens":1)")).status, 429);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(ask_as("two", R"("n":2,"stream":true)")));
  ASSERT_TRUE(client.receive_until("\"a\""));
  const HttpAnswer over = server.ask(ask_as("two"));
  EXPECT_EQ(over.status, 429);
  EXPECT_THAT(std::string(error_of(over)["message"]), HasSubstr("concurrent_requests"));
  EXPECT_EQ(over.headers.at("retry-after"), "1");
  EXPECT_EQ(server.ask(ask_as("other", R"("max_tokens":2)")).status, 200);
  client.close();
  ASSERT_TRUE(server.backend().wait_for([](const test::FakeBackend& b) { return b.live() == 0; }));
  EXPECT_EQ(server.ask(ask_as("two", R"("n":2,"max_tokens":2)")).status, 200);
}

TEST(KeyServer, APlaceInTheQueueThatIsOverTheShareIs429) {
  RunningServer server(say("x"), options_of({named("a")}));
  server.backend().refuse(error(ErrorCode::kOverShare, "512 of your requests are queued"));
  const HttpAnswer over = server.ask(ask_as("a"));
  EXPECT_EQ(over.status, 429);
  EXPECT_EQ(over.headers.at("retry-after"), "1");
  EXPECT_EQ(error_of(over)["code"], "rate_limit_exceeded");
  const std::string page = server.ask(get("/metrics")).body;
  EXPECT_THAT(page, HasSubstr(R"(key="a",limit="queue_share"} 1)"));
  EXPECT_THAT(page, HasSubstr(R"(kvasir:key_prompt_tokens_total{model_name="test-model",key="a"} 0)"));
}

TEST(KeyServer, OnlyAClaimThatTheKeyHasIsHeard) {
  ApiKey all = named("all"), none = named("none");
  all.may_set_priority = all.may_set_slo = all.may_hint_output = true;
  none.priority = 7;
  ServerOptions options = options_of({all, none});
  options.reads_priority = true;
  RunningServer server(say("x"), options);
  for (const auto& [fields, headers, field] :
       std::vector<std::array<std::string, 3>>{{R"("priority":-3)", "", "priority"},
                                               {R"("slo":{"ttft_ms":5})", "", "slo"},
                                               {"", "x-slo-ttft-ms: 5\r\n", "slo"},
                                               {R"("output_tokens_hint":9)", "", "output_tokens_hint"}}) {
    EXPECT_EQ(server.ask(post(kChatPath, chat_body(fields), bearer("all") + headers)).status, 200);
    const HttpAnswer refused = server.ask(post(kChatPath, chat_body(fields), bearer("none") + headers));
    EXPECT_EQ(refused.status, 403) << field;
    EXPECT_EQ(error_of(refused)["param"], field);
    EXPECT_EQ(error_of(refused)["type"], "permission_error");
  }
  EXPECT_EQ(server.backend().submitted().front().priority, -3);
  EXPECT_EQ(server.ask(ask_as("none", R"("priority":0)")).status, 200);
  EXPECT_EQ(server.backend().submitted().back().priority, 7) << "the key's own";
  EXPECT_THAT(server.ask(get("/metrics")).body, HasSubstr(R"(key="none",limit="claims"} 4)"));
}

TEST(KeyServer, APriorityOfZeroCanBeSaid) {
  ApiKey key = named("k");
  key.priority = 2;
  key.may_set_priority = true;
  ServerOptions options = options_of({key});
  options.reads_priority = true;
  RunningServer server(say("x"), options);
  EXPECT_EQ(server.ask(ask_as("k", R"("priority":0)")).status, 200);
  EXPECT_EQ(server.backend().submitted().back().priority, 0);
  EXPECT_EQ(server.ask(ask_as("k")).status, 200);
  EXPECT_EQ(server.backend().submitted().back().priority, 2);
}

TEST(KeyServer, ARequestIsInProgressFromItsHeadOn) {
  ApiKey key = named("k");
  key.concurrent_requests = 1;
  RunningServer server(say("x"), options_of({key}));
  const std::string whole = ask_as("k");
  HttpClient first(server.port());
  ASSERT_TRUE(first.send(whole.substr(0, whole.size() - 1)));
  HttpAnswer second;
  for (int i = 0; i < 500 && second.status != 429; ++i) second = server.ask(whole);
  EXPECT_EQ(second.status, 429) << "before a body is prepared";
  ASSERT_TRUE(first.send(whole.substr(whole.size() - 1)));
  EXPECT_EQ(first.receive().value_or(HttpAnswer{}).status, 200) << "it counts itself once";
  EXPECT_EQ(server.ask(whole).status, 200);
  EXPECT_EQ(server.ask(post("/tokenize", R"({"prompt":"a"})", bearer("k"))).status, 200);
  EXPECT_EQ(server.ask(whole).status, 200);
}

TEST(KeyServer, EachKeyIsATenantWithAPrefixOfItsOwn) {
  ApiKey heavy = named("heavy");
  heavy.weight = 4;
  heavy.queue_share = 0.25F;
  for (const bool share : {false, true}) {
    ServerOptions options = options_of({heavy, named("b")});
    options.share_prefixes = share;
    RunningServer server(say("x"), options);
    for (const char* key : {"heavy", "b", "heavy"}) EXPECT_EQ(server.ask(ask_as(key)).status, 200);
    EXPECT_EQ(server.ask(ask_as("b", R"("cache_salt":"s")")).status, 200);
    const std::vector<GenerationRequest> sent = server.backend().submitted();
    ASSERT_EQ(sent.size(), 4u);
    ASSERT_TRUE(sent[0].label);
    EXPECT_EQ(sent[0].label->key, "heavy") << "for the engine's log";
    EXPECT_TRUE(sent[0].label->id.starts_with("req-")) << sent[0].label->id;
    EXPECT_EQ(sent[0].tenant.weight, 4);
    EXPECT_EQ(sent[0].tenant.queue_share, 0.25F);
    EXPECT_EQ(sent[0].tenant.id, sent[2].tenant.id);
    EXPECT_NE(sent[0].tenant.id, sent[1].tenant.id);
    EXPECT_EQ(sent[0].cache_salt, sent[2].cache_salt);
    EXPECT_EQ(sent[0].cache_salt == sent[1].cache_salt, share);
    EXPECT_NE(sent[1].cache_salt, sent[3].cache_salt)
        << "a request's own salt parts it from others of its key";
  }
}

TEST(KeyServer, OtherKeysCountFromNowOnAndRunningRequestsGoOn) {
  RunningServer server(repeat("a"), options_of({named("old"), named("stays")}));
  server.backend().set_round_time(kNanosPerMilli);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(ask_as("old", R"("stream":true,"max_tokens":50)")));
  ASSERT_TRUE(client.receive_until("\"a\""));
  server->set_keys({named("new"), named("stays")});
  EXPECT_EQ(server.ask(ask_as("old", R"("max_tokens":1)")).status, 401);
  EXPECT_EQ(server.ask(ask_as("new", R"("max_tokens":1)")).status, 200);
  EXPECT_EQ(server.ask(ask_as("stays", R"("max_tokens":1)")).status, 200);
  EXPECT_TRUE(client.receive_until("[DONE]"));
}

TEST(KeyServer, AStoredAnswerStaysItsHoldersWhenTheKeyChanges) {
  ApiKey before = named("a"), after = named("a");
  after.digest = key_digest("changed");
  RunningServer server(say("x"), options_of({before, named("b")}));
  const auto stored = server.ask(post("/v1/responses", R"({"input":"hi"})", bearer("a")));
  ASSERT_EQ(stored.status, 200) << stored.body;
  const std::string path = "/v1/responses/" + std::string(json::parse(stored.body)["id"]);
  EXPECT_EQ(server.ask(get(path, bearer("b"))).status, 404);
  server->set_keys({after, named("b")});
  EXPECT_EQ(server.ask(get(path, bearer("a"))).status, 401);
  EXPECT_EQ(server.ask(get(path, bearer("b"))).status, 404);
  EXPECT_EQ(server.ask(get(path, bearer("changed"))).status, 200);
}

}  // namespace
}  // namespace kvasir
