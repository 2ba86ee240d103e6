// One answer, event by event: what is measured, and what counts as a failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/bench/completion_stream.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = RequestRecord::State;

std::string text(const std::string& t) {
  return "data: {\"choices\":[{\"text\":\"" + t + "\",\"finish_reason\":null}]}\n\n";
}
std::string delta(const std::string& fields) {
  return "data: {\"choices\":[{\"delta\":{" + fields + "},\"finish_reason\":null}]}\n\n";
}
const std::string kFinish = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n";
const std::string kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n";
const std::string kDone = "data: [DONE]\n\n";
const Status kCut = error(ErrorCode::kUnavailable, "receive: cut");

// An answer in progress. Each piece comes at its time.
struct Answer {
  explicit Answer(int status = 200, const char* type = "text/event-stream") {
    record.start = 100;
    record.prompt_words = 5;
    stream.on_head(status, type);
  }
  bool at(Nanos now, const std::string& bytes) { return stream.on_body(bytes, now); }
  State end(const Status& status = Status()) {
    stream.on_end(status);
    return record.state;
  }
  RequestRecord record;
  CompletionStream stream{&record, true};
};

TEST(CompletionStream, TimesAreThoseOfChunksWithContent) {
  Answer a;
  EXPECT_TRUE(a.at(150, ": ping\n\n" + text("")));
  EXPECT_TRUE(a.at(200, text("a")));
  EXPECT_TRUE(a.at(230, text("b")));
  EXPECT_TRUE(a.at(250, text("")));
  EXPECT_TRUE(a.at(300, text("c")));
  EXPECT_TRUE(a.at(305, kFinish + kUsage));
  EXPECT_FALSE(a.at(900, kDone));
  EXPECT_EQ(a.end(), State::kCompleted);
  EXPECT_EQ(a.record.first, 200);
  EXPECT_EQ(a.record.last, 305);
  EXPECT_THAT(a.record.gaps, ElementsAre(30, 70));
  EXPECT_EQ(a.record.content_chunks, 3);
  EXPECT_EQ(a.record.prompt_tokens, 9);
  EXPECT_EQ(a.record.output_tokens, 4);
  EXPECT_TRUE(a.record.usage_known);
  EXPECT_EQ(a.record.text, "abc");
  EXPECT_EQ(a.record.error, "");
}

