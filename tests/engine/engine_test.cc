// The engine's promises to its callers, one at a time. The scripted executor samples the position as the
// token.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "engine/queue_limits.h"
#include "plan/plan_builder.h"

namespace kvasir::test {
namespace {

TEST(Engine, EndsWithLengthAtMaxTokens) {
  Harness h;
  auto sink = h.submit(request(5, 3));
  h.finish();
  EXPECT_EQ(sink->tokens, (std::vector<Token>{5, 6, 7}));
  EXPECT_EQ(sink->finish, FinishReason::kLength);
  EXPECT_EQ(sink->events, 3);
  EXPECT_EQ(h.executor.steps().size(), 3u);
  EXPECT_EQ(h.executor.steps()[1].token_ids, std::vector<Token>{5});
}

TEST(Engine, WithoutMaxTokensItGoesOnToTheModelsLength) {
  EngineOptions o = small_options();
  o.max_model_len = 20;
  Harness h(o);
  auto sink = h.submit(request(15, 0));
  h.finish();
  EXPECT_EQ(sink->tokens.size(), 5u);
  EXPECT_EQ(sink->finish, FinishReason::kLength);
}

TEST(Engine, EndsWithStopAtAStopTokenAndReportsIt) {
  for (int depth : {1, 2}) {
    Harness h(small_options(), {}, depth);
    GenerationRequest r = request(5, 100);
    r.stop_tokens = {99, 7};
    auto sink = h.submit(std::move(r));
    h.finish();
    EXPECT_EQ(sink->tokens, (std::vector<Token>{5, 6, 7})) << "depth " << depth;
    EXPECT_EQ(sink->finish, FinishReason::kStop);
    EXPECT_EQ(h.engine.metrics().kv_blocks_used, 0u);
  }
}

// The view says so for as long as it lives: a policy may plan again only after the token is there.
TEST(Engine, TheViewKeepsWhichGapsWereTooLong) {
  for (int depth : {1, 2}) {
    const auto inner = std::shared_ptr<Policy>(make_policy("sarathi").value());
    std::vector<uint16_t> seen;
    Harness h(small_options(), std::make_unique<FunctionPolicy>([&, inner](const View& view) {
                if (!view.running.empty()) seen.push_back(view.running[0].late_gaps);
                return inner->plan(view);
              }),
              depth);
    GenerationRequest r = request(5, 8);
    r.slo = {.tbt_ms = 25};  // a step takes 10
    auto sink = h.submit(std::move(r));
    while (sink->tokens.size() < 3) h.engine.step();
    EXPECT_EQ(seen.back(), 0) << "depth " << depth;
    h.clock.advance(30 * kNanosPerMilli);
    const size_t before = seen.size();
    h.finish();
    ASSERT_GT(seen.size(), before);
    EXPECT_EQ(seen.back(), 1) << "depth " << depth;
  }
}

TEST(Engine, SaysWhatCanNeverFit) {
  EngineOptions o = small_options(4);  // 64 tokens
  Harness h(o);
  auto sink = std::make_shared<CollectingSink>();
  auto refused = h.engine.submit(request(64, 1), sink);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("64 tokens"), std::string::npos);
  refused = h.engine.submit(request(60, 5), sink);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("at most 4"), std::string::npos) << refused.status().message();
  EXPECT_FALSE(h.engine.submit(request(0, 5), sink).ok());
  auto longest = h.submit(request(60, 4));
  h.finish();
  EXPECT_EQ(longest->finish, FinishReason::kLength);
  EXPECT_EQ(sink->events, 0);
}

TEST(Engine, LongestFitIsWhatTheCacheHolds) {
  EXPECT_EQ(Engine::longest_fit(small_options(7).cache), 7u * 16);
}

