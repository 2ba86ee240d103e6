// /v1/responses: what is read and refused, what is stored, and the answers over HTTP.
#include "server/handlers/responses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/running_server.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class ResponsesParser : public ::testing::Test {
 protected:
  ResponsesParser() {
    context_.owner = "me";
    context_.store = &store_;
  }
  ApiRequest accepted(const std::string& body) {
    auto parsed = parse_responses_request(body, {}, context_);
    if (const auto* e = std::get_if<ApiError>(&parsed)) {
      ADD_FAILURE() << body << ": " << e->message;
      return {};
    }
    return std::get<ApiRequest>(std::move(parsed));
  }
  ApiError refused(const std::string& body) {
    auto parsed = parse_responses_request(body, {}, context_);
    if (const auto* e = std::get_if<ApiError>(&parsed)) return *e;
    ADD_FAILURE() << "accepted: " << body;
    return {};
  }
  ApiRequest with(const std::string& fields) { return accepted(R"({"input":"hi",)" + fields + "}"); }

  ResponseStore store_{1 << 20, 10};
  ResponseContext context_;
};

std::vector<std::string> lines(const std::vector<ApiMessage>& messages) {
  std::vector<std::string> out;
  for (const ApiMessage& m : messages) {
    out.push_back(m.role + ":" + m.content);
    if (!m.reasoning.empty()) out.back() += " (" + m.reasoning + ")";
    for (const ApiToolCall& c : m.tool_calls)
      out.back() += fmt::format(" {}={}({})", c.id, c.name, c.arguments);
    if (!m.tool_call_id.empty()) out.back() += fmt::format(" [{} {}]", m.tool_call_id, m.name);
  }
  return out;
}

TEST_F(ResponsesParser, Items) {
  EXPECT_THAT(lines(accepted(R"({"input":"hi","instructions":"be brief"})").messages),
              ElementsAre("system:be brief", "user:hi"));
  EXPECT_THAT(lines(accepted(R"({"input":[
      {"role":"developer","content":"d"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
      {"type":"message","role":"assistant","id":"msg_1","status":"completed",
       "content":[{"type":"output_text","text":"see","annotations":[]}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
      {"type":"function_call","call_id":"c2","name":"g","arguments":"{\"a\":1}"},
      {"type":"function_call_output","call_id":"c2","output":"two"},
      {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"one"}]},
      {"type":"function_call","call_id":"c3","name":"f","arguments":""},
      {"type":"function_call_output","call_id":"c3","output":"three"},
      {"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},
      {"role":"assistant","content":"well"},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"short"}]},
      {"role":"user","content":"go on"}]})")
                        .messages),
              ElementsAre("system:d", "user:a\nb", "assistant:see (hm) c1=f({}) c2=g({\"a\":1})",
                          "tool:two [c2 g]", "tool:one [c1 f]", "assistant: c3=f()", "tool:three [c3 f]",
                          "assistant:no", "assistant:well", "assistant: (short)", "user:go on"));
}