TEST(CompletionStream, ChatDeltasCountWithTheirReasoning) {
  Answer a;
  a.at(110, delta("\"role\":\"assistant\",\"content\":null"));
  a.at(120, delta("\"reasoning_content\":\"r\""));
  a.at(130, delta("\"content\":\"\",\"reasoning\":\"s\""));
  a.at(140, delta("\"content\":\"x\""));
  a.at(141, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" + kDone);
  EXPECT_EQ(a.end(), State::kCompleted);
  EXPECT_EQ(a.record.first, 120);
  EXPECT_THAT(a.record.gaps, ElementsAre(10, 10));
  EXPECT_EQ(a.record.text, "rsx");
}

TEST(CompletionStream, WithoutUsageWordsAndChunksAreCounted) {
  Answer a;
  a.at(200, text("a") + text("b"));
  a.at(201, "data: {\"choices\":[{\"text\":\"c\",\"finish_reason\":\"length\"}],\"usage\":null}\n\n" + kDone);
  EXPECT_EQ(a.end(), State::kCompleted);
  EXPECT_FALSE(a.record.usage_known);
  EXPECT_EQ(a.record.prompt_tokens, 5);
  EXPECT_EQ(a.record.output_tokens, 3);
}

TEST(CompletionStream, TheLastUsageStands) {
  Answer a;
  a.at(200,
       "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n");
  a.at(201, kFinish + kUsage + kDone);
  EXPECT_EQ(a.end(), State::kCompleted);
  EXPECT_EQ(a.record.output_tokens, 4);
}

TEST(CompletionStream, UsageThatMakesNoSenseIsNoUsage) {
  for (const char* usage :
       {"{\"prompt_tokens\":-1,\"completion_tokens\":1}", "{\"prompt_tokens\":\"9\"}", "[]", "3"}) {
    Answer a;
    a.at(200, text("a") + "data: {\"choices\":[],\"usage\":" + usage + "}\n\n" + kDone);
    EXPECT_EQ(a.end(), State::kCompleted);
    EXPECT_FALSE(a.record.usage_known) << usage;
  }
}

TEST(CompletionStream, AnAnswerWithoutContentIsTimedByItsEnd) {
  Answer a;
  a.at(300, kFinish + kDone);
  EXPECT_EQ(a.end(), State::kCompleted);
  EXPECT_EQ(a.record.first, 300);
  EXPECT_EQ(a.record.last, 300);
  EXPECT_EQ(a.record.content_chunks, 0);
  EXPECT_THAT(a.record.gaps, IsEmpty());
}

TEST(CompletionStream, NothingButDoneIsAFailure) {
  Answer a;
  EXPECT_FALSE(a.at(300, kDone));
  EXPECT_EQ(a.end(), State::kFailed);
  EXPECT_THAT(a.record.error, HasSubstr("without any content"));
}

TEST(CompletionStream, ACutStreamIsAFailureEvenAfterContent) {
  Answer a;
  a.at(200, text("a"));
  EXPECT_EQ(a.end(kCut), State::kFailed);
  EXPECT_EQ(a.record.error, "receive: cut");
}

TEST(CompletionStream, ACutAfterDoneIsNone) {
  Answer a;
  a.at(200, text("a") + kDone);
  EXPECT_EQ(a.end(kCut), State::kCompleted);
}

TEST(CompletionStream, AnEndWithoutDoneNeedsAFinishReason) {
  Answer finished;
  finished.at(200, text("a") + kFinish);
  EXPECT_EQ(finished.end(), State::kCompleted);
  Answer unfinished;
  unfinished.at(200, text("a"));
  EXPECT_EQ(unfinished.end(), State::kFailed);
  EXPECT_THAT(unfinished.record.error, HasSubstr("finish_reason"));
}

TEST(CompletionStream, AnErrorInTheStreamIsTheRequestsError) {
  Answer a;
  a.at(200, text("a"));
  EXPECT_FALSE(a.at(210, "data: {\"error\":{\"message\":\"out of\\nmemory\",\"code\":500}}\n\n" + kDone));
  EXPECT_EQ(a.end(), State::kFailed);
  EXPECT_EQ(a.record.error, "error in the stream: out of memory");
}

TEST(CompletionStream, GarbageInTheStreamIsAFailure) {
  for (const char* garbage :
       {"data: {\"choices\":\n\n", "data: hello\n\n", "data: [1]\n\n", "data: \xff\xfe\n\n"}) {
    Answer a;
    EXPECT_FALSE(a.at(200, garbage)) << garbage;
    EXPECT_EQ(a.end(), State::kFailed);
    EXPECT_THAT(a.record.error, HasSubstr("not a JSON object"));
  }
}

TEST(CompletionStream, OddChunksThatAreObjectsDoNoHarm) {
  Answer a;
  for (const char* odd :
       {"{}", "{\"choices\":null}", "{\"choices\":{}}", "{\"choices\":[3]}", "{\"choices\":[{}]}",
        "{\"choices\":[{\"text\":7,\"delta\":[]}]}", "{\"choices\":[{\"delta\":{\"content\":[]}}]}"}) {
    EXPECT_TRUE(a.at(150, std::string("data: ") + odd + "\n\n")) << odd;
  }
  a.at(200, text("a") + kDone);
  EXPECT_EQ(a.end(), State::kCompleted);
  EXPECT_EQ(a.record.first, 200);
}

TEST(CompletionStream, AnEventWithoutEndIsBounded) {
  Answer a;
  const std::string piece(1 << 20, 'x');
  bool wants_more = a.at(200, "data: ");
  for (int i = 0; i < 8 && wants_more; ++i) wants_more = a.at(200, piece);
  EXPECT_FALSE(wants_more);
  EXPECT_EQ(a.end(), State::kFailed);
  EXPECT_THAT(a.record.error, HasSubstr("larger than"));
}

TEST(CompletionStream, AStatusIsSaidWithTheServersMessage) {
  Answer a(503, "application/json");
  EXPECT_TRUE(a.at(200, "{\"error\":{\"mess"));
  EXPECT_TRUE(a.at(200, "age\":\"queue full\"}}"));
  EXPECT_EQ(a.end(), State::kFailed);
  EXPECT_EQ(a.record.error, "HTTP 503: queue full");
  Answer bare(500, "");
  EXPECT_EQ(bare.end(), State::kFailed);
  EXPECT_EQ(bare.record.error, "HTTP 500");
}

TEST(CompletionStream, AnEndlessErrorBodyIsNotRead) {
  Answer a(500, "text/html");
  bool wants_more = true;
  int pieces = 0;
  for (; pieces < 1000 && wants_more; ++pieces) wants_more = a.at(200, std::string(1024, 'e'));
  EXPECT_EQ(pieces, 64);
  EXPECT_EQ(a.end(), State::kFailed);
  EXPECT_LT(a.record.error.size(), 400u);
}

TEST(CompletionStream, AnAnswerThatDoesNotStreamIsSaid) {
  Answer a(200, "application/json");
  a.at(200, "{\"choices\":[{\"text\":\"all at once\"}]}");
  EXPECT_EQ(a.end(), State::kFailed);
  EXPECT_THAT(a.record.error, HasSubstr("application/json"));
}

TEST(CompletionStream, TheTypeOfAStreamIsReadAsHttpDoes) {
  Answer a(200, "Text/Event-Stream;charset=utf-8");
  a.at(200, text("a") + kDone);
  EXPECT_EQ(a.end(), State::kCompleted);
}

TEST(CompletionStream, NoAnswerAtAllKeepsTheTransportsWords) {
  RequestRecord record;
  CompletionStream stream(&record, false);
  stream.on_end(error(ErrorCode::kUnavailable, "connect to h:1: refused"));
  EXPECT_EQ(record.state, State::kFailed);
  EXPECT_EQ(record.error, "connect to h:1: refused");
}

TEST(ErrorMessage, IsFoundInTheUsualShapes) {
  EXPECT_EQ(error_message_of("{\"error\":\"plain\"}"), "plain");
  EXPECT_EQ(error_message_of("{\"message\":\"top\"}"), "top");
  EXPECT_EQ(error_message_of("{\"error\":{\"code\":1}}"), "{\"error\":{\"code\":1}}");
  EXPECT_EQ(error_message_of("<html>\r\nno\x1b[0m</html>\n"), "<html>  no [0m</html>");
}

TEST(CompletionBody, AsksForAStreamWithUsage) {
  const auto plain = nlohmann::json::parse(completion_body({"m", false, true, 0.5}, {"say \"hi\"\n", 2, 11}));
  EXPECT_EQ(plain,
            nlohmann::json::parse(R"({"model":"m","prompt":"say \"hi\"\n","max_tokens":11,"temperature":0.5,
      "stream":true,"stream_options":{"include_usage":true},"ignore_eos":true})"));
  const auto chat = nlohmann::json::parse(completion_body({"m", true, false, 0}, {"hi", 1, 3}));
  EXPECT_EQ(chat,
            nlohmann::json::parse(R"({"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3,
      "temperature":0.0,"stream":true,"stream_options":{"include_usage":true}})"));
}

}  // namespace
}  // namespace kvasir