TEST(Engine, TheQueueIsBoundedInRequests) {
  EngineOptions o = small_options();
  o.max_num_queued_reqs = 2;
  o.limits.max_num_seqs = 1;
  Harness h(o);
  h.submit(request(5, 2));
  h.submit(request(5, 2));
  auto refused = h.engine.submit(request(5, 2), std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kExhausted);
  h.engine.step();  // one runs, also though the clock stands at zero
  h.submit(request(5, 2));
  EXPECT_FALSE(h.engine.submit(request(5, 2), std::make_shared<CollectingSink>()).ok());
  h.engine.cancel(h.last);
  h.engine.step();
  h.submit(request(5, 2));
  h.finish();
  for (int i = 0; i < 2; ++i) h.submit(request(5, 2));
  EXPECT_FALSE(h.engine.submit(request(5, 2), std::make_shared<CollectingSink>()).ok());
}

TEST(Engine, PlacesInTheQueueAreKeptForRequestsThatComeLater) {
  EngineOptions o = small_options();
  o.max_num_queued_reqs = 4;
  o.limits.max_num_seqs = 1;
  Harness h(o);
  const std::vector<GenerationRequest> three(3, request(5, 2));
  auto places = h.engine.reserve(three);
  ASSERT_TRUE(places.ok());
  EXPECT_EQ(h.engine.reserve(std::vector<GenerationRequest>(2, request(5, 2))).status().code(),
            ErrorCode::kExhausted);
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(h.engine.submit(three[0], sink, places->get()).ok());
  h.submit(request(5, 2));
  EXPECT_FALSE(h.engine.submit(request(5, 2), sink).ok()) << "one waits, two places are kept, one more waits";
  h.engine.drain();
  EXPECT_TRUE(h.engine.submit(three[1], sink, places->get()).ok()) << "it is no new request";
  places->reset();
  EXPECT_EQ(h.engine.reserve(three).status().code(), ErrorCode::kUnavailable);

  Harness other(o);
  EXPECT_EQ(other.engine.reserve(std::vector<GenerationRequest>(5, request(5, 2))).status().code(),
            ErrorCode::kInvalidArgument)
      << "never";
  { const auto for_a_moment = other.engine.reserve(three); }
  EXPECT_TRUE(other.engine.reserve(std::vector<GenerationRequest>(4, request(5, 2))).ok()) << "given back";
  std::vector<GenerationRequest> shared = three;
  for (GenerationRequest& r : shared) r.tenant = {.id = 1, .weight = 1, .queue_share = 0.5F};
  EXPECT_EQ(other.engine.reserve(shared).status().code(), ErrorCode::kInvalidArgument) << "two at the most";
  shared.pop_back();
  const auto two = other.engine.reserve(shared);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(other.engine.reserve({shared.data(), 1}).status().code(), ErrorCode::kOverShare);
}

// Twenty requests begin one each 50 ms, so three that wait take 150 ms, more than a quarter of 500. Places
// that are kept for others, which come later, make no wait longer.
TEST(QueueLimits, KeptPlacesAreNoWait) {
  EngineOptions o = small_options();
  o.refuse_late = true;
  o.max_num_queued_reqs = 400;
  std::atomic<uint64_t> late{0};
  QueueLimits limits(o, late);
  Nanos now = 0;
  for (int i = 0; i < 23; ++i) limits.joined({}, now);
  for (int i = 0; i < 20; ++i) limits.began({}, now += 50 * kNanosPerMilli);
  std::vector<GenerationRequest> one(1, request(5, 2));
  one[0].slo.ttft_ms = 500;
  EXPECT_EQ(limits.check_queue(one).code(), ErrorCode::kExhausted);
  for (int i = 0; i < 3; ++i) limits.ended({});
  limits.reserve(300, {});
  EXPECT_TRUE(limits.check_queue(one).ok());
  EXPECT_EQ(late, 1u);
}

TEST(Engine, TheQueueIsBoundedInTokens) {
  EngineOptions o = small_options();
  o.max_num_queued_tokens = 50;
  Harness h(o);
  h.submit(request(30, 1));
  h.submit(request(20, 1));
  auto refused = h.engine.submit(request(1, 1), std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kExhausted);
  h.finish();
  auto lonely = h.submit(request(60, 1));
  h.finish();
  EXPECT_EQ(lonely->finish, FinishReason::kLength) << "later would be no better";
}

