// What others are told of blocks that can be reused, one rule at a time. kv_cache_stress_test.cc compares it
// with what can be found, at random.
#include "cache/blocks/block_events.h"

#include <gmock/gmock.h>

#include "cache/event_reader.h"
#include "cache/forms_fixture.h"

namespace kvasir::test {
namespace {

using Kind = CacheEvent::Kind;
using testing::AnyOf;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr BlockId kOne{1}, kTwo{2}, kThree{3}, kFour{4};

BlockHash hash_of(uint64_t low) {
  return {{low, ~low}};
}
CacheEvent stored(uint64_t hash, std::optional<uint64_t> parent, Tier tier, std::vector<Token> tokens) {
  return {Kind::kStored, tier, hash, parent, std::move(tokens)};
}
CacheEvent removed(uint64_t hash, Tier tier) {
  return {Kind::kRemoved, tier, hash, {}, {}};
}

TEST(BlockEvents, TellsABlockThatIsFoundMovesAndIsFoundNoMore) {
  BlockEvents events;
  const BlockHash hash = hash_of(8);
  events.describe(kOne, hash, 0, nullptr, std::vector<Token>{1, 2});
  EXPECT_THAT(events.take(), IsEmpty()) << "it cannot be found yet";
  events.found(kOne, Tier::kDevice);
  EXPECT_THAT(events.take(), ElementsAre(stored(8, {}, Tier::kDevice, {1, 2})));
  events.found(kOne, Tier::kDevice);
  EXPECT_THAT(events.take(), IsEmpty());
  events.found(kOne, Tier::kHost);
  EXPECT_THAT(events.take(), ElementsAre(removed(8, Tier::kDevice), stored(8, {}, Tier::kHost, {1, 2})))
      << "a reader that ignores tiers still knows it";
  events.found(kOne, std::nullopt);
  EXPECT_THAT(events.take(), ElementsAre(removed(8, Tier::kHost)));
  // The number of the block is used again.
  events.describe(kOne, hash_of(9), 0, nullptr, std::vector<Token>{3});
  events.found(kOne, Tier::kDisk);
  EXPECT_THAT(events.take(), ElementsAre(stored(9, {}, Tier::kDisk, {3})));
}

TEST(BlockEvents, TellsABlockOnlyWithThoseBeforeIt) {
  BlockEvents events;
  const BlockHash first = hash_of(1), second = hash_of(2);
  events.describe(kOne, first, 0, nullptr, std::vector<Token>{1});
  events.describe(kTwo, second, 1, &first, std::vector<Token>{2});
  events.describe(kThree, hash_of(3), 2, &second, std::vector<Token>{3});
  events.describe(kFour, hash_of(4), 2, &second, std::vector<Token>{4});
  for (BlockId id : {kThree, kTwo, kFour}) events.found(id, Tier::kHost);
  EXPECT_THAT(events.take(), IsEmpty()) << "no request would come so far";
  EXPECT_THAT(events.everything(), ElementsAre(CacheEvent{}));
  events.found(kOne, Tier::kDevice);
  const auto one = stored(1, {}, Tier::kDevice, {1}), two = stored(2, 1, Tier::kHost, {2}),
             three = stored(3, 2, Tier::kHost, {3}), four = stored(4, 2, Tier::kHost, {4});
  EXPECT_THAT(events.take(), AnyOf(ElementsAre(one, two, three, four), ElementsAre(one, two, four, three)));
  events.found(kFour, std::nullopt);
  EXPECT_THAT(events.take(), ElementsAre(removed(4, Tier::kHost)));
  events.found(kTwo, std::nullopt);
  EXPECT_THAT(events.take(), ElementsAre(removed(3, Tier::kHost), removed(2, Tier::kHost)));
  events.found(kTwo, Tier::kDevice);
  EXPECT_THAT(events.take(), ElementsAre(stored(2, 1, Tier::kDevice, {2}), three));
}

TEST(BlockEvents, TellsOfABlockThatTakesAnothersPlaceAndNotOfThoseBehindIt) {
  BlockEvents events;
  const BlockHash first = hash_of(1), second = hash_of(2);
  events.describe(kOne, first, 0, nullptr, std::vector<Token>{1});
  events.describe(kTwo, second, 1, &first, std::vector<Token>{2});
  events.describe(kThree, hash_of(3), 2, &second, std::vector<Token>{3});
  for (BlockId id : {kOne, kTwo, kThree}) events.found(id, Tier::kHost);
  events.take();
  events.describe(kFour, first, 0, nullptr, std::vector<Token>{1});
  events.replaced(kOne, kFour, Tier::kDevice);
  EXPECT_THAT(events.take(), ElementsAre(removed(1, Tier::kHost), stored(1, {}, Tier::kDevice, {1})));
  events.describe(kOne, second, 1, &first, std::vector<Token>{2});
  events.replaced(kTwo, kOne, Tier::kDevice);
  EXPECT_THAT(events.take(), ElementsAre(removed(2, Tier::kHost), stored(2, 1, Tier::kDevice, {2})));
  events.found(kFour, std::nullopt);
  EXPECT_THAT(events.take(),
              ElementsAre(removed(3, Tier::kHost), removed(2, Tier::kDevice), removed(1, Tier::kDevice)));
  // What was not described is told when it is replaced by what is.
  events.found(kTwo, Tier::kHost);
  events.found(kTwo, std::nullopt);
  events.conceal(kTwo);
  events.found(kTwo, Tier::kDisk);
  events.take();
  events.describe(kFour, hash_of(7), 0, nullptr, std::vector<Token>{7});
  events.replaced(kTwo, kFour, Tier::kHost);
  EXPECT_THAT(events.take(), ElementsAre(stored(7, {}, Tier::kHost, {7})));
}

TEST(BlockEvents, IsSilentAboutWhatIsNotDescribed) {
  BlockEvents events;
  events.found(kTwo, Tier::kDisk);
  EXPECT_THAT(events.everything(), ElementsAre(CacheEvent{})) << "cleared, and nothing behind it";
  events.describe(kTwo, hash_of(5), 0, nullptr, std::vector<Token>{4});
  EXPECT_THAT(events.take(), ElementsAre(stored(5, {}, Tier::kDisk, {4})));
  events.found(kTwo, std::nullopt);
  events.take();
  events.conceal(kTwo);
  events.found(kTwo, Tier::kDevice);
  events.found(kTwo, std::nullopt);
  EXPECT_THAT(events.take(), IsEmpty());
}

TEST(BlockEvents, NamesEverythingEachBehindItsParent) {
  BlockEvents events;
  const BlockHash first = hash_of(1);
  events.describe(kOne, hash_of(2), 1, &first, std::vector<Token>{2});
  events.describe(kTwo, first, 0, nullptr, std::vector<Token>{1});
  events.describe(kThree, hash_of(3), 0, nullptr, std::vector<Token>{3});
  events.found(kTwo, Tier::kDevice);
  events.found(kOne, Tier::kHost);
  EXPECT_THAT(events.everything(),
              ElementsAre(CacheEvent{}, stored(1, {}, Tier::kDevice, {1}), stored(2, 1, Tier::kHost, {2})));
}

class ToldTest : public FormsTest {
 protected:
  static CacheOptions telling() {
    CacheOptions o = options();
    o.tells_events = true;
    return o;
  }
  void compute(KvCache& cache, SeqId seq, const char* salt, Token first) {
    cache.add_sequence(seq, tokens(40, first), salt);
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {0, 40};
    cache.extend(seq, 40, {all(), {}}, StepId{++step_});
    cache.step_submitted(StepId{step_}, {&slice, 1});
    cache.step_ended(StepId{step_}, true, {});
  }
};

TEST_F(ToldTest, BlocksWithASaltAreNotTold) {
  KvCache cache(telling());
  EventReader reader(cache);
  reader.note_prompt(tokens(40));
  compute(cache, kA, "secret", 0);
  EXPECT_THAT(cache.take_events(), IsEmpty());
  compute(cache, kB, "", 0);
  reader.read(cache.take_events());
  EXPECT_EQ(reader.known().size(), 2u);
  EXPECT_EQ(reader.known(), reader.findable());
  // Nor when they are adopted, or when everything is told.
  cache.add_sequence(kC, tokens(40), "secret");
  cache.adopt(kC, 32);
  EXPECT_THAT(cache.take_events(), IsEmpty());
  EXPECT_EQ(cache.take_all_events().size(), 3u);
}

TEST_F(ToldTest, WhatCameFromTheDiskIsToldOnceItsTokensAreKnown) {
  computed(kA, 40, {all(), {}});
  cache_.remove_sequence(kA);
  for (int blocks = 0; blocks < 2; ++blocks) finish(save_idle());

  KvCache adopted(telling());
  ASSERT_EQ(adopted.restore(cache_.saved_cells()), 2u);
  EXPECT_THAT(adopted.take_events(), IsEmpty());
  adopted.add_sequence(kB, tokens(40), "");
  adopted.adopt(kB, 32);
  EventReader reader(adopted);
  reader.note_prompt(tokens(40));
  reader.read(adopted.take_events());
  EXPECT_EQ(reader.known().size(), 2u);
  EXPECT_EQ(reader.known(), reader.findable());
  EXPECT_EQ(reader.known().begin()->second, Tier::kDisk);

  // One that computes the same instead of adopting it knows the tokens, too.
  KvCache computing(telling());
  ASSERT_EQ(computing.restore(cache_.saved_cells()), 2u);
  compute(computing, kB, "", 0);
  EventReader other(computing);
  other.note_prompt(tokens(40));
  other.read(computing.take_events());
  EXPECT_EQ(other.known().size(), 2u);
  EXPECT_EQ(other.known(), other.findable());
}

}  // namespace
}  // namespace kvasir::test
