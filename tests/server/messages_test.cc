// Anthropic's schema: what is read, what is refused, the events of an answer, and the form of errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/handlers/anthropic.h"
#include "server/running_server.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

ApiRequest accepted(const std::string& body) {
  auto parsed = parse_messages_request(body);
  if (const auto* e = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << e->message;
    return {};
  }
  return std::get<ApiRequest>(std::move(parsed));
}

ApiError refused(const std::string& body) {
  auto parsed = parse_messages_request(body);
  if (const auto* e = std::get_if<ApiError>(&parsed)) return *e;
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

std::string body(const std::string& fields,
                 const std::string& messages = R"([{"role":"user","content":"hi"}])") {
  return R"({"max_tokens":8,"messages":)" + messages + (fields.empty() ? "" : "," + fields) + "}";
}

constexpr const char* kTool = R"("tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}])";

TEST(MessagesParser, PlainRequest) {
  const ApiRequest r =
      accepted(body(R"("system":"be brief","stop_sequences":["x"],"temperature":0.5,"top_p":0.9,
      "top_k":7,"metadata":{"user_id":"u"},"stream":true)"));
  ASSERT_EQ(r.messages.size(), 2U);
  EXPECT_EQ(r.messages[0].role, "system");
  EXPECT_EQ(r.messages[0].content, "be brief");
  EXPECT_EQ(r.messages[1].role, "user");
  EXPECT_EQ(r.messages[1].content, "hi");
  EXPECT_EQ(r.max_tokens, 8U);
  EXPECT_THAT(r.stop, ElementsAre("x"));
  EXPECT_EQ(r.sampling.temperature, 0.5F);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.unknown_fields.empty());
}

TEST(MessagesParser, Blocks) {
  const ApiRequest r =
      accepted(body(R"("system":[{"type":"text","text":"a","cache_control":{}},{"type":"text","text":"b"}])",
                    R"([
      {"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"?"},
        {"type":"text","text":"let me see"},{"type":"tool_use","id":"t1","name":"f","input":{"a":1}},
        {"type":"tool_use","id":"t2","name":"g","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","content":"sunny"},
        {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
        {"type":"text","text":"go on"}]},
      {"role":"user","content":"please"}])"));
  ASSERT_EQ(r.messages.size(), 6U);
  EXPECT_EQ(r.messages[0].content, "a\nb");
  EXPECT_EQ(r.messages[1].content, "x\ny");
  const ApiMessage& turn = r.messages[2];
  EXPECT_EQ(turn.role, "assistant");
  EXPECT_EQ(turn.reasoning, "hm");
  EXPECT_EQ(turn.content, "let me see");
  ASSERT_EQ(turn.tool_calls.size(), 2U);
  EXPECT_EQ(turn.tool_calls[0].id, "t1");
  EXPECT_EQ(turn.tool_calls[0].arguments, R"({"a":1})");
  EXPECT_EQ(r.messages[3].role, "tool");
  EXPECT_EQ(r.messages[3].tool_call_id, "t2");
  EXPECT_EQ(r.messages[3].name, "g");
  EXPECT_EQ(r.messages[3].content, "sunny");
  EXPECT_EQ(r.messages[4].name, "f");
  EXPECT_EQ(r.messages[4].content, "one\ntwo");
  EXPECT_EQ(r.messages[5].role, "user");
  EXPECT_EQ(r.messages[5].content, "go on\nplease") << "neighbours become one";
}