TEST(Engine, DrainingRefusesTheNewAndFinishesTheOld) {
  Harness h;
  auto old = h.submit(request(5, 3));
  h.engine.drain();
  auto refused = h.engine.submit(request(5, 3), std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kUnavailable);
  h.finish();
  EXPECT_EQ(old->finish, FinishReason::kLength);
  EXPECT_TRUE(h.engine.wait_idle(0));
}

TEST(Engine, CancelsTheWaitingTheRunningAndNoOther) {
  EngineOptions o = small_options();
  o.limits.max_num_seqs = 1;
  for (int depth : {1, 2}) {
    Harness h(o, {}, depth);
    auto running = h.submit(request(5, 50));
    const RequestId running_id = h.last;
    auto waiting = h.submit(request(5, 5));
    h.engine.cancel(h.last);
    auto other = h.submit(request(5, 5));
    for (int i = 0; i < 4; ++i) h.engine.step();
    EXPECT_EQ(waiting->finish, FinishReason::kAbort);
    EXPECT_TRUE(waiting->tokens.empty());
    h.engine.cancel(running_id);
    h.engine.cancel(running_id);
    h.engine.cancel(RequestId{12345});
    h.finish();
    EXPECT_EQ(running->finish, FinishReason::kAbort);
    EXPECT_EQ(running->events_after_finish, 0);
    EXPECT_GT(running->tokens.size(), 0u);
    EXPECT_EQ(other->tokens.size(), 5u);
    EXPECT_EQ(h.engine.metrics().kv_blocks_used, 0u);
    EXPECT_EQ(h.engine.metrics().finished[static_cast<size_t>(FinishReason::kAbort)], 2u);
  }
}

TEST(Engine, AFailedStepEndsOnlyItsRequests) {
  EngineOptions o = small_options();
  o.limits.max_num_seqs = 1;
  Harness h(o);
  h.executor.fail_step(2, "a cable was pulled");
  GenerationRequest labelled = request(5, 5);
  labelled.label = std::make_shared<const RequestLabel>(RequestLabel{"req-8", "team-b"});
  testing::internal::CaptureStderr();
  auto first = h.submit(std::move(labelled));
  auto second = h.submit(request(5, 5));
  h.finish();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("failed: a cable was pulled request_id=req-8 key=team-b\n"), std::string::npos) << log;
  EXPECT_EQ(first->finish, FinishReason::kError);
  EXPECT_NE(first->error.find("a cable was pulled"), std::string::npos);
  EXPECT_EQ(first->tokens, std::vector<Token>{5});
  EXPECT_EQ(second->finish, FinishReason::kLength);
  EXPECT_EQ(second->error, "");
}

TEST(Engine, StopAbortsAllThatIsLeft) {
  for (int depth : {1, 2}) {
    EngineOptions o = small_options();
    o.limits.max_num_seqs = 1;
    Harness h(o, {}, depth);
    auto running = h.submit(request(5, 50));
    auto waiting = h.submit(request(5, 50));
    h.engine.step();
    auto fresh = h.submit(request(5, 50));
    h.engine.stop();
    for (const auto& sink : {running, waiting, fresh}) EXPECT_EQ(sink->finish, FinishReason::kAbort);
    EXPECT_EQ(h.engine.metrics().kv_blocks_used, 0u);
    EXPECT_EQ(h.engine.metrics().num_requests_waiting, 0u);
    EXPECT_TRUE(h.engine.wait_idle(0));
    EXPECT_FALSE(h.engine.submit(request(5, 5), fresh).ok());
    h.engine.stop();
    EXPECT_EQ(h.engine.check_integrity().message(), "");
  }
}

