// What a reader of cache events knows, beside what requests would find.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cache/blocks/block_hash.h"
#include "cache/sequences/kv_cache.h"
#include "contract/cache_events.h"

namespace kvasir::test {

// Fails the test at an event that contradicts those before, or the prompts.
class EventReader {
 public:
  explicit EventReader(const KvCache& cache) : cache_(cache) {}

  // There is, or will be, a sequence with these tokens, and without a salt.
  void note_prompt(const std::vector<Token>& tokens) {
    const uint32_t b = cache_.geometry().block_tokens;
    BlockHash hash = root_hash(cache_.options().numerics_id, "");
    std::optional<uint64_t> parent;
    for (size_t begin = 0; begin + b <= tokens.size(); begin += b) {
      const std::span<const Token> own = std::span(tokens).subspan(begin, b);
      hash = block_hash(hash, own);
      identities_[hash.words[0]] = {parent, {own.begin(), own.end()}};
      parent = hash.words[0];
    }
  }

  void read(const std::vector<CacheEvent>& events) {
    for (const CacheEvent& e : events) {
      switch (e.kind) {
        case CacheEvent::Kind::kCleared:
          known_.clear();
          break;
        case CacheEvent::Kind::kStored: {
          ++stored_;
          EXPECT_TRUE(known_.emplace(e.hash, e.tier).second) << "stored twice";
          EXPECT_TRUE(!e.parent || known_.contains(*e.parent)) << "stored without the block before it";
          const auto it = identities_.find(e.hash);
          ASSERT_TRUE(it != identities_.end()) << "no prompt has it";
          EXPECT_EQ(it->second.parent, e.parent);
          EXPECT_EQ(it->second.tokens, e.tokens);
          break;
        }
        case CacheEvent::Kind::kRemoved: {
          ++removed_;
          const auto it = known_.find(e.hash);
          ASSERT_TRUE(it != known_.end()) << "removed, but not stored";
          EXPECT_EQ(it->second, e.tier);
          known_.erase(it);
        }
      }
    }
  }

  // What requests with these prompts would find, and the slowest tier of each block, counted anew.
  std::map<uint64_t, Tier> findable() const {
    std::map<uint64_t, Tier> published;
    for (const BlockMap::Block& block : cache_.map().blocks()) {
      if (!block.used || !block.published) continue;
      Tier slowest = Tier::kDevice;
      cache_.map().all_groups().for_each([&](uint32_t g) {
        for (const Place& place : kCheapestFirst) {
          if (!block.at(place).usable().contains(g)) continue;
          slowest = std::max(slowest, place.tier);
          break;
        }
      });
      published.emplace(block.hash.words[0], slowest);
    }
    std::map<uint64_t, Tier> out;
    for (const auto& [hash, tier] : published) {
      std::optional<uint64_t> at = hash;
      while (at && published.contains(*at) && identities_.contains(*at)) at = identities_.at(*at).parent;
      if (!at) out.emplace(hash, tier);
    }
    return out;
  }

  const std::map<uint64_t, Tier>& known() const { return known_; }
  uint64_t stored() const { return stored_; }
  uint64_t removed() const { return removed_; }

 private:
  struct Identity {
    std::optional<uint64_t> parent;
    std::vector<Token> tokens;
  };

  const KvCache& cache_;
  std::map<uint64_t, Tier> known_;
  std::map<uint64_t, Identity> identities_;  // of all blocks of prompts
  uint64_t stored_ = 0;
  uint64_t removed_ = 0;
};

}  // namespace kvasir::test