TEST(MessagesParser, Tools) {
  const ApiRequest plain = accepted(body(kTool));
  ASSERT_EQ(plain.tools.size(), 1U);
  EXPECT_EQ(plain.tools[0].name, "f");
  EXPECT_EQ(plain.tools[0].description, "d");
  EXPECT_EQ(plain.tools[0].parameters, R"({"type": "object"})");
  EXPECT_EQ(plain.tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(plain.parallel_tool_calls);
  const auto with = [](const std::string& choice) {
    return accepted(body(std::string(kTool) + R"(,"tool_choice":)" + choice));
  };
  EXPECT_EQ(with(R"({"type":"any"})").tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(with(R"({"type":"none"})").tool_choice, ToolChoice::kNone);
  EXPECT_EQ(with(R"({"type":"tool","name":"f"})").tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(with(R"({"type":"tool","name":"f"})").named_tool, "f");
  EXPECT_FALSE(with(R"({"type":"auto","disable_parallel_tool_use":true})").parallel_tool_calls);
}

TEST(MessagesParser, ThinkingAndFormat) {
  const auto enabled = [](const char* type) {
    const ApiRequest r =
        accepted(body(fmt::format(R"("thinking":{{"type":"{}","budget_tokens":1024}})", type)));
    EXPECT_EQ(r.template_variables.at(0).first, "enable_thinking");
    return std::get<bool>(r.template_variables.at(0).second.data);
  };
  EXPECT_TRUE(enabled("enabled"));
  EXPECT_FALSE(enabled("disabled"));
  const ApiRequest r =
      accepted(body(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})"));
  EXPECT_EQ(r.grammar.kind, OutputGrammar::Kind::kJsonSchema);
  EXPECT_EQ(r.grammar.text, R"({"type":"object"})");
}

TEST(MessagesParser, Refusals) {
  const auto param = [](const std::string& b) { return refused(b).param; };
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":"hi"}]})"), "max_tokens");
  EXPECT_THAT(refused(R"({"messages":[{"role":"user","content":"hi"}]})").message,
              HasSubstr("'max_tokens' is required: integer, at least 1"));
  EXPECT_EQ(param(R"({"max_tokens":1})"), "messages");
  const std::pair<const char*, const char*> messages[] = {
      {"[]", "messages"},
      {R"([{"role":"system","content":"a"}])", "messages[0].role"},
      {R"([{"role":"user","content":[]}])", "messages[0].content"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":["a"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":[{"type":"image","source":{}}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"document","source":{}}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"tool_result","content":"a"}]}])",
       "messages[0].content[0].tool_use_id"},
      {R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}]}])",
       "messages[0].content[0].content[0].type"},
      {R"([{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":"x"}]},
          {"role":"user","content":"b"}])",
       "messages[0].content[0].input"},
      {R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])", "messages"}};
  for (const auto& [list, field] : messages) EXPECT_EQ(param(body("", list)), field) << list;
  EXPECT_THAT(refused(body("", R"([{"role":"user","content":[{"type":"image","source":{}}]}])")).message,
              HasSubstr("is 'image': this server takes 'text' and 'tool_result'"));
  const std::pair<const char*, const char*> fields[] = {
      {R"("system":[{"type":"image"}])", "system[0].type"},
      {R"("system":5)", "system"},
      {R"("stop_sequences":"x")", "stop_sequences"},
      {R"("tools":[{"type":"bash_20250124","name":"bash"}])", "tools[0].type"},
      {R"("tools":[{"name":"f"}])", "tools[0].input_schema"},
      {R"("tool_choice":{"type":"any"})", "tool_choice"},
      {R"("tool_choice":{"type":"tool","name":"g"})", "tool_choice.name"},
      {R"("tool_choice":"auto")", "tool_choice"},
      {R"("tool_choice":{"type":"auto","disable_parallel_tool_use":1})",
       "tool_choice.disable_parallel_tool_use"},
      {R"("thinking":{"type":"on"})", "thinking"},
      {R"("output_config":{"format":{"type":"text"}})", "output_config.format"},
      {R"("mcp_servers":[{}])", "mcp_servers"}};
  for (const auto& [field, name] : fields) EXPECT_EQ(param(body(field)), name) << field;
}

class MessagesWriterTest : public ::testing::Test {
 protected:
  MessagesWriterTest() { request_.model = "m"; }
  std::unique_ptr<AnswerWriter> writer() { return make_messages_writer(tokenizer_, request_); }

  // All events, each with its name, which its data repeats.
  static std::vector<json> events_of(const std::string& stream) {
    std::vector<json> out;
    for (const std::string& data : events(stream)) out.push_back(json::parse(data));
    size_t at = 0;
    for (const json& e : out) {
      at = stream.find("event: " + e["type"].get<std::string>() + "\ndata: ", at);
      EXPECT_NE(at, std::string::npos) << e;
      if (at != std::string::npos) ++at;
    }
    return out;
  }
  static std::vector<std::string> types(const std::vector<json>& all) {
    std::vector<std::string> out;
    for (const json& e : all) out.push_back(e["type"]);
    return out;
  }

  static TextDelta text(std::string t) {
    TextDelta delta;
    delta.text = std::move(t);
    return delta;
  }

  const Tokenizer tokenizer_ = byte_tokenizer();
  ApiRequest request_;
};

