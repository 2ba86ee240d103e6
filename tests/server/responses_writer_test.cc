// The events of a response: their order, their numbers and what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/handlers/responses.h"
#include "server/http_client.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;

class ResponsesWriterTest : public ::testing::Test {
 protected:
  ResponsesWriterTest() {
    request_.model = "m";
    context_->owner = "me";
    context_->store = &store_;
    context_->echo = {{"temperature", 1}, {"metadata", {{"a", "b"}}}};
    context_->messages = {{"user", "hi"}};
  }
  std::unique_ptr<AnswerWriter> writer() { return make_responses_writer(request_, context_); }

  // All events; each has a number and its name, which its data repeats.
  static std::vector<json> events_of(const std::string& stream) {
    std::vector<json> out;
    size_t at = 0;
    for (const std::string& data : events(stream)) {
      out.push_back(json::parse(data));
      EXPECT_EQ(out.back()["sequence_number"], out.size() - 1);
      at = stream.find("event: " + out.back()["type"].get<std::string>() + "\ndata: ", at);
      EXPECT_NE(at, std::string::npos) << data;
      if (at != std::string::npos) ++at;
    }
    return out;
  }
  static std::vector<std::string> types(const std::vector<json>& all) {
    std::vector<std::string> out;
    for (const json& e : all)
      out.push_back(e["type"].get<std::string>().substr(std::string("response.").size()));
    return out;
  }

  static TextDelta text(std::string t) {
    TextDelta delta;
    delta.text = std::move(t);
    return delta;
  }
  static TextDelta with_calls() {
    TextDelta delta = text("so");
    delta.reasoning = "!";
    delta.tool_calls = {{0, "c0", "f", ""}, {0, "", "", "{\"a\""}, {0, "", "", ":1}"}, {1, "c1", "g", "{}"}};
    return delta;
  }

  ResponseStore store_{1 << 20, 10};
  std::shared_ptr<ResponseContext> context_ = std::make_shared<ResponseContext>();
  ApiRequest request_;
};

TEST_F(ResponsesWriterTest, AStreamOfText) {
  const auto w = writer();
  std::string out = w->first_event(0, {.prompt_tokens = 9});
  out += w->delta_event(0, text("He"), "");
  out += w->delta_event(0, text("y"), "stop");
  out += w->usage_event({.prompt_tokens = 9, .completion_tokens = 3, .cached_tokens = 4});
  out += w->last_event();
  const std::vector<json> e = events_of(out);
  ASSERT_THAT(types(e), ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                                    "output_text.delta", "output_text.delta", "output_text.done",
                                    "content_part.done", "output_item.done", "completed"));
  EXPECT_EQ(e[0]["response"]["status"], "in_progress");
  EXPECT_EQ(e[0]["response"]["output"], json::array());
  EXPECT_EQ(e[0]["response"]["metadata"]["a"], "b");
  EXPECT_TRUE(e[0]["response"]["usage"].is_null());
  const json& added = e[2]["item"];
  EXPECT_EQ(added["type"], "message");
  EXPECT_EQ(added["role"], "assistant");
  EXPECT_EQ(added["status"], "in_progress");
  EXPECT_EQ(added["content"], json::array());
  const json place = {{"item_id", added["id"]}, {"output_index", 0}, {"content_index", 0}};
  for (const size_t i : {3, 4, 5, 6, 7}) {
    for (const auto& [name, value] : place.items()) EXPECT_EQ(e[i][name], value) << e[i];
  }
  EXPECT_EQ(e[3]["part"]["text"], "");
  EXPECT_EQ(e[4]["delta"], "He");
  EXPECT_EQ(e[4]["logprobs"], json::array());
  EXPECT_EQ(e[6]["text"], "Hey");
  EXPECT_EQ(e[7]["part"], json({{"type", "output_text"},
                                {"text", "Hey"},
                                {"annotations", json::array()},
                                {"logprobs", json::array()}}));
  EXPECT_EQ(e[8]["item"]["status"], "completed");
  const json& done = e[9]["response"];
  EXPECT_EQ(done["id"], e[0]["response"]["id"]);
  EXPECT_EQ(done["status"], "completed");
  EXPECT_EQ(done["output"], json::array({e[8]["item"]}));
  EXPECT_EQ(done["usage"], json({{"input_tokens", 9},
                                 {"input_tokens_details", {{"cached_tokens", 4}, {"cache_write_tokens", 0}}},
                                 {"output_tokens", 3},
                                 {"output_tokens_details", {{"reasoning_tokens", 0}}},
                                 {"total_tokens", 12}}));
  // What is stored is what was sent.
  const auto kept = store_.find(done["id"], "me");
  ASSERT_TRUE(kept);
  EXPECT_EQ(json::parse(kept->body), done);
  ASSERT_EQ(kept->messages.size(), 2U);
  EXPECT_EQ(kept->messages[1].role, "assistant");
  EXPECT_EQ(kept->messages[1].content, "Hey");
}

