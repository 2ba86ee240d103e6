// A link, and an executor of one line per row, over real bytes: what the map and the committer arrange is
// carried out in any order that the contract allows, and every slot that a row reads is looked at.
//
// A slot is 8 bytes, of one token: in one plane of one layer, or in X of one layer. So
// kv_plane_bytes_per_token_layer is 8, and that of X is 8 or 0.
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
#include "cache/sequences/kv_cache.h"
#include "contract/link.h"
#include "contract/step.h"

namespace kvasir::test {

// Used by one thread. Transfers are read and written as late or as early as chance will have it.
class ByteWorld final : public Link {
 public:
  ByteWorld(const CacheOptions& options, uint64_t seed) : geometry_(options.geometry), random_(seed) {
    memory_[0].resize((options.device_bytes + options.stage_bytes) / kSlot, kSpoilt);
    memory_[1].resize(options.host_bytes / kSlot, kSpoilt);
    memory_[2].resize(options.disk_bytes / kSlot, kSpoilt);
  }

  // What a row of a sequence writes at a position: K and V are planes 0 and 1, X is 2.
  static constexpr uint32_t kPlaneX = 2;
  using SlotOf = std::function<uint64_t(SeqId, uint32_t position, uint32_t layer, uint32_t plane)>;

  double failures = 0;    // the share of transfers that fail
  double impatience = 0;  // the share of waits that end too early
  double corrupt = 0;     // of the transfers that read the disk, those that find nothing there

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
      if (!frame.present() || at.k < frame.k || at.k >= frame.k + geometry_.cell_bytes(Form::kKv)) return;
      for (uint32_t plane = 0; plane < 2; ++plane) slot(at, position, plane) = kSpoilt;
    });
    for (const XWrite& w : step.x_writes) {
      for_each_slot(step, w, [&](uint64_t& to, uint32_t, uint32_t) { to = kSpoilt; });
    }
  }

  // `deferred`: sequences whose rows follow on rows that were deferred.
  Outcome execute(const Step& step, const SlotOf& slot_of, std::set<SeqId> deferred = {}) {
    Outcome out;
    out.result.id = step.id;
    auto transfer = step.transfers.begin();
    StepPoint last = kStepBegins;
    const auto fire = [&](StepPoint point) {
      EXPECT_TRUE(transfer == step.transfers.end() || transfer->start_at >= last) << "not in order";
      for (; transfer != step.transfers.end() && transfer->start_at <= point; ++transfer)
        start(transfer->transfer);
      last = point;
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
        if (deferred.contains(slice.seq) || !passes(slice, layer)) continue;
        write_rows(step, slice, layer, slot_of);
      }
      for (const KvProjection& p : step.projections) {
        const SeqId seq = step.slices[p.slice].seq;
        if (p.layer == layer && !deferred.contains(seq) && !project(p, seq, slot_of)) out.misread.insert(seq);
      }
      fire(layer_written(layer));
      for (const StepSlice& slice : step.slices) {
        // Those that end early have written, and read no more.
        if (deferred.contains(slice.seq) || !passes(slice, layer) || ends_early(slice, layer)) continue;
        if (!read_history(step, slice, layer, slot_of)) out.misread.insert(slice.seq);
      }
      fire(layer_attended(layer));
    }
    EXPECT_TRUE(transfer == step.transfers.end() && wait_at == step.waits.end());
    for (const StepSlice& slice : step.slices) {
      const auto& told = out.result.deferred;
      if (deferred.contains(slice.seq) && std::find(told.begin(), told.end(), slice.seq) == told.end())
        out.result.deferred.push_back(slice.seq);
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
    if (live.moving) {
      const auto& segments = live.transfer.segments;
      const bool reads_disk = std::any_of(segments.begin(), segments.end(),
                                          [](const Segment& s) { return s.from.tier == Tier::kDisk; });
      if (reads_disk && random_.unit() < corrupt) {
        return end(it, /*ok=*/false, error(ErrorCode::kCorrupt, "the disk holds something else"));
      }
      return end(it, random_.unit() >= failures);
    }
    live.moving = true;
    for (const Segment& s : live.transfer.segments) {
      for (uint64_t i = 0; i < s.bytes / kSlot; ++i) {
        live.bytes.push_back(word(s.from, i));
        word(s.to, i) = kSpoilt;
      }
    }
  }

  void end(LiveIt it, bool ok, Status failure = error(ErrorCode::kUnavailable, "the link failed")) {
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
    done_.push_back({live.transfer.id, ok ? Status() : std::move(failure), 0, 0});
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
        if (!passes(slice, layer)) continue;
        for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) f(slice, p, layer);
      }
    }
  }

  bool passes(const StepSlice& slice, uint32_t layer) const {
    return layer < std::min(slice.end_layer, geometry_.layers);
  }
  // A slice that recomputes dropped cells is done when it has written its last layer.
  bool ends_early(const StepSlice& slice, uint32_t layer) const {
    return layer + 1 == slice.end_layer && slice.end_layer < geometry_.layers;
  }

  // f(slot, position, layer) for the X that a write leaves behind.
  template <typename F>
  void for_each_slot(const Step& step, const XWrite& w, F&& f) {
    const Interval rows = step.slices[w.slice].tokens;
    const uint32_t b = geometry_.block_tokens;
    const uint32_t first = w.group * geometry_.layers_per_group;
    for (uint32_t i = 0; i < geometry_.layers_in(w.group); ++i) {
      const MemoryAddress piece = {w.to + i * geometry_.piece_bytes(Form::kX), Tier::kDevice};
      for (uint32_t p = std::max(rows.begin, w.block * b); p < std::min(rows.end, (w.block + 1) * b); ++p)
        f(word(piece, p % b), p, first + i);
    }
  }

  // K and V of what is X.
  bool project(const KvProjection& p, SeqId seq, const SlotOf& slot_of) {
    for (uint32_t i = 0; i < p.tokens; ++i) {
      const uint32_t position = p.first_position + i;
      if (word({p.x, Tier::kDevice}, i) != slot_of(seq, position, p.layer, kPlaneX)) return false;
      for (uint32_t plane = 0; plane < 2; ++plane)
        slot(p.to, position, plane) = slot_of(seq, position, p.layer, plane);
    }
    return true;
  }

  void write_rows(const Step& step, const StepSlice& slice, uint32_t layer, const SlotOf& slot_of) {
    for (const XWrite& w : step.x_writes) {
      if (&step.slices[w.slice] != &slice) continue;
      for_each_slot(step, w, [&](uint64_t& to, uint32_t p, uint32_t l) {
        if (l == layer) to = slot_of(slice.seq, p, l, kPlaneX);
      });
    }
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
  std::array<std::vector<uint64_t>, kTiers> memory_;
  std::map<TransferId, Live> live_;
  std::set<TransferId> known_;
  std::set<TransferId> failed_;
  std::vector<TransferDone> done_;
};

}  // namespace kvasir::test