TEST_F(MessagesWriterTest, AStreamOfText) {
  const auto w = writer();
  std::string out = w->first_event(0, {.prompt_tokens = 9});
  out += w->delta_event(0, text("He"), "");
  out += w->delta_event(0, text("y"), "length");
  out += w->usage_event({.prompt_tokens = 9, .completion_tokens = 2, .cached_tokens = 4});
  out += w->last_event();
  const std::vector<json> e = events_of(out);
  EXPECT_THAT(types(e),
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                          "content_block_delta", "content_block_stop", "message_delta", "message_stop"));
  const json& message = e[0]["message"];
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["model"], "m");
  EXPECT_EQ(message["content"], json::array());
  EXPECT_TRUE(message["stop_reason"].is_null());
  EXPECT_EQ(message["usage"]["input_tokens"], 9);
  EXPECT_TRUE(message["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(e[2]["index"], 0);
  EXPECT_EQ(e[2]["content_block"], json({{"type", "text"}, {"text", ""}}));
  EXPECT_EQ(e[3]["delta"], json({{"type", "text_delta"}, {"text", "He"}}));
  EXPECT_EQ(e[6]["delta"], json({{"stop_reason", "max_tokens"}, {"stop_sequence", nullptr}}));
  EXPECT_EQ(e[6]["usage"], json({{"input_tokens", 5},
                                 {"cache_creation_input_tokens", 0},
                                 {"cache_read_input_tokens", 4},
                                 {"output_tokens", 2}}));
}

TEST_F(MessagesWriterTest, AStreamOfThinkingTextAndCalls) {
  const auto w = writer();
  w->first_event(0, {});
  TextDelta thinking;
  thinking.reasoning = "hm";
  std::string out = w->delta_event(0, thinking, "");
  TextDelta both = text("so");
  both.reasoning = "!";
  both.tool_calls = {{0, "c0", "f", ""}, {0, "", "", "{\"a\""}};
  out += w->delta_event(0, both, "");
  TextDelta rest;
  rest.tool_calls = {{0, "", "", ":1}"}, {1, "c1", "g", "{}"}};
  out += w->delta_event(0, rest, "tool_calls");
  out += w->usage_event({});
  const std::vector<json> e = events_of(out);
  std::vector<std::string> steps;
  for (const json& one : e) {
    const json& what = one.contains("delta") ? one["delta"] : one.value("content_block", json::object());
    steps.push_back(fmt::format("{} {} {}", one["type"].get<std::string>().substr(8), one.value("index", -1),
                                what.value("type", "-")));
  }
  EXPECT_THAT(steps, ElementsAre("block_start 0 thinking", "block_delta 0 thinking_delta",
                                 "block_delta 0 thinking_delta", "block_stop 0 -", "block_start 1 text",
                                 "block_delta 1 text_delta", "block_stop 1 -", "block_start 2 tool_use",
                                 "block_delta 2 input_json_delta", "block_delta 2 input_json_delta",
                                 "block_stop 2 -", "block_start 3 tool_use", "block_delta 3 input_json_delta",
                                 "block_stop 3 -", "delta -1 -"));
  EXPECT_EQ(e[7]["content_block"],
            json({{"type", "tool_use"}, {"id", "c0"}, {"name", "f"}, {"input", json::object()}}));
  EXPECT_EQ(e[8]["delta"]["partial_json"], "{\"a\"");
  EXPECT_EQ(e.back()["delta"]["stop_reason"], "tool_use");
}

TEST_F(MessagesWriterTest, TheRestOfACallComesBeforeTheTextBehindIt) {
  const auto w = writer();
  TextDelta begun;
  begun.tool_calls = {{0, "c0", "f", "{"}};
  w->delta_event(0, begun, "");
  TextDelta rest = text("so");
  rest.tool_calls = {{0, "", "", "}"}, {1, "c1", "g", "{}"}};
  std::vector<std::string> types;
  for (const json& e : events_of(w->delta_event(0, rest, "tool_calls"))) {
    types.push_back(fmt::format("{} {}", e["type"].get<std::string>().substr(14), e.value("index", -1)));
  }
  EXPECT_THAT(types, ElementsAre("delta 0", "stop 0", "start 1", "delta 1", "stop 1", "start 2", "delta 2",
                                 "stop 2"));
}

TEST_F(MessagesWriterTest, ArgumentsThatAreNestedTooDeepAreText) {
  const auto input = [&](size_t levels) {
    TextDelta all;
    all.tool_calls = {{0, "c0", "f", R"({"a":)" + std::string(levels, '[') + std::string(levels, ']') + "}"}};
    return json::parse(writer()->whole({{all, "tool_calls"}}, {}))["content"][0]["input"];
  };
  EXPECT_TRUE(input(63).contains("a"));
  EXPECT_TRUE(input(64).contains("INVALID_JSON"));
  EXPECT_TRUE(input(200'000).contains("INVALID_JSON"));
}

TEST_F(MessagesWriterTest, WholeAnswers) {
  TextDelta all = text("so");
  all.reasoning = "hm";
  all.tool_calls = {
      {0, "c0", "f", "{\"a\""}, {0, "", "", ":1}"}, {1, "c1", "g", ""}, {2, "c2", "h", "[oops"}};
  const json answer =
      json::parse(writer()->whole({{all, "tool_calls"}}, {.prompt_tokens = 3, .completion_tokens = 2}));
  EXPECT_EQ(
      answer["content"],
      json::array(
          {{{"type", "thinking"}, {"thinking", "hm"}, {"signature", ""}},
           {{"type", "text"}, {"text", "so"}},
           {{"type", "tool_use"}, {"id", "c0"}, {"name", "f"}, {"input", {{"a", 1}}}},
           {{"type", "tool_use"}, {"id", "c1"}, {"name", "g"}, {"input", json::object()}},
           {{"type", "tool_use"}, {"id", "c2"}, {"name", "h"}, {"input", {{"INVALID_JSON", "[oops"}}}}}));
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  EXPECT_EQ(answer["usage"]["input_tokens"], 3);
  TextDelta stopped = text("a");
  stopped.stop_string = "STOP";
  const json second = json::parse(writer()->whole({{stopped, "stop"}}, {}));
  EXPECT_EQ(second["stop_reason"], "stop_sequence");
  EXPECT_EQ(second["stop_sequence"], "STOP");
  EXPECT_EQ(json::parse(writer()->whole({{text("a"), "stop"}}, {}))["stop_reason"], "end_turn");
}

TEST_F(MessagesWriterTest, AnErrorEndsTheStream) {
  const auto w = writer();
  ApiError error;
  error.status = 503;
  error.message = "busy";
  std::string out = w->error_event(error);
  out += w->last_event();
  EXPECT_EQ(out,
            "event: error\ndata: "
            "{\"error\":{\"message\":\"busy\",\"type\":\"overloaded_error\"},\"type\":\"error\"}\n\n");
}

TEST(Messages, OverHttp) {
  ServerOptions options = test_options();
  options.api_keys = {"k"};
  RunningServer server(say("one STOP two"), options);
  const std::string headers = "x-api-key: k\r\nanthropic-version: 2023-06-01\r\n";
  const auto ask = [&](const char* path, const std::string& b) { return server.ask(post(path, b, headers)); };
  const json answer =
      json::parse(ask("/v1/messages", body(R"("stop_sequences":["STOP"],"model":"alias")")).body);
  EXPECT_EQ(answer["content"], json::array({{{"type", "text"}, {"text", "one "}}}));
  EXPECT_EQ(answer["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer["stop_sequence"], "STOP");
  EXPECT_EQ(answer["usage"]["output_tokens"], 8);
  const HttpAnswer stream = ask("/v1/messages", body(R"("stream":true)"));
  const std::vector<std::string> all = events(stream.body);
  EXPECT_EQ(json::parse(all.front())["type"], "message_start");
  EXPECT_EQ(json::parse(all.front())["message"]["usage"]["input_tokens"], 19);
  EXPECT_EQ(json::parse(all.back())["type"], "message_stop");
  const HttpAnswer count =
      ask("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(count.body, R"({"input_tokens":19})") << "of 'user: hi|assistant:'";
}

TEST(Messages, ErrorsHaveAnthropicsForm) {
  ServerOptions options = test_options();
  options.api_keys = {"k"};
  RunningServer server(say("x"), options);
  const auto error = [&](const std::string& request, int status, const char* type) {
    const HttpAnswer answer = server.ask(request);
    EXPECT_EQ(answer.status, status);
    const json e = json::parse(answer.body);
    EXPECT_EQ(e["type"], "error");
    EXPECT_EQ(e["error"]["type"], type);
    EXPECT_FALSE(e["error"]["message"].get<std::string>().empty());
    EXPECT_EQ(e["error"].size(), 2U);
  };
  const std::string key = "x-api-key: k\r\n";
  error(post("/v1/messages", body("")), 401, "authentication_error");
  error(post("/v1/messages", body(R"("model":"gpt-9")"), key), 404, "not_found_error");
  error(post("/v1/messages", "{", key), 400, "invalid_request_error");
  error(post("/v1/messages/count_tokens", "{}", key), 400, "invalid_request_error");
  error("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n" + key + "Content-Length: 99999999\r\n\r\n", 413,
        "request_too_large");
  server.backend().refuse(kvasir::error(ErrorCode::kExhausted, "the queue is full"));
  error(post("/v1/messages", body(""), key), 503, "overloaded_error");
  server->drain();
  error(post("/v1/messages", body(""), key), 503, "overloaded_error");
  // Other endpoints keep theirs.
  EXPECT_EQ(json::parse(server.ask(post(kChatPath, chat_body())).body)["error"]["code"], "invalid_api_key");
}

}  // namespace
}  // namespace kvasir::test