TEST_F(ResponsesParser, Fields) {
  const ApiRequest r = with(R"("max_output_tokens":9,"temperature":0.25,"top_p":0.5,"top_k":3,"stream":true,
      "tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true},
               {"type":"function","name":"g","parameters":null}],
      "tool_choice":{"type":"function","name":"g"},"parallel_tool_calls":false,"reasoning":{"effort":"low"},
      "text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}},"verbosity":"low"},
      "metadata":{"a":"b"},"truncation":"disabled","include":["reasoning.encrypted_content"],"user":"u",
      "prompt_cache_key":"p","service_tier":"auto","background":false,"store":false)");
  EXPECT_EQ(r.max_tokens, 9U);
  EXPECT_EQ(r.sampling.top_k, 3);
  EXPECT_TRUE(r.stream);
  ASSERT_EQ(r.tools.size(), 2U);
  EXPECT_EQ(r.tools[0].parameters, R"({"type": "object"})");
  EXPECT_TRUE(r.tools[0].strict && !r.tools[1].strict);
  EXPECT_EQ(r.tools[1].parameters, "");
  EXPECT_EQ(r.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(r.named_tool, "g");
  EXPECT_FALSE(r.parallel_tool_calls);
  EXPECT_EQ(r.grammar.kind, OutputGrammar::Kind::kJsonSchema);
  EXPECT_EQ(r.grammar.text, R"({"type":"object"})");
  EXPECT_TRUE(r.unknown_fields.empty()) << r.unknown_fields[0];
  ASSERT_EQ(r.template_variables.size(), 2U);
  EXPECT_EQ(std::get<std::string>(r.template_variables[0].second.data), "low");
  EXPECT_TRUE(std::get<bool>(r.template_variables[1].second.data));
  EXPECT_FALSE(context_.keep);
  const json& echo = context_.echo;
  EXPECT_EQ(echo["temperature"].dump(), "0.25");
  EXPECT_EQ(echo["max_output_tokens"], 9);
  EXPECT_EQ(echo["tools"][0]["strict"], true);
  EXPECT_EQ(echo["text"]["format"]["name"], "n");
  EXPECT_EQ(echo["reasoning"], json({{"effort", "low"}, {"summary", nullptr}}));
  EXPECT_EQ(echo["metadata"]["a"], "b");
  EXPECT_EQ(echo["store"], false);
  EXPECT_EQ(with(R"("tool_choice":"none")").tool_choice, ToolChoice::kNone);
  EXPECT_EQ(with(R"("text":{"format":{"type":"json_object"}})").grammar.kind, OutputGrammar::Kind::kJson);
  EXPECT_EQ(with(R"("text":{"format":{"type":"text"}})").grammar.kind, OutputGrammar::Kind::kNone);
  with(R"("user":[1],"reasoning":{"summary":{"a":1}},"text":{"format":{"type":"text","x":1},"y":2},
          "tools":[{"type":"function","name":"g"}],
          "tool_choice":{"type":"function","name":"g","x":1})");
  EXPECT_TRUE(context_.echo["user"].is_null());
  EXPECT_TRUE(context_.echo["reasoning"]["summary"].is_null());
  EXPECT_EQ(context_.echo["text"], json({{"format", {{"type", "text"}}}}));
  EXPECT_EQ(context_.echo["tool_choice"], json({{"type", "function"}, {"name", "g"}}));
  ApiRequest defaults;
  defaults.sampling.temperature = 0.7F;
  parse_responses_request(R"({"input":"a"})", defaults, context_);
  EXPECT_EQ(context_.echo["temperature"].dump(), "0.7");
  EXPECT_EQ(context_.echo["text"], json({{"format", {{"type", "text"}}}}));
  EXPECT_TRUE(context_.keep);
}

TEST_F(ResponsesParser, GoesOnFromAStoredResponse) {
  store_.add("resp_1", {"me", "{}", {{"user", "one"}, {"assistant", "two"}}});
  store_.add("resp_2", {"someone else", "{}", {{"user", "secret"}}});
  const ApiRequest r =
      accepted(R"({"input":"three","instructions":"be brief","previous_response_id":"resp_1"})");
  EXPECT_THAT(lines(r.messages), ElementsAre("system:be brief", "user:one", "assistant:two", "user:three"));
  EXPECT_THAT(lines(context_.messages), ElementsAre("user:one", "assistant:two", "user:three"))
      << "instructions are not kept";
  for (const char* id : {"resp_0", "resp_2"}) {
    const ApiError e = refused(fmt::format(R"({{"input":"a","previous_response_id":"{}"}})", id));
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.code, "previous_response_not_found");
    EXPECT_EQ(e.param, "previous_response_id");
    EXPECT_THAT(e.message, HasSubstr(id));
  }
}

