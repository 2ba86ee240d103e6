// The index against a model that looks every chain up again.
#include "cache/blocks/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

BlockHash hash(uint64_t n) {
  return {{n, ~n}};
}

// Of a block of so many cells, all on the device, all idle or none.
Adoptable on_device(bool idle, uint32_t cells = 1) {
  Adoptable what;
  what.cells[index_of(kDeviceKv)] = cells;
  if (idle) what.idle[index_of(kDeviceKv)] = cells;
  return what;
}

TEST(PrefixIndex, FollowsAWatchedChain) {
  PrefixIndex index;
  index.watch(SeqId{1}, {hash(1), hash(2), hash(3)});
  EXPECT_EQ(index.match(SeqId{1}).matched, 0u);
  EXPECT_TRUE(index.publish(hash(2), BlockId{20}, on_device(false)));
  EXPECT_EQ(index.match(SeqId{1}).matched, 0u) << "block 1 is missing";
  EXPECT_TRUE(index.take_changed().empty());
  EXPECT_TRUE(index.publish(hash(1), BlockId{10}, on_device(true)));
  EXPECT_EQ(index.match(SeqId{1}).matched, 2u);
  EXPECT_EQ(index.match(SeqId{1}).what.idle[index_of(kDeviceKv)], 1u);
  EXPECT_EQ(index.take_changed(), std::vector<SeqId>{SeqId{1}});
  EXPECT_FALSE(index.publish(hash(1), BlockId{11}, on_device(false))) << "one block for each hash";
  EXPECT_EQ(index.find(hash(1)), BlockId{10});
  index.update(BlockId{20}, on_device(true));
  EXPECT_EQ(index.match(SeqId{1}).what.idle[index_of(kDeviceKv)], 2u);
  index.unpublish(hash(1));
  EXPECT_EQ(index.match(SeqId{1}).matched, 0u);
  EXPECT_EQ(index.match(SeqId{1}).what.idle[index_of(kDeviceKv)], 0u);
  EXPECT_EQ(index.find(hash(1)), kNoBlock);
  index.unwatch(SeqId{1});
  index.unwatch(SeqId{1});
  EXPECT_EQ(index.match(SeqId{1}).matched, 0u);
  EXPECT_EQ(index.published(), 1u);
}

TEST(PrefixIndex, AnEmptyChainMatchesNothing) {
  PrefixIndex index;
  index.watch(SeqId{1}, {});
  EXPECT_EQ(index.match(SeqId{1}).matched, 0u);
  index.unwatch(SeqId{1});
}

struct IndexModel {
  struct Entry {
    BlockId block;
    Adoptable what;
  };
  struct Match {
    uint32_t matched = 0;
    Adoptable what;
    friend bool operator==(const Match&, const Match&) = default;
  };
  std::map<uint64_t, Entry> published;
  std::map<uint64_t, std::vector<uint64_t>> watched;
  std::map<uint64_t, Match> last;  // the match when it was last told

  Match match(const std::vector<uint64_t>& chain) const {
    Match m;
    for (uint64_t h : chain) {
      auto it = published.find(h);
      if (it == published.end()) break;
      ++m.matched;
      m.what.add(it->second.what, 1);
    }
    return m;
  }
  Match match_on_device(const std::vector<uint64_t>& chain) const {
    Match m;
    for (uint64_t h : chain) {
      auto it = published.find(h);
      if (it == published.end() || it->second.what.slowest() != Tier::kDevice) break;
      ++m.matched;
      m.what.add(it->second.what, 1);
    }
    return m;
  }
};

