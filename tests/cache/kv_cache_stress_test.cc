// The map of copies under random use, against a model made of token lists.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cache/kv_cache.h"

namespace kvasir {
namespace {

constexpr uint32_t kBlock = 16;

struct ModelSeq {
  std::vector<Token> tokens;
  std::string salt;
  uint32_t ready = 0;
  bool runs = false;
  uint32_t drops = 0;
};

struct ModelStep {
  uint64_t id;
  std::vector<std::pair<uint64_t, uint32_t>> parts;  // sequence and its drops when the step was submitted
  std::vector<uint32_t> ends;
};

// Drives a cache and knows what it must say. Without pressure (no eviction ever) the model is exact; under
// pressure it is a bound: nothing is found that was never published.
class Stress {
 public:
  Stress(uint64_t seed, uint32_t blocks, bool exact)
      : random_(seed), exact_(exact), cache_(options(blocks)) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operate();
      ASSERT_EQ(cache_.check_integrity().message(), "") << "operation " << i;
      ASSERT_NO_FATAL_FAILURE(compare());
    }
    while (!steps_.empty()) end_step(true);
    while (!seqs_.empty()) remove(seqs_.begin()->first);
    ASSERT_EQ(cache_.check_integrity().message(), "");
    EXPECT_EQ(cache_.used_blocks(), 0u);
    EXPECT_EQ(cache_.device_budget().promised[0], 0u);
    EXPECT_EQ(cache_.device_budget().pinned[0], 0u);
  }

 private:
  using Prefix = std::pair<std::string, std::vector<Token>>;