TEST_F(ResponsesParser, Refusals) {
  const std::pair<const char*, const char*> bodies[] = {
      {"{}", "input"},
      {R"({"input":[]})", "input"},
      {R"({"input":["a"]})", "input[0]"},
      {R"({"input":[{"role":"bot","content":"a"}]})", "input[0].role"},
      {R"({"input":[{"role":"user","content":5}]})", "input[0].content"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})", "input[0].content[0].type"},
      {R"({"input":[{"role":"user","content":[{"type":"input_text"}]}]})", "input[0].content[0].text"},
      {R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0].type"},
      {R"({"input":[{"type":"function_call","call_id":"c","name":"f"}]})", "input[0].arguments"},
      {R"({"input":[{"type":"function_call_output","output":"x"}]})", "input[0].call_id"},
      {R"({"input":"a","tools":[{"type":"web_search"}]})", "tools[0].type"},
      {R"({"input":"a","tools":[{"type":"function","function":{"name":"f"}}]})", "tools[0].name"},
      {R"({"input":"a","tool_choice":"required"})", "tool_choice"},
      {R"({"input":"a","tool_choice":{"type":"function","name":"f"}})", "tool_choice.name"},
      {R"({"input":"a","tool_choice":"any"})", "tool_choice"},
      {R"({"input":"a","text":{"format":{"type":"xml"}}})", "text.format"},
      {R"({"input":"a","text":{"format":{"type":"json_schema"}}})", "text.format.schema"},
      {R"({"input":"a","reasoning":{"effort":"much"}})", "reasoning.effort"},
      {R"({"input":"a","metadata":{"a":1}})", "metadata"},
      {R"({"input":"a","truncation":"auto"})", "truncation"},
      {R"({"input":"a","background":true})", "background"},
      {R"({"input":"a","include":["message.output_text.logprobs"]})", "include"},
      {R"({"input":"a","previous_response_id":5})", "previous_response_id"},
      {R"({"input":"a","max_output_tokens":0})", "max_output_tokens"}};
  for (const auto& [body, field] : bodies) EXPECT_EQ(refused(body).param, field) << body;
}

TEST(ResponseStore, KeepsTheLatestUsedWithinItsBounds) {
  const auto response = [](size_t bytes) { return StoredResponse{"o", std::string(bytes, 'x'), {}}; };
  const uint64_t one = response(1000).bytes();
  ResponseStore store(3 * one, 100);
  for (const char* id : {"a", "b", "c"}) store.add(id, response(1000));
  EXPECT_EQ(store.bytes(), 3 * one);
  EXPECT_TRUE(store.find("a", "o"));
  EXPECT_FALSE(store.find("a", "p")) << "another's";
  store.add("d", response(1000));
  EXPECT_FALSE(store.find("b", "o")) << "the one that was not used for longest";
  EXPECT_TRUE(store.find("a", "o") && store.find("c", "o") && store.find("d", "o"));
  store.add("huge", response(5000));
  EXPECT_FALSE(store.find("huge", "o"));
  EXPECT_EQ(store.entries(), 3U) << "nothing made room for it";
  EXPECT_FALSE(store.remove("a", "p"));
  EXPECT_TRUE(store.remove("a", "o"));
  EXPECT_FALSE(store.remove("a", "o"));
  EXPECT_EQ(store.bytes(), 2 * one);
  store.add("c", response(10));
  EXPECT_EQ(store.entries(), 2U);
  EXPECT_EQ(store.bytes(), one + response(10).bytes());

  ResponseStore shared(6 * one, 100);
  const auto add = [&](const std::string& owner, const std::string& id) {
    shared.add(id, StoredResponse{owner, std::string(1000, 'x'), {}});
  };
  add("p", "p1");
  for (int i = 0; i < 20; ++i) add("o", fmt::format("o{}", i));
  EXPECT_TRUE(shared.find("p1", "p")) << "the other has more than half";
  EXPECT_TRUE(shared.find("o19", "o"));
  EXPECT_FALSE(shared.find("o14", "o"));

  ResponseStore few(1 << 20, 2);
  for (const char* id : {"a", "b", "c"}) few.add(id, response(1));
  EXPECT_EQ(few.entries(), 2U);
  EXPECT_FALSE(few.find("a", "o"));
  ResponseStore off(0, 100);
  off.add("a", response(1));
  EXPECT_EQ(off.entries(), 0U);
  EXPECT_FALSE(off.on());
}

