// What clients ask of latency, in headers and in the body, and what the server makes of it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/running_server.h"
#include "server/slo_fields.h"

namespace kvasir::test {
namespace {

using nlohmann::json;

FakeBackend::Script one_token() {
  return [](const GenerationRequest& r, size_t) { return r.stop_tokens.front(); };
}

TEST(Slo, EveryHeaderIsRead) {
  Slo slo;
  EXPECT_FALSE(read_slo_header("X-SLO-TTFT-ms", "500", slo));
  EXPECT_FALSE(read_slo_header("x-llm-d-slo-tpot-ms", "50", slo));
  EXPECT_FALSE(read_slo_header("x-slo-tbt-ms", "200", slo));
  EXPECT_FALSE(read_slo_header("x-slo-e2el-ms", "86400000", slo));
  EXPECT_FALSE(read_slo_header("x-slow-ttft-ms", "7", slo));
  EXPECT_FALSE(read_slo_header("content-length", "7", slo));
  EXPECT_EQ(slo, (Slo{500, 50, 200, 86'400'000}));
}

TEST(Slo, WrongHeadersAreNamed) {
  for (const char* value : {"", "0", "-1", "1.5", "12x", "86400001", "99999999999999999999", " 5"}) {
    Slo slo;
    const auto e = read_slo_header("X-SLO-TTFT-ms", value, slo);
    ASSERT_TRUE(e) << value;
    EXPECT_EQ(e->status, 400);
    EXPECT_EQ(e->param, "x-slo-ttft-ms");
    EXPECT_EQ(slo, Slo{});
  }
  Slo slo;
  for (const char* name : {"x-slo-ttft", "x-slo-", "x-llm-d-slo-p99-ms", "x-slo-ttft-ms-x"}) {
    EXPECT_TRUE(read_slo_header(name, "5", slo)) << name;
  }
}

TEST(Slo, TheBodyComesBeforeTheHeadersAndThoseBeforeTheServers) {
  const SloPolicy policy = {{1000, 100, 0, 9000}, {300, 0, 20, 0}};
  EXPECT_EQ(policy.resolve({400, 0, 0, 0}, {500, 60, 0, 0}), (Slo{400, 60, 0, 9000}));
  EXPECT_EQ(policy.resolve({}, {}), (Slo{1000, 100, 0, 9000}));
  EXPECT_EQ(policy.resolve({1, 1, 1, 1}, {}), (Slo{300, 1, 20, 1})) << "no tighter than the server allows";
  EXPECT_EQ(SloPolicy{}.resolve({}, {}), Slo{});
}

TEST(Slo, TheEngineHearsOfIt) {
  ServerOptions options = test_options();
  options.slo.tightest.ttft_ms = 50;
  RunningServer server(one_token(), options);
  const auto ask = [&](const std::string& fields, const std::string& headers = "") {
    const HttpAnswer answer = server.ask(post(kChatPath, chat_body(fields), headers));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return server.backend().submitted().back();
  };
  EXPECT_EQ(ask(R"("slo":{"ttft_ms":10,"tbt_ms":30.0,"tpot_ms":null})").slo, (Slo{50, 0, 30, 0}));
  EXPECT_EQ(ask("", "x-slo-e2el-ms: 700\r\n").slo, (Slo{0, 0, 0, 700}));
  EXPECT_EQ(ask("").slo, Slo{}) << "the headers of one request are not the next one's";
  EXPECT_EQ(ask(R"("output_tokens_hint":12)").output_tokens_hint, 12u);
}

TEST(Slo, WhatIsWrongInTheBodyIsNamed) {
  RunningServer server(one_token());
  const std::pair<const char*, const char*> wrong[] = {
      {R"("slo":5)", "slo"},
      {R"("slo":{"ttft":5})", "slo.ttft"},
      {R"("slo":{"ttft_ms":0})", "slo.ttft_ms"},
      {R"("slo":{"tbt_ms":1.5})", "slo.tbt_ms"},
      {R"("slo":{"e2el_ms":"5"})", "slo.e2el_ms"},
      {R"("output_tokens_hint":0)", "output_tokens_hint"},
      {R"("forced_output_tokens":-1)", "forced_output_tokens"},
      {R"("forced_output_tokens":100000)", "forced_output_tokens"},
      {R"("priority":1)", "priority"},
      {R"("priority":3000000000)", "priority"}};
  for (const auto& [fields, param] : wrong) {
    const HttpAnswer answer = server.ask(post(kChatPath, chat_body(fields)));
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_EQ(json::parse(answer.body)["error"]["param"], param);
  }
  EXPECT_EQ(server.ask(post(kChatPath, chat_body(), "x-slo-ttft-ms: soon\r\n")).status, 400);
  EXPECT_TRUE(server.backend().submitted().empty());
}

TEST(Slo, APriorityIsTakenWhereThePolicyReadsIt) {
  ServerOptions options = test_options();
  options.reads_priority = true;
  RunningServer server(one_token(), options);
  EXPECT_EQ(server.ask(post(kChatPath, chat_body(R"("priority":-3)"))).status, 200);
  EXPECT_EQ(server.backend().submitted().back().priority, -3);
}

// Nothing that anyone but the sampler reads tells the length.
TEST(Slo, AForcedLengthIsTheSamplersAlone) {
  RunningServer server(one_token());
  const auto ask = [&](const char* fields) {
    EXPECT_EQ(server.ask(post("/v1/completions", std::string(R"({"prompt":[5,6,7],)") + fields + "}")).status,
              200);
    return server.backend().submitted().back();
  };
  const GenerationRequest r = ask(R"("forced_output_tokens":40)");
  EXPECT_EQ(r.sampling.forced_end, 3u + 40 - 1);
  EXPECT_EQ(r.stop_tokens, std::vector<Token>{r.sampling.end_token});
  EXPECT_EQ(r.max_tokens, server.backend().max_model_len() - 3);
  EXPECT_EQ(r.output_tokens_hint, 0u);
  const GenerationRequest other = ask(R"("forced_output_tokens":41)");
  EXPECT_EQ(other.max_tokens, r.max_tokens);
  EXPECT_EQ(other.stop_tokens, r.stop_tokens);
  EXPECT_EQ(ask(R"("max_tokens":7)").sampling.forced_end, 0u);
}

}  // namespace
}  // namespace kvasir::test