TEST_F(ResponsesWriterTest, TheRestOfACallComesBeforeTheTextBehindIt) {
  const auto w = writer();
  std::string out = w->first_event(0, {});
  TextDelta begun;
  begun.tool_calls = {{0, "c0", "f", "{"}};
  out += w->delta_event(0, begun, "");
  TextDelta rest = text("so");
  rest.tool_calls = {{0, "", "", "}"}, {1, "c1", "g", "{}"}};
  out += w->delta_event(0, rest, "tool_calls");
  out += w->usage_event({});
  const json output = events_of(out).back()["response"]["output"];
  ASSERT_EQ(output.size(), 3U) << output;
  EXPECT_EQ(output[0]["arguments"], "{}");
  EXPECT_EQ(output[1]["content"][0]["text"], "so");
  EXPECT_EQ(output[2]["name"], "g");
}

TEST_F(ResponsesWriterTest, AStreamOfReasoningTextAndCalls) {
  const auto w = writer();
  std::string out = w->first_event(0, {});
  TextDelta thinking;
  thinking.reasoning = "hm";
  out += w->delta_event(0, thinking, "");
  out += w->delta_event(0, with_calls(), "");
  out += w->delta_event(0, {}, "tool_calls");
  out += w->usage_event({});
  const std::vector<json> e = events_of(out);
  ASSERT_THAT(types(e),
              ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                          "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done",
                          "content_part.done", "output_item.done", "output_item.added", "content_part.added",
                          "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
                          "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
                          "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.done", "output_item.done", "completed"));
  EXPECT_EQ(e[6]["text"], "hm!");
  EXPECT_EQ(e[8]["item"]["type"], "reasoning");
  EXPECT_EQ(e[8]["item"]["summary"], json::array());
  EXPECT_EQ(e[8]["item"]["content"], json::array({{{"type", "reasoning_text"}, {"text", "hm!"}}}));
  EXPECT_EQ(e[15]["output_index"], 2);
  EXPECT_EQ(e[15]["item"]["arguments"], "");
  EXPECT_EQ(e[15]["item"]["call_id"], "c0");
  EXPECT_EQ(e[16]["delta"], "{\"a\"");
  EXPECT_FALSE(e[16].contains("content_index"));
  EXPECT_EQ(e[18]["arguments"], "{\"a\":1}");
  EXPECT_EQ(e[18]["name"], "f");
  EXPECT_EQ(e[19]["item"]["type"], "function_call");
  EXPECT_EQ(e[23]["item"]["name"], "g");
  EXPECT_EQ(e[24]["response"]["output"].size(), 4U);
  const auto kept = store_.find(e[24]["response"]["id"], "me");
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->messages[1].reasoning, "hm!");
  ASSERT_EQ(kept->messages[1].tool_calls.size(), 2U);
  EXPECT_EQ(kept->messages[1].tool_calls[0].arguments, "{\"a\":1}");
}

TEST_F(ResponsesWriterTest, AWholeAnswerIsWhatTheStreamEndsWith) {
  const auto normal = [](json response) {
    response["id"] = response["created_at"] = "";
    for (json& item : response["output"]) item["id"] = "";
    return response;
  };
  for (const char* reason : {"stop", "length"}) {
    const json whole = json::parse(writer()->whole({{with_calls(), reason}}, {.completion_tokens = 2}));
    const auto w = writer();
    w->first_event(0, {});
    w->delta_event(0, with_calls(), reason);
    const json last = json::parse(events(w->usage_event({.completion_tokens = 2})).at(0));
    EXPECT_EQ(normal(whole), normal(last["response"])) << reason;
    EXPECT_EQ(whole["output"].size(), 4U);
    EXPECT_TRUE(store_.find(whole["id"], "me"));
  }
}

TEST_F(ResponsesWriterTest, TheLengthLeavesTheLastItemIncomplete) {
  const auto w = writer();
  w->first_event(0, {});
  std::string out = w->delta_event(0, text("ab"), "length");
  out += w->usage_event({});
  const json item = json::parse(events(out).at(events(out).size() - 2))["item"];
  EXPECT_EQ(item["status"], "incomplete");
  const json last = json::parse(events(out).back());
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["status"], "incomplete");
  EXPECT_EQ(last["response"]["incomplete_details"], json({{"reason", "max_output_tokens"}}));
}

TEST_F(ResponsesWriterTest, AnErrorFailsTheResponse) {
  const auto w = writer();
  w->first_event(0, {});
  w->delta_event(0, text("a"), "");
  ApiError error;
  error.message = "busy";
  std::string out = w->error_event(error);
  out += w->last_event();
  ASSERT_EQ(events(out).size(), 1U);
  const json e = json::parse(events(out)[0]);
  EXPECT_EQ(e["type"], "response.failed");
  EXPECT_EQ(e["response"]["status"], "failed");
  EXPECT_EQ(e["response"]["error"], json({{"code", "server_error"}, {"message", "busy"}}));
  EXPECT_EQ(store_.entries(), 0U);
}

TEST_F(ResponsesWriterTest, WithoutStoreNothingIsKept) {
  context_->keep = false;
  writer()->whole({{text("a"), "stop"}}, {});
  EXPECT_EQ(store_.entries(), 0U);
}

}  // namespace
}  // namespace kvasir::test