TEST(Engine, APolicyMayFailARequest) {
  auto policy = std::make_unique<FunctionPolicy>([](const View& view) {
    PlanBuilder b(view);
    for (const SeqView& s : view.waiting) {
      if (s.prompt_tokens > 10) {
        b.fail(s, "no policy wants so long a prompt: shorten it");
      } else if (b.admit(s)) {
        b.prefill(s, 100);
      }
    }
    for (const SeqView& s : view.running) (void)b.decode(s);
    return b.take();
  });
  Harness h(small_options(), std::move(policy));
  auto bad = h.submit(request(11, 5));
  auto good = h.submit(request(10, 5));
  h.finish();
  EXPECT_EQ(bad->finish, FinishReason::kError);
  EXPECT_NE(bad->error.find("shorten it"), std::string::npos);
  EXPECT_EQ(good->finish, FinishReason::kLength);
}

TEST(Engine, WhatAPreemptedSequenceKeepsShowsInTheNextView) {
  int turn = 0;
  std::vector<SeqView> seen;
  auto policy = std::make_unique<FunctionPolicy>([&](const View& view) {
    ++turn;
    for (const SeqView& s : view.waiting) seen.push_back(s);
    PlanBuilder b(view);
    if (turn == 1) {
      b.admit(view.waiting[0]);
      b.prefill(view.waiting[0], 20);
      return b.take();
    }
    for (const SeqView& s : view.running) {
      if (turn == 3) {
        b.preempt_and_keep(s);
      } else if (s.decoding()) {
        (void)b.decode(s);
      } else {
        b.prefill(s, 100);
      }
    }
    if (turn != 3) {
      for (const SeqView& s : view.waiting) {
        if (b.admit(s)) b.prefill(s, 100);
      }
    }
    return b.take();
  });
  Harness h(small_options(), std::move(policy));
  auto a = h.submit(request(30, 4));
  auto b = h.submit(request(30, 4, 500));
  h.finish();
  ASSERT_EQ(seen.size(), 5u);  // both; then the second; then, after the preemptions, both again
  EXPECT_EQ(seen[2].ready_tokens, 0u);
  EXPECT_EQ(seen[3].ready_tokens, 30u);
  EXPECT_EQ(seen[3].known_tokens, 31u);
  EXPECT_EQ(seen[3].preemptions, 1u);
  EXPECT_EQ(a->tokens, (std::vector<Token>{30, 31, 32, 33}));
  EXPECT_EQ(b->tokens, (std::vector<Token>{30, 31, 32, 33}));
}

// At 5 ms it arrives and runs, at 15 it has its first token, at 25 the policy preempts it for a step of the
// other, and runs it again at 35.
TEST(Engine, ATimelineHasWhenARequestWaitedAndRan) {
  int turn = 0;
  auto policy = std::make_unique<FunctionPolicy>([&](const View& view) {
    ++turn;
    PlanBuilder b(view);
    for (const SeqView& s : view.running) {
      if (turn == 3 && s.preemptions == 0 && s.known_tokens == 32) {
        b.preempt_and_keep(s);
      } else if (s.decoding()) {
        (void)b.decode(s);
      }
    }
    for (const SeqView& s : view.waiting) {
      if (turn != 3 || s.preemptions == 0) {
        if (b.admit(s)) b.prefill(s, 100);
      }
    }
    return b.take();
  });
  Harness h(small_options(), std::move(policy));
  h.clock.advance(5 * kNanosPerMilli);
  GenerationRequest traced = request(30, 4);
  const auto timeline = traced.timeline = std::make_shared<RequestTimeline>();
  h.submit(std::move(traced));
  h.engine.step();
  EXPECT_EQ(timeline->times().arrival, 5 * kNanosPerMilli);
  EXPECT_EQ(timeline->times().end, 0);
  h.submit(request(30, 6, 500));
  h.finish();
  const RequestTimes t = timeline->times();
  EXPECT_EQ(t.first_run, 5 * kNanosPerMilli);
  EXPECT_EQ(t.first_token, 15 * kNanosPerMilli);
  ASSERT_EQ(t.stalls.size(), 1u);
  EXPECT_EQ(t.stalls[0].begin, 25 * kNanosPerMilli);
  EXPECT_EQ(t.stalls[0].end, 35 * kNanosPerMilli);
  EXPECT_EQ(t.preemptions, 1u);
  EXPECT_EQ(t.end, 55 * kNanosPerMilli);
}

