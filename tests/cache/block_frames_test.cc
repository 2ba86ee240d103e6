// Frames of a block against a plain table, for any order in which groups come, go and change.
#include "cache/blocks/block_frames.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace kvasir {
namespace {

constexpr uint32_t kGroups = 6;

class BlockFramesTest : public testing::Test {
 protected:
  void set(uint32_t group, uint64_t at, uint32_t tokens) {
    frames_.set(group, {at, tokens});
    expected_[group] = {at, tokens};
    present_.add(group);
    expect_equal();
  }
  void set_tokens(const LayerSet& groups, uint32_t tokens) {
    frames_.set_tokens(groups, present_, tokens);
    groups.for_each([&](uint32_t g) { expected_[g].tokens = tokens; });
    expect_equal();
  }
  void clear() {
    frames_.clear();
    expected_.clear();
    present_ = {};
  }
  void expect_equal() const {
    for (const auto& [group, frame] : expected_) {
      ASSERT_EQ(frames_[group].at, frame.at) << "group " << group;
      ASSERT_EQ(frames_[group].tokens, frame.tokens) << "group " << group;
    }
  }

  BlockFrames frames_;
  std::map<uint32_t, BlockFrames::Frame> expected_;
  LayerSet present_;
};

TEST_F(BlockFramesTest, EqualDistancesUpAndDown) {
  for (uint32_t g = 0; g < kGroups; ++g) set(g, 1000 + 64 * g, 16);
  set_tokens(LayerSet::all(kGroups), 20);
  clear();
  for (uint32_t g = 0; g < kGroups; ++g) set(g, 1000 - 64 * g, 16);
}

TEST_F(BlockFramesTest, ARunThatIsLeft) {
  set(0, 100, 16);
  set(1, 200, 7);  // other tokens
  clear();
  set(3, 500, 16);  // not from the first group on
  set(0, 100, 16);
  clear();
  for (uint32_t g = 0; g < 4; ++g) set(g, 100 * g, 16);
  set(0, 900, 16);  // freed and taken again elsewhere
  set_tokens(LayerSet::one(2), 3);
}

TEST_F(BlockFramesTest, AnyOrderEqualsATable) {
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    clear();
    for (int change = 0; change < 12; ++change) {
      const auto group = static_cast<uint32_t>(random.below(kGroups));
      if (random.below(4) == 0 && !present_.empty()) {
        LayerSet some;
        present_.for_each([&](uint32_t g) {
          if (random.below(2) == 0) some.add(g);
        });
        set_tokens(random.below(2) == 0 ? present_ : some, static_cast<uint32_t>(random.below(3)));
      } else {
        const bool in_row = random.below(3) > 0;
        const uint32_t next = in_row ? present_.count() % kGroups : group;
        set(next, in_row ? 64 * next : 64 * random.below(40),
            static_cast<uint32_t>(in_row ? 1 : random.below(3)));
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
