// Hand-made steps on the CPU executor over a tiny model, whose history lies in frames on the device, or on
// the host, from where it passes through a ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "fakes/fake_link.h"
#include "model/files/model_file.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

// What of a sequence runs in a step, and where its K and V lie.
struct StagedPart {
  uint32_t seq = 0;
  Interval tokens;
  // Whole blocks before `tokens` that are read from the host, by their index in the sequence.
  std::vector<uint32_t> on_host{};
  // The blocks that the rows write lie in the ring, too, and go to the host layer by layer. One that holds
  // tokens already comes from there.
  bool write_through = false;
};

// By sequence and position.
using StagedLogits = std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>;

class StagedRig {
 public:
  struct Options {
    uint32_t layers_per_group = 1;
    uint32_t ring_layers = 1;
    int threads = 2;
    bool tap_all_rows = true;
  };
  static constexpr uint32_t kSequences = 3;
  static constexpr uint32_t kBlockTokens = 16;
  static constexpr uint32_t kBlocks = 20;  // of each sequence
  static constexpr uint32_t kTokens = kBlocks * kBlockTokens;

  explicit StagedRig(const Options& options);

  Token token(uint32_t seq, uint32_t position) const { return tokens_[seq][position]; }

  // A step of these parts, the last row of each sampling, with the transfers that it needs. They are numbered
  // upwards from first_transfer(), part by part and layer by layer; of a layer, what brings history goes
  // before what carries the rows' K and V away.
  Step make_step(const std::vector<StagedPart>& parts);
  TransferId first_transfer() const { return first_transfer_; }

  // Runs a step; its logits are added to logits().
  StepResult run(Step step);
  StepResult run(const std::vector<StagedPart>& parts) { return run(make_step(parts)); }
  // Runs tokens [0, end) of a sequence in frames, and forgets their logits.
  void run_history(uint32_t seq, uint32_t end);
  // Carries blocks of a sequence to the host; nothing of them is left in their frames.
  void move_to_host(uint32_t seq, const std::vector<uint32_t>& blocks);

  // True if a frame's planes of one layer were never written.
  bool untouched(uint32_t seq, uint32_t block, uint32_t layer) const;

  StagedLogits& logits() { return logits_; }
  FakeLink& link() { return *link_; }
  VirtualClock& clock() { return clock_; }
  const CacheGeometry& geometry() const { return geometry_; }

 private:
  // Where the planes of a block's layer lie among the frames, and as well on the host.
  KvPlanes home(uint32_t seq, uint32_t block, uint32_t layer) const;
  KvPlanes in_ring(uint32_t seq, uint32_t block, uint32_t layer) const;
  void add_part(const StagedPart& part, Step& step);
  void add_transfers(const StagedPart& part, const std::vector<uint32_t>& in, Step& step);
  Transfer carry(uint32_t seq, const std::vector<uint32_t>& blocks, uint32_t layer, Tier to);

  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<PackedModel> model_;
  CacheGeometry geometry_;
  const uint32_t ring_layers_;
  uint64_t frames_bytes_ = 0;
  std::vector<std::byte> device_, host_;
  VirtualClock clock_;
  std::unique_ptr<FakeLink> link_;
  std::unique_ptr<CpuExecutor> executor_;
  std::vector<std::vector<Token>> tokens_;
  StagedLogits logits_;
  uint64_t steps_ = 0;
  uint64_t transfers_ = 0;
  TransferId first_transfer_{};
  // The latest transfers that carry rows away: by sequence and layer of the ring; by sequence and layer.
  std::map<std::pair<uint32_t, uint32_t>, TransferId> last_from_ring_, last_to_host_;
};

// The logits of every token of every sequence of the rig, with all that is read in frames.
const StagedLogits& plain_logits();

// Those of `got` that are missing in plain_logits(), or have other bits.
int differences(const StagedLogits& got);

}  // namespace kvasir::test
