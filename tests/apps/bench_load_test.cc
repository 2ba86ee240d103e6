// The load against a scripted server: when requests are sent, and what becomes of every kind of answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "apps/bench/arrivals.h"
#include "apps/bench/load_runner.h"
#include "apps/fake_server.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using State = RequestRecord::State;

void sleep_ms(int64_t millis) {
  std::this_thread::sleep_for(std::chrono::milliseconds(millis));
}

LoadPlan plan_for(const FakeServer& server, int64_t requests) {
  LoadPlan plan;
  plan.target = parse_base_url(server.base_url()).value();
  plan.path = "/v1/completions";
  plan.request.model = "fake/tiny";
  plan.prompts = random_prompts({4, 3, 0, 0}, 0, requests);
  plan.arrivals.assign(static_cast<size_t>(requests), 0);
  plan.timeout = 20 * kNanosPerSecond;
  return plan;
}

LoadOutcome load(const LoadPlan& plan) {
  Result<LoadOutcome> outcome = run_load(plan);
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return std::move(outcome).value();
}

// The one record of a load of one request that this script answers.
RequestRecord answer_to_one(const FakeServer::Script& script, Nanos timeout = 20 * kNanosPerSecond) {
  FakeServer server(script);
  LoadPlan plan = plan_for(server, 1);
  plan.timeout = timeout;
  return load(plan).records.at(0);
}

TEST(Load, TimesFollowTheServersPace) {
  const RequestRecord r = answer_to_one([](const FakeRequest&, FakeConnection& c) {
    c.begin_stream();
    sleep_ms(60);
    for (int i = 0; i < 3; ++i) {
      c.chunk(text_event("x"));
      sleep_ms(40);
    }
    c.chunk(finish_event() + usage_event(5, 3) + std::string(kDoneEvent));
    c.end_stream();
  });
  ASSERT_EQ(r.state, State::kCompleted) << r.error;
  // A busy machine can only make a time longer, but for a gap whose first chunk was seen late.
  EXPECT_GE(to_millis(r.first - r.start), 60);
  EXPECT_GE(to_millis(r.last - r.start), 60 + 3 * 40);
  EXPECT_LT(to_millis(r.first - r.start), to_millis(r.last - r.start));
  EXPECT_EQ(r.gaps.size(), 2u);
  EXPECT_EQ(r.prompt_tokens, 5);
  EXPECT_EQ(r.output_tokens, 3);
}

TEST(Load, AStreamCutIntoSingleBytesIsTheSame) {
  const RequestRecord r = answer_to_one([](const FakeRequest&, FakeConnection& c) {
    c.begin_stream();
    const std::string stream = ": ping\r\n\r\n" + text_event("a") + text_event("b") + finish_event() +
                               usage_event(5, 2) + std::string(kDoneEvent);
    for (char byte : stream) c.chunk(std::string_view(&byte, 1));
    c.end_stream();
  });
  ASSERT_EQ(r.state, State::kCompleted) << r.error;
  EXPECT_EQ(r.content_chunks, 2);
  EXPECT_EQ(r.output_tokens, 2);
}

TEST(Load, AStreamThatEndsWithTheConnectionIsTaken) {
  const RequestRecord r = answer_to_one([](const FakeRequest&, FakeConnection& c) {
    c.raw("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
    c.raw(text_event("a") + finish_event());
  });
  ASSERT_EQ(r.state, State::kCompleted) << r.error;
  EXPECT_FALSE(r.usage_known);
  EXPECT_EQ(r.output_tokens, 1);
}

TEST(Load, NothingAfterDoneIsWaitedFor) {
  const RequestRecord r = answer_to_one([](const FakeRequest&, FakeConnection& c) {
    c.begin_stream();
    c.chunk(text_event("a") + std::string(kDoneEvent));
    c.hold();
  });
  EXPECT_EQ(r.state, State::kCompleted) << r.error;
}

TEST(Load, EveryWayToFailIsAFailureInWords) {
  const auto expect = [](const FakeServer::Script& script, const char* words) {
    const RequestRecord r = answer_to_one(script);
    EXPECT_EQ(r.state, State::kFailed) << words;
    EXPECT_THAT(r.error, HasSubstr(words));
    EXPECT_THAT(r.error, Not(HasSubstr("\n")));
  };
  expect(
      [](const FakeRequest&, FakeConnection& c) {
        c.answer(503, "application/json", R"({"error":{"message":"queue full"}})");
      },
      "HTTP 503: queue full");
  expect(
      [](const FakeRequest&, FakeConnection& c) {
        c.begin_stream();
        c.chunk(text_event("a"));
      },
      "closed the connection before the end");
  expect(
      [](const FakeRequest&, FakeConnection& c) {
        c.begin_stream();
        c.chunk(text_event("a"));
        c.raw("5\r\nda");
      },
      "closed the connection before the end");
  expect([](const FakeRequest&, FakeConnection&) {}, "closed the connection before the end");
  expect([](const FakeRequest&, FakeConnection& c) { c.raw("\x16\x03\x01 no HTTP\r\n\r\n"); }, "not HTTP");
  expect(
      [](const FakeRequest&, FakeConnection& c) {
        c.begin_stream();
        c.raw("zz\r\nnot a chunk\r\n");
      },
      "not HTTP");
  expect(
      [](const FakeRequest&, FakeConnection& c) {
        c.begin_stream();
        c.chunk("data: }{\n\n");
        c.hold();
      },
      "not a JSON object");
  expect([](const FakeRequest&, FakeConnection& c) { c.answer(200, "application/json", "{}"); },
         "instead of an event stream");
}

TEST(Load, ASlowAnswerRunsIntoTheTimeout) {
  for (const bool with_head : {false, true}) {
    const RequestRecord r = answer_to_one(
        [with_head](const FakeRequest&, FakeConnection& c) {
          if (with_head) {
            c.begin_stream();
            c.chunk(text_event("a"));
          }
          c.hold();
        },
        100 * kNanosPerMilli);
    EXPECT_EQ(r.state, State::kFailed);
    EXPECT_EQ(r.error, "timed out after 0.1 s");
  }
}

TEST(Load, ADripOfChunksDoesNotPutTheTimeoutOff) {
  const RequestRecord r = answer_to_one(
      [](const FakeRequest&, FakeConnection& c) {
        c.begin_stream();
        for (int i = 0; i < 60; ++i) {
          c.chunk(text_event("a"));
          sleep_ms(20);
        }
        c.chunk(kDoneEvent);
        c.end_stream();
      },
      200 * kNanosPerMilli);
  EXPECT_EQ(r.state, State::kFailed);
  EXPECT_EQ(r.error, "timed out after 0.2 s");
  EXPECT_GT(r.content_chunks, 0);
}

TEST(Load, TwoHundredRequestsAreInFlightAtOnce) {
  constexpr int kRequests = 200;
  std::mutex mutex;
  std::condition_variable all_here;
  int here = 0;
  FakeServer server([&](const FakeRequest&, FakeConnection& c) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      if (++here == kRequests) all_here.notify_all();
      // None is answered before all have come.
      all_here.wait_for(lock, std::chrono::seconds(15), [&] { return here == kRequests; });
    }
    stream_plainly(c, 3);
  });
  const LoadOutcome outcome = load(plan_for(server, kRequests));
  EXPECT_EQ(here, kRequests);
  EXPECT_EQ(outcome.max_concurrent, kRequests);
  for (const RequestRecord& r : outcome.records) {
    ASSERT_EQ(r.state, State::kCompleted) << r.error;
    EXPECT_EQ(r.output_tokens, 3);
  }
}

