// A link, and an executor of one line per row, over real bytes: what the map and the committer arrange is
// carried out in any order that the contract allows, and every slot that a row reads is looked at.
//
// A slot is 8 bytes, of one token in one plane of one layer: kv_plane_bytes_per_token_layer is 8.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cache/kv_cache.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir::test {

// Used by one thread. Transfers are read and written as late or as early as chance will have it.
class ByteWorld final : public Link {
 public:
  ByteWorld(const CacheOptions& options, uint64_t seed) : geometry_(options.geometry), random_(seed) {
    memory_[0].resize((options.device_bytes + options.stage_bytes) / kSlot, kSpoilt);
    memory_[1].resize(options.host_bytes / kSlot, kSpoilt);
  }

  // What a row of a sequence writes at a position.
  using SlotOf = std::function<uint64_t(SeqId, uint32_t position, uint32_t layer, uint32_t plane)>;

  double failures = 0;    // the share of transfers that fail
  double impatience = 0;  // the share of waits that end too early

  // ---- Link.
  void start(Transfer transfer) override {
    for (TransferId id : transfer.after) EXPECT_TRUE(known_.contains(id)) << "waits for one not started";
    for (TransferId id : transfer.needs) EXPECT_TRUE(known_.contains(id)) << "needs one not started";
    EXPECT_TRUE(known_.insert(transfer.id).second) << "started twice";
    live_[transfer.id].transfer = std::move(transfer);
  }
  void cancel(TransferId id) override {
    auto it = live_.find(id);
    if (it != live_.end() && !it->second.moving) end(it, /*ok=*/false);
  }
  TransferState wait(TransferId id, Nanos) override { return run_to_end(id); }
  std::vector<TransferDone> completed() override { return std::exchange(done_, {}); }
  void set_wake(std::function<void()>) override {}
  LinkStats stats() const override { return {}; }

  size_t under_way() const { return live_.size(); }
  const Transfer& transfer(TransferId id) const { return live_.at(id).transfer; }

  // Takes one transfer, any whose turn it may be, a stage further. False: there is none.
  bool progress() {
    std::vector<TransferId> ready;
    for (const auto& [id, t] : live_) {
      if (may_begin(t.transfer)) ready.push_back(id);
    }
    if (ready.empty()) return false;
    advance(live_.find(ready[random_.below(ready.size())]));
    return true;
  }

  // ---- The executor.
  struct Outcome {
    StepResult result;
    std::set<SeqId> misread;  // sequences whose rows read something that is not their history
  };

  // What rows will write holds nothing from now on.
  void submitted(const Step& step) {
    for_each_row(step, [&](const StepSlice& slice, uint32_t position, uint32_t layer) {
      const uint32_t block = position / geometry_.block_tokens;
      const KvPlanes at = step.planes(geometry_, slice, block, layer);
      const KvPlanes frame = (*slice.table)[block * step.groups + geometry_.group_of(layer)];
      if (!frame.present() || at.k < frame.k || at.k >= frame.k + geometry_.frame_bytes(FrameClass::kKvPlane))
        return;
      for (uint32_t plane = 0; plane < 2; ++plane) slot(at, position, plane) = kSpoilt;
    });
  }