TEST(Engine, TheTimelineOfACancelledRequestEnds) {
  Harness h;
  h.clock.advance(5 * kNanosPerMilli);
  GenerationRequest traced = request(30, 4);
  const auto timeline = traced.timeline = std::make_shared<RequestTimeline>();
  h.submit(std::move(traced));
  h.engine.step();
  h.engine.cancel(h.last);
  h.finish();
  EXPECT_EQ(timeline->times().end, 15 * kNanosPerMilli);
}

TEST(Engine, TellsHowMuchOfThePromptWasCached) {
  Harness h;
  auto first = h.submit(request(40, 2));
  h.finish();
  auto second = h.submit(request(40, 2));
  h.finish();
  EXPECT_EQ(first->cached_prompt_tokens, 0u);
  EXPECT_EQ(second->cached_prompt_tokens, 32u);
  const EngineMetrics& m = h.engine.metrics();
  EXPECT_EQ(m.prompt_tokens, 80u);
  EXPECT_EQ(m.prompt_tokens_cached, 32u);
  EXPECT_EQ(m.prefix_cache_hits, 32u);
  EXPECT_EQ(m.prefix_cache_queries, 80u);
  EXPECT_EQ(m.kv_blocks_cached, 2u);
}

TEST(Engine, BlocksAreSharedOnlyBetweenRequestsOfOneSalt) {
  const auto salted = [](const std::string& salt) {
    GenerationRequest r = request(40, 2);
    r.cache_salt = salt;
    return r;
  };
  const std::string salts[] = {"", "a", "b", "ab"};
  for (const std::string& first : salts) {
    for (const std::string& second : salts) {
      for (bool together : {false, true}) {
        Harness h;
        h.submit(salted(first));
        if (together) {
          h.engine.step();  // its blocks are there, and it goes on
        } else {
          h.finish();
        }
        auto sink = h.submit(salted(second));
        h.finish();
        EXPECT_EQ(sink->cached_prompt_tokens, first == second ? 32u : 0u)
            << "'" << first << "', then '" << second << "', together: " << together;
        EXPECT_EQ(h.engine.metrics().kv_blocks_cached, first == second ? 2u : 4u);
      }
    }
  }
}

TEST(Engine, MeasuresTimesAsTheClockHasThem) {
  EngineOptions o = small_options();
  o.limits.max_num_seqs = 1;
  Harness h(o);
  h.clock.advance(5 * kNanosPerMilli);
  h.submit(request(20, 3));  // runs at 5 ms; tokens at 15, 25 and 35 ms
  h.submit(request(20, 1));  // runs at 35 ms; its token at 45 ms
  h.finish();
  const EngineMetrics& m = h.engine.metrics();
  EXPECT_NEAR(m.time_to_first_token.sum(), 0.010 + 0.040, 1e-9);
  EXPECT_NEAR(m.request_queue_time.sum(), 0 + 0.030, 1e-9);
  EXPECT_NEAR(m.request_prefill_time.sum(), 0.010 + 0.010, 1e-9);
  EXPECT_NEAR(m.request_inference_time.sum(), 0.030 + 0.010, 1e-9);
  EXPECT_NEAR(m.inter_token_latency.sum(), 0.020, 1e-9);
  EXPECT_NEAR(m.time_per_output_token.sum(), 0.010, 1e-9);
  EXPECT_NEAR(m.request_decode_time.sum(), 0.020 + 0, 1e-9);
  EXPECT_NEAR(m.e2e_request_latency.sum(), 0.030 + 0.040, 1e-9);
  EXPECT_NEAR(m.seconds_execute.load(), 0.040, 1e-9);
  EXPECT_EQ(m.generation_tokens, 4u);
  EXPECT_EQ(m.steps, 4u);
  EXPECT_EQ(m.iteration_tokens.sum(), 20.0 + 1 + 1 + 20 - 16);  // 16 of the second prompt are cached
  EXPECT_EQ(m.request_prompt_tokens.sum(), 40.0);
  EXPECT_EQ(m.request_generation_tokens.sum(), 4.0);
}