TEST(Load, TheBoundOnConcurrencyHoldsAndItsWaitIsInNoLatency) {
  FakeServer server([](const FakeRequest&, FakeConnection& c) {
    sleep_ms(20);
    stream_plainly(c, 2);
  });
  LoadPlan plan = plan_for(server, 24);
  plan.max_concurrency = 3;
  const LoadOutcome outcome = load(plan);
  EXPECT_EQ(outcome.max_concurrent, 3);
  // The server may still be closing a connection whose answer has been read to the end.
  EXPECT_GE(server.max_concurrent(), 2);
  EXPECT_LE(server.max_concurrent(), 6);
  EXPECT_GE(to_millis(outcome.duration), 24 / 3 * 20);
  Nanos before = 0;
  Nanos sum = 0;
  for (const RequestRecord& r : outcome.records) {
    EXPECT_EQ(r.state, State::kCompleted) << r.error;
    EXPECT_GE(r.start, before);  // in the order of arrival
    before = r.start;
    sum += r.last - r.start;
  }
  // Three at a time: the latencies add up to at most three times the duration, which no latency with a wait
  // in it could.
  EXPECT_LE(sum, 3 * outcome.duration);
}

TEST(Load, SlowAnswersDoNotDelayArrivals) {
  FakeServer server([](const FakeRequest&, FakeConnection& c) {
    sleep_ms(2500);
    stream_plainly(c, 2);
  });
  LoadPlan plan = plan_for(server, 20);
  plan.arrivals = draw_arrivals(20, 50, 1.0, 4);
  const LoadOutcome outcome = load(plan);
  for (size_t i = 0; i < plan.arrivals.size(); ++i) {
    const Nanos late = outcome.records[i].start - outcome.start - plan.arrivals[i];
    EXPECT_GE(late, 0) << i;
    EXPECT_LT(to_millis(late), 2000) << i;
  }
  // All were sent within about 0.4 s, before the first answer.
  EXPECT_EQ(outcome.max_concurrent, 20);
}

TEST(Load, AFailureDoesNotHoldTheRestUp) {
  FakeServer server([](const FakeRequest& request, FakeConnection& c) {
    if (request.number % 3 == 0) {
      c.answer(500, "text/plain", "no");
    } else {
      stream_plainly(c, 2);
    }
  });
  LoadPlan plan = plan_for(server, 30);
  plan.max_concurrency = 2;
  const LoadOutcome outcome = load(plan);
  const auto failed = std::count_if(outcome.records.begin(), outcome.records.end(),
                                    [](const RequestRecord& r) { return r.state == State::kFailed; });
  const auto completed = std::count_if(outcome.records.begin(), outcome.records.end(),
                                       [](const RequestRecord& r) { return r.state == State::kCompleted; });
  EXPECT_EQ(failed, 10);
  EXPECT_EQ(completed, 20);
}

TEST(Load, AnEmptyLoadEndsAtOnce) {
  FakeServer server([](const FakeRequest&, FakeConnection&) {});
  EXPECT_TRUE(load(plan_for(server, 0)).records.empty());
}

}  // namespace
}  // namespace kvasir
