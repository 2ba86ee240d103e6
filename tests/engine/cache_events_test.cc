// What an engine tells of its prefix cache, turn by turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cache/blocks/block_hash.h"
#include "engine/engine_fixture.h"

namespace kvasir::test {
namespace {

using Kind = CacheEvent::Kind;

class FakeSink final : public CacheEventSink {
 public:
  bool wants_everything() const override { return wants_; }
  void publish(std::vector<CacheEvent> events) override {
    EXPECT_FALSE(events.empty());
    EXPECT_EQ(events.front().kind == Kind::kCleared, wants_);
    wants_ = false;
    for (CacheEvent& e : events) {
      if (e.kind == Kind::kCleared) known.clear();
      if (e.kind == Kind::kStored) known[e.hash] = std::move(e.tokens);
      if (e.kind == Kind::kRemoved) {
        EXPECT_EQ(known.erase(e.hash), 1u);
      }
    }
    ++lists;
  }
  void lose_everything() { wants_ = true; }

  std::map<uint64_t, std::vector<Token>> known;
  int lists = 0;

 private:
  bool wants_ = true;
};

EngineOptions telling(FakeSink& sink) {
  EngineOptions o = small_options(4);
  o.cache.tells_events = true;
  o.cache_events = &sink;
  return o;
}

TEST(CacheEvents, FollowWhatTheEngineComputesAndEvicts) {
  FakeSink sink;
  Harness h(telling(sink));
  h.submit(request(40, 1));
  h.engine.step();
  EXPECT_EQ(sink.lists, 1) << "the first list says that all before is void";
  const int turns = [&] {
    int n = 1;
    while (h.engine.step()) ++n;
    return n;
  }();
  const std::vector<Token> prompt = request(40, 1).prompt;
  const BlockHash first = block_hash(root_hash("", ""), std::span(prompt).first(16));
  const BlockHash second = block_hash(first, std::span(prompt).subspan(16, 16));
  ASSERT_EQ(sink.known.size(), 2u);
  EXPECT_EQ(sink.known[first.words[0]], std::vector<Token>(prompt.begin(), prompt.begin() + 16));
  EXPECT_EQ(sink.known[second.words[0]], std::vector<Token>(prompt.begin() + 16, prompt.begin() + 32));
  EXPECT_LE(sink.lists, turns) << "at most one for each turn";

  // It takes all four blocks, and fills three.
  h.submit(request(50, 1, 1000));
  h.finish();
  EXPECT_EQ(sink.known.size(), 3u);
  EXPECT_FALSE(sink.known.contains(first.words[0]));

  // A sink that has lost something hears all of it in the next turn.
  const auto before = std::exchange(sink.known, {});
  sink.lose_everything();
  h.submit(request(5, 1, 1000));
  h.finish();
  EXPECT_EQ(sink.known, before);
}

}  // namespace
}  // namespace kvasir::test