TEST(ResponseStore, CountsMessages) {
  StoredResponse r{"o", "", {}};
  const uint64_t before = r.bytes();
  r.messages.push_back(
      {"user", std::string(1000, 'x'), std::string(500, 'y'), {{"c", "f", std::string(200, 'z')}}});
  EXPECT_GE(r.bytes(), before + 1700);
}

TEST(Responses, OverHttp) {
  ServerOptions options = test_options();
  options.api_keys = {"k", "other"};
  RunningServer server(say("fine"), options);
  const std::string key = "Authorization: Bearer k\r\n", other = "Authorization: Bearer other\r\n";
  const auto create = [&](const std::string& body) {
    return json::parse(server.ask(post("/v1/responses", body, key)).body);
  };
  const json first = create(R"({"input":"hi","instructions":"x","metadata":{"a":"b"}})");
  EXPECT_EQ(first["object"], "response");
  EXPECT_EQ(first["status"], "completed");
  EXPECT_EQ(first["model"], "test-model");
  EXPECT_EQ(first["output"].size(), 1U);
  EXPECT_EQ(first["output"][0]["content"][0]["text"], "fine");
  EXPECT_EQ(first["usage"]["output_tokens"], 5);
  EXPECT_EQ(first["metadata"]["a"], "b");
  const std::string id = first["id"];
  // Stored, for its key alone.
  const std::string path = "/v1/responses/" + id;
  EXPECT_EQ(json::parse(server.ask(get(path, key)).body), first);
  EXPECT_EQ(server.ask(get(path, other)).status, 404);
  EXPECT_EQ(server.ask(get(path)).status, 401);
  const json second = create(R"({"input":"more","previous_response_id":")" + id + "\"}");
  EXPECT_EQ(second["previous_response_id"], id);
  const std::string prompt = "user: hi|assistant: fine|user: more|assistant:";
  EXPECT_EQ(second["usage"]["input_tokens"], prompt.size());
  const HttpAnswer unknown =
      server.ask(post("/v1/responses", R"({"input":"a","previous_response_id":")" + id + "\"}", other));
  EXPECT_EQ(unknown.status, 400);
  const auto remove = [&](const std::string& headers) {
    return server.ask("DELETE " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  };
  EXPECT_EQ(remove(other).status, 404);
  EXPECT_EQ(json::parse(remove(key).body), json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(remove(key).status, 404);
  EXPECT_EQ(server.ask(get(path, key)).status, 404);
  // Not stored.
  const json unkept = create(R"({"input":"hi","store":false})");
  EXPECT_EQ(unkept["store"], false);
  EXPECT_EQ(server.ask(get("/v1/responses/" + unkept["id"].get<std::string>(), key)).status, 404);
  // A stream, which ends by itself and is stored, too.
  const HttpAnswer stream =
      server.ask(post("/v1/responses", R"({"input":"hi","stream":true,"max_output_tokens":2})", key));
  const std::vector<std::string> all = events(stream.body);
  EXPECT_EQ(json::parse(all.front())["type"], "response.created");
  const json last = json::parse(all.back());
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(
      json::parse(server.ask(get("/v1/responses/" + last["response"]["id"].get<std::string>(), key)).body),
      last["response"]);
  const HttpAnswer long_input =
      server.ask(post("/v1/responses", R"({"input":")" + std::string(5000, 'a') + "\"}", key));
  EXPECT_EQ(json::parse(long_input.body)["error"]["param"], "input");
}

}  // namespace
}  // namespace kvasir::test