TEST(Engine, AtDepthTwoTheNextStepIsPlannedBeforeTheLastHasEnded) {
  Harness h(small_options(), {}, 2);
  auto sink = h.submit(request(5, 3));
  h.engine.step();
  EXPECT_EQ(h.executor.steps().size(), 1u);
  EXPECT_TRUE(sink->tokens.empty());
  h.engine.step();
  EXPECT_EQ(h.executor.steps().size(), 2u);
  EXPECT_TRUE(h.executor.steps()[1].slices[0].last_token_by_reference);
  EXPECT_EQ(sink->tokens, std::vector<Token>{5});
  h.finish();
  EXPECT_EQ(sink->tokens, (std::vector<Token>{5, 6, 7}));
  EXPECT_EQ(h.executor.steps().size(), 3u) << "nothing runs beyond what can be wanted";
}

TEST(Engine, APolicyThatFindsNothingToDoEndsTheFirstRequest) {
  int turns = 0;
  auto policy = std::make_unique<FunctionPolicy>([&](const View& view) {
    PlanBuilder b(view);
    // Idle for once: then it goes on with what is left.
    if (turns++ > 0 && b.admit(view.waiting[0])) b.prefill(view.waiting[0], 100);
    return b.take();
  });
  Harness h(small_options(), std::move(policy));
  GenerationRequest labelled = request(30, 1);
  labelled.label = std::make_shared<const RequestLabel>(RequestLabel{"req-7", "team-a"});
  testing::internal::CaptureStderr();
  auto first = h.submit(std::move(labelled));
  auto second = h.submit(request(30, 1, 500));
  h.finish();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("no way to go on with 0 running and 2 waiting requests; the first one fails "
                     "request_id=req-7 key=team-a\n"),
            std::string::npos)
      << log;
  EXPECT_EQ(first->finish, FinishReason::kError);
  EXPECT_NE(first->error.find("no memory for this request"), std::string::npos) << first->error;
  EXPECT_TRUE(first->try_again);
  EXPECT_EQ(second->finish, FinishReason::kLength);
  EXPECT_EQ(h.engine.metrics().standstills, 1u);
}

TEST(Engine, ReasonsOfPlansAreCounted) {
  auto policy = std::make_unique<FunctionPolicy>([&](const View& view) {
    PlanBuilder b(view);
    b.because({Cause::kStretch});
    b.because({Cause::kNoMemory, SeqId{1}});
    if (!view.waiting.empty() && b.admit(view.waiting[0])) b.prefill(view.waiting[0], 100);
    for (const SeqView& seq : view.running) b.prefill(seq, 100);
    return b.take();
  });
  Harness h(small_options(), std::move(policy));
  h.submit(request(30, 1));
  h.finish();
  const auto counted = [&](Cause cause) {
    return h.engine.metrics().decisions[static_cast<size_t>(cause)].load();
  };
  EXPECT_EQ(counted(Cause::kStretch), 1u);
  EXPECT_EQ(counted(Cause::kNoMemory), 1u);
  EXPECT_EQ(counted(Cause::kArrivedLast), 0u);
}

TEST(Engine, APriorityIsAWeightInTheView) {
  EXPECT_EQ(weight_of(0), 1);
  EXPECT_EQ(weight_of(-1), 2);
  EXPECT_EQ(weight_of(3), 0.125f);
  EXPECT_EQ(weight_of(INT32_MIN), 16);
  EXPECT_EQ(weight_of(INT32_MAX), 0.0625f);
  float seen = 0;
  auto policy = std::make_unique<FunctionPolicy>([&](const View& view) {
    PlanBuilder b(view);
    if (!view.waiting.empty()) seen = view.waiting[0].weight;
    if (!view.waiting.empty() && b.admit(view.waiting[0])) b.prefill(view.waiting[0], 100);
    return b.take();
  });
  Harness h(small_options(), std::move(policy));
  GenerationRequest r = request(30, 1);
  r.priority = -2;
  h.submit(std::move(r));
  h.finish();
  EXPECT_EQ(seen, 4);
}

}  // namespace
}  // namespace kvasir::test