  static CacheOptions options(uint32_t blocks) {
    CacheOptions o;
    o.geometry = {kBlock, 3, 1, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * blocks;
    return o;
  }

  int64_t available() const {
    return cache_.device_budget().available(FrameClass::kKvPlane) / cache_.geometry().kv_frames_per_block();
  }

  void operate() {
    const double r = random_.unit();
    if (seqs_.empty() || (r < 0.15 && seqs_.size() < 12)) return add();
    auto it = std::next(seqs_.begin(), static_cast<ptrdiff_t>(random_.below(seqs_.size())));
    if (r < 0.3) return start(it->first);
    if (r < 0.55 && steps_.size() < 2) return submit_step();
    if (r < 0.75 && !steps_.empty()) return end_step(random_.unit() < 0.9);
    if (r < 0.85) return drop(it->first);
    if (r < 0.9) return remove(it->first);
    cache_.append_token(SeqId{it->first}, 3);
    it->second.tokens.push_back(3);
  }

  void add() {
    ModelSeq seq;
    const uint64_t family = random_.below(3);
    const uint64_t shared = random_.below(70), rest = random_.between(1, 40);
    for (uint64_t i = 0; i < shared; ++i)
      seq.tokens.push_back(static_cast<Token>(random_bits(family, 0, i) % 5));
    for (uint64_t i = 0; i < rest; ++i) seq.tokens.push_back(static_cast<Token>(random_.below(2)));
    if (random_.unit() < 0.2) seq.salt = "s";
    cache_.add_sequence(SeqId{next_}, seq.tokens, seq.salt);
    seqs_[next_++] = seq;
  }

  // Adopts what is cached and is promised the rest, as an admission does.
  void start(uint64_t id) {
    ModelSeq& seq = seqs_[id];
    if (seq.runs) return;
    const auto s = cache_.summary(SeqId{id});
    const uint32_t cached = s.cached_tokens / kBlock;
    const uint32_t blocks = cache_.geometry().blocks_for(static_cast<uint32_t>(seq.tokens.size())) - cached;
    if (int64_t{blocks} + s.cached_idle_blocks > available()) return;
    if (cached > 0) cache_.adopt(SeqId{id}, cached * kBlock);
    cache_.promise(SeqId{id}, blocks);
    seq.runs = true;
    seq.ready = cached * kBlock;
  }

  void submit_step() {
    ModelStep step;
    step.id = next_step_;
    std::vector<StepSlice> slices;
    for (auto& [id, seq] : seqs_) {
      const auto size = static_cast<uint32_t>(seq.tokens.size());
      if (!seq.runs || seq.ready >= size || random_.unit() < 0.4) continue;
      uint32_t end = seq.ready + static_cast<uint32_t>(random_.between(1, size - seq.ready));
      const auto s = cache_.summary(SeqId{id});
      const int64_t room =
          (int64_t{s.device_blocks} + s.promised_blocks + std::max<int64_t>(0, available())) * kBlock;
      end = static_cast<uint32_t>(std::min<int64_t>(end, room));
      if (end <= seq.ready) continue;
      StepSlice slice;
      slice.seq = SeqId{id};
      slice.tokens = {seq.ready, end};
      cache_.extend(SeqId{id}, end);
      slices.push_back(slice);
      step.parts.push_back({id, seq.drops});
      step.ends.push_back(end);
      seq.ready = end;
    }
    if (slices.empty()) return;
    cache_.step_submitted(StepId{next_step_++}, slices);
    steps_.push_back(std::move(step));
  }

  void end_step(bool ok) {
    const ModelStep step = steps_.front();
    steps_.pop_front();
    cache_.step_ended(StepId{step.id}, ok);
    for (size_t i = 0; i < step.parts.size(); ++i) {
      auto it = seqs_.find(step.parts[i].first);
      if (it == seqs_.end() || it->second.drops != step.parts[i].second) continue;
      if (!ok) {
        // As the engine does: what the step should have written cannot be used.
        remove(it->first);
        continue;
      }
      const ModelSeq& seq = it->second;
      for (uint32_t end = kBlock; end <= step.ends[i]; end += kBlock) {
        published_.insert({seq.salt, {seq.tokens.begin(), seq.tokens.begin() + end}});
      }
    }
  }

  void drop(uint64_t id) {
    ModelSeq& seq = seqs_[id];
    cache_.drop_all(SeqId{id});
    seq.ready = 0;
    seq.runs = false;
    ++seq.drops;
    // The watch begins anew, over the tokens of now.
    watched_[id] = static_cast<uint32_t>(seq.tokens.size());
  }

  void remove(uint64_t id) {
    cache_.remove_sequence(SeqId{id});
    seqs_.erase(id);
    watched_.erase(id);
  }

  uint32_t naive_cached(uint64_t id, const ModelSeq& seq) {
    const auto length = watched_.try_emplace(id, static_cast<uint32_t>(seq.tokens.size())).first->second;
    uint32_t end = 0;
    while (end + kBlock < length &&
           published_.contains({seq.salt, {seq.tokens.begin(), seq.tokens.begin() + end + kBlock}})) {
      end += kBlock;
    }
    return end;
  }

  void compare() {
    std::set<uint64_t> frames;
    for (const auto& [id, seq] : seqs_) {
      const auto s = cache_.summary(SeqId{id});
      ASSERT_EQ(s.ready_tokens, seq.ready);
      if (seq.runs) {
        ASSERT_EQ(s.cached_tokens, seq.ready == 0 && s.device_blocks == 0 ? s.cached_tokens : 0u);
      } else if (exact_) {
        ASSERT_EQ(s.cached_tokens, naive_cached(id, seq)) << id;
      } else {
        ASSERT_LE(s.cached_tokens, naive_cached(id, seq)) << id;
      }
      std::vector<KvFrames> out;
      cache_.append_frames(SeqId{id}, s.device_blocks, out);
      for (const KvFrames& f : out) frames.insert(f.k.offset);
    }
    if (!steps_.empty()) return;
    ASSERT_EQ(frames.size(), size_t{cache_.used_blocks()} * cache_.geometry().groups());
  }

  Random random_;
  const bool exact_;
  KvCache cache_;
  std::map<uint64_t, ModelSeq> seqs_;
  std::map<uint64_t, uint32_t> watched_;  // tokens that a waiting sequence had when its watch began
  std::set<Prefix> published_;            // ever
  std::deque<ModelStep> steps_;
  uint64_t next_ = 1;
  uint64_t next_step_ = 1;
};

TEST(KvCacheStress, WithoutPressureItFindsExactlyWhatWasPublished) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Stress stress(seed, 250, true);
    ASSERT_NO_FATAL_FAILURE(stress.run(300));
  }
}

TEST(KvCacheStress, UnderPressureItLosesNothingAndInventsNothing) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Stress stress(seed, 9 + static_cast<uint32_t>(seed), false);
    ASSERT_NO_FATAL_FAILURE(stress.run(2500));
  }
}

}  // namespace
}  // namespace kvasir