  // `deferred`: sequences whose rows follow on rows that were deferred.
  Outcome execute(const Step& step, const SlotOf& slot_of, std::set<SeqId> deferred = {}) {
    Outcome out;
    out.result.id = step.id;
    auto firing = step.firings.begin();
    StepMoment last = kStepBegins;
    const auto fire = [&](StepMoment moment) {
      EXPECT_TRUE(firing == step.firings.end() || firing->moment >= last) << "not in order";
      for (; firing != step.firings.end() && firing->moment <= moment; ++firing) start(firing->transfer);
      last = moment;
      for (uint64_t n = random_.below(3); n > 0; --n) progress();
    };
    fire(kStepBegins);
    auto wait_at = step.waits.begin();
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (; wait_at != step.waits.end() && wait_at->layer == layer; ++wait_at) {
        const SeqId seq = step.slices[wait_at->slice].seq;
        if (deferred.contains(seq)) continue;
        const bool late = live_.contains(wait_at->transfer) && random_.unit() < impatience;
        if (late || run_to_end(wait_at->transfer) != TransferState::kDone) deferred.insert(seq);
      }
      for (const StepSlice& slice : step.slices) {
        if (!deferred.contains(slice.seq)) write_rows(step, slice, layer, slot_of);
      }
      fire(layer_written(layer));
      for (const StepSlice& slice : step.slices) {
        if (!deferred.contains(slice.seq) && !read_history(step, slice, layer, slot_of)) {
          out.misread.insert(slice.seq);
        }
      }
      fire(layer_attended(layer));
    }
    EXPECT_TRUE(firing == step.firings.end() && wait_at == step.waits.end());
    for (const StepSlice& slice : step.slices) {
      if (deferred.contains(slice.seq)) out.result.deferred.push_back(slice.seq);
    }
    return out;
  }

 private:
  static constexpr uint64_t kSlot = 8;
  static constexpr uint64_t kSpoilt = 0xEEEE'EEEE'EEEE'EEEE;
  struct Live {
    Transfer transfer;
    bool moving = false;
    std::vector<uint64_t> bytes;  // as they were when it began
  };
  using LiveIt = std::map<TransferId, Live>::iterator;

  uint64_t& word(const MemoryAddress& at, uint64_t i) {
    return memory_[static_cast<size_t>(at.tier)].at(at.offset / kSlot + i);
  }
  uint64_t& slot(const KvPlanes& at, uint32_t position, uint32_t plane) {
    return word({plane == 0 ? at.k : at.v, Tier::kDevice}, position % geometry_.block_tokens);
  }

  bool may_begin(const Transfer& t) const {
    const auto lives = [&](TransferId id) { return live_.contains(id); };
    return std::none_of(t.after.begin(), t.after.end(), lives) &&
           std::none_of(t.needs.begin(), t.needs.end(), lives);
  }

  void advance(LiveIt it) {
    Live& live = it->second;
    if (live.moving) return end(it, random_.unit() >= failures);
    live.moving = true;
    for (const Segment& s : live.transfer.segments) {
      for (uint64_t i = 0; i < s.bytes / kSlot; ++i) {
        live.bytes.push_back(word(s.from, i));
        word(s.to, i) = kSpoilt;
      }
    }
  }

  void end(LiveIt it, bool ok) {
    Live& live = it->second;
    ok = ok && std::none_of(live.transfer.needs.begin(), live.transfer.needs.end(),
                            [&](TransferId id) { return failed_.contains(id); });
    if (ok) {
      size_t next = 0;
      for (const Segment& s : live.transfer.segments) {
        for (uint64_t i = 0; i < s.bytes / kSlot; ++i) word(s.to, i) = live.bytes[next++];
      }
    } else {
      failed_.insert(live.transfer.id);
    }
    done_.push_back(
        {live.transfer.id, ok ? Status() : error(ErrorCode::kUnavailable, "the link failed"), 0, 0});
    live_.erase(it);
  }

  TransferState run_to_end(TransferId id) {
    auto it = live_.find(id);
    if (it == live_.end()) return failed_.contains(id) ? TransferState::kFailed : TransferState::kDone;
    const Transfer transfer = it->second.transfer;
    for (TransferId before : transfer.after) run_to_end(before);
    for (TransferId before : transfer.needs) run_to_end(before);
    if (!it->second.moving) advance(it);
    advance(it);
    return run_to_end(id);
  }

  template <typename F>
  void for_each_row(const Step& step, F&& f) {
    for (const StepSlice& slice : step.slices) {
      for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
        for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) f(slice, p, layer);
      }
    }
  }

  void write_rows(const Step& step, const StepSlice& slice, uint32_t layer, const SlotOf& slot_of) {
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
      const KvPlanes at = step.planes(geometry_, slice, p / geometry_.block_tokens, layer);
      for (uint32_t plane = 0; plane < 2; ++plane) slot(at, p, plane) = slot_of(slice.seq, p, layer, plane);
    }
  }

  bool read_history(const Step& step, const StepSlice& slice, uint32_t layer, const SlotOf& slot_of) {
    for (uint32_t p = 0; p < slice.tokens.end; ++p) {
      const KvPlanes at = step.planes(geometry_, slice, p / geometry_.block_tokens, layer);
      for (uint32_t plane = 0; plane < 2; ++plane) {
        if (slot(at, p, plane) != slot_of(slice.seq, p, layer, plane)) return false;
      }
    }
    return true;
  }

  const CacheGeometry geometry_;
  Random random_;
  std::array<std::vector<uint64_t>, 2> memory_;
  std::map<TransferId, Live> live_;
  std::set<TransferId> known_;
  std::set<TransferId> failed_;
  std::vector<TransferDone> done_;
};

}  // namespace kvasir::test