void compare(PrefixIndex& index, IndexModel& model) {
  std::set<uint64_t> changed;
  for (SeqId s : index.take_changed()) changed.insert(raw(s));
  for (const auto& [seq, chain] : model.watched) {
    const IndexModel::Match want = model.match(chain);
    const PrefixIndex::Match got = index.match(SeqId{seq});
    ASSERT_EQ(got.matched, want.matched) << seq;
    ASSERT_TRUE(got.what == want.what) << seq;
    const PrefixIndex::Match near = index.match_on_device(SeqId{seq});
    ASSERT_EQ(near.matched, model.match_on_device(chain).matched) << seq;
    ASSERT_TRUE(near.what == model.match_on_device(chain).what) << seq;
    auto& last = model.last[seq];
    if (last != want) {
      ASSERT_TRUE(changed.contains(seq)) << seq;
    }
    last = want;
  }
  for (uint64_t seq : changed) ASSERT_TRUE(model.watched.contains(seq)) << seq;
  ASSERT_EQ(index.published(), model.published.size());
}

// Cells at any places, some of them idle.
Adoptable random_copies(Random& random) {
  Adoptable what;
  for (size_t p = 0; p < kPlaces; ++p) {
    what.cells[p] = random.unit() < 0.5 ? 0 : static_cast<uint32_t>(random.below(4));
    what.idle[p] = static_cast<uint32_t>(random.below(what.cells[p] + 1));
  }
  return what;
}

// A chain of the tree in which node n has the children 3n+1 .. 3n+3: prefixes are shared as prompts' are.
std::vector<uint64_t> random_chain(Random& random) {
  std::vector<uint64_t> chain;
  uint64_t node = 0;
  for (uint64_t n = random.below(7); n > 0; --n) {
    node = 3 * node + 1 + (random.unit() < 0.6 ? 0 : random.below(3));
    chain.push_back(node);
  }
  return chain;
}

void change_published(PrefixIndex& index, IndexModel& model, Random& random, uint32_t step) {
  const bool publish = random.unit() < (step / 300 % 2 == 0 ? 0.6 : 0.3);
  if (publish || model.published.empty()) {
    const auto chain = random_chain(random);
    if (chain.empty()) return;
    const uint64_t h = chain[random.below(chain.size())];
    const Adoptable what = random_copies(random);
    const bool fresh = !model.published.contains(h);
    ASSERT_EQ(index.publish(hash(h), BlockId{step}, what), fresh);
    if (fresh) model.published[h] = {BlockId{step}, what};
    ASSERT_EQ(index.find(hash(h)), model.published[h].block);
    return;
  }
  auto it = std::next(model.published.begin(), static_cast<ptrdiff_t>(random.below(model.published.size())));
  const double r = random.unit();
  if (r < 0.15) {
    it->second = {BlockId{step}, random_copies(random)};
    index.replace(hash(it->first), BlockId{step}, it->second.what);
    ASSERT_EQ(index.find(hash(it->first)), BlockId{step});
  } else if (r < 0.5) {
    it->second.what = random_copies(random);
    index.update(it->second.block, it->second.what);
    index.update(it->second.block, it->second.what);
  } else {
    index.unpublish(hash(it->first));
    ASSERT_EQ(index.find(hash(it->first)), kNoBlock);
    model.published.erase(it);
  }
}

TEST(PrefixIndex, AgreesWithTheModelUnderRandomUse) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    PrefixIndex index;
    IndexModel model;
    Random random(seed);
    uint64_t next_seq = 1;
    for (uint32_t step = 0; step < 3000; ++step) {
      const double r = random.unit();
      if (r < 0.2 && model.watched.size() < 30) {
        const auto chain = random_chain(random);
        std::vector<BlockHash> hashes;
        for (uint64_t h : chain) hashes.push_back(hash(h));
        index.watch(SeqId{next_seq}, hashes);
        model.watched[next_seq++] = chain;
      } else if (r < 0.35 && !model.watched.empty()) {
        auto it =
            std::next(model.watched.begin(), static_cast<ptrdiff_t>(random.below(model.watched.size())));
        index.unwatch(SeqId{it->first});
        model.last.erase(it->first);
        model.watched.erase(it);
      } else {
        change_published(index, model, random, step);
      }
      ASSERT_NO_FATAL_FAILURE(compare(index, model));
    }
  }
}

}  // namespace
}  // namespace kvasir
