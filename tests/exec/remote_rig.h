// Hand-made steps on the CPU executor over a tiny model, in which leaves of the history lie in frames, in a
// ring, or at a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "fakes/fake_peer_memory.h"
#include "model/files/model_file.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

// Rows of a sequence that follow a history.
struct RemotePart {
  uint32_t seq = 0;
  Interval tokens;
};

// Leaves of a part's history that lie at the peer, in one layer.
struct PeerRun {
  uint32_t layer = 0;
  uint32_t part = 0;
  uint32_t first_leaf = 0;
  uint32_t end_leaf = 0;
};

// What a step gave: all that must not depend on where the history lies.
struct StepOutcome {
  StepResult result;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> logits;       // by sequence and position
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> written;  // by sequence and block
};

class RemoteRig {
 public:
  struct Options {
    TinyLlamaShape shape = tiny_gqa();
    ops::WeightType weights = ops::WeightType::kF32;  // rounding to int8 hides most changes of a last bit
    ops::KvType kv_type = ops::KvType::kBf16;
    uint32_t block_tokens = 64;
    uint32_t layers_per_group = 1;
    bool tap_all_rows = true;
    bool has_peers = true;
  };
  static constexpr uint32_t kSequences = 3;
  static constexpr uint32_t kTokens = 1900;  // of each sequence: seven leaves, and some of the eighth

  // Runs the histories, of all tokens.
  explicit RemoteRig(const Options& options);

  // From now on steps run on so many threads, in an executor of their own.
  void set_threads(int threads);

  // A step of these parts, the last row of each sampling. Nothing of what lies at the peer is left on the
  // device, and in_ring names blocks (of a sequence) that lie in the ring, and no more in their frames.
  Step make_step(const std::vector<RemotePart>& parts, const std::vector<PeerRun>& runs,
                 const std::set<std::pair<uint32_t, uint32_t>>& in_ring = {});
  StepOutcome run(Step step);
  StepOutcome run(const std::vector<RemotePart>& parts, const std::vector<PeerRun>& runs) {
    return run(make_step(parts, runs));
  }
  // The same in every layer.
  std::vector<PeerRun> in_all_layers(const std::vector<PeerRun>& runs) const;

  FakePeerMemory& peer() { return *peer_; }
  CpuExecutor& executor() { return *executor_; }
  const CacheGeometry& geometry() const { return geometry_; }
  // Ends the executor.
  void end_executor() { executor_.reset(); }

 private:
  uint64_t frame_of(uint32_t seq, uint32_t block, uint32_t layer) const;
  uint64_t at_peer(uint32_t seq, uint32_t block, uint32_t layer) const;
  StepSlice slice_of(const RemotePart& part, Step& step) const;
  void move_to_peer(const RemotePart& part, const PeerRun& run, Step& step);
  void move_to_ring(Step& step, const std::set<std::pair<uint32_t, uint32_t>>& in_ring);
  std::byte* device(uint64_t at) { return device_.data() + at; }

  const Options options_;
  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<PackedModel> model_;
  CacheGeometry geometry_;
  uint32_t blocks_ = 0;  // of a sequence
  uint64_t frames_bytes_ = 0;
  std::vector<std::byte> device_, whole_;  // with all of the histories in their frames
  std::vector<uint64_t> places_;           // at the peer, in no order
  MonotonicClock clock_;
  std::unique_ptr<FakePeerMemory> peer_;
  std::unique_ptr<CpuExecutor> executor_;
  std::vector<std::vector<Token>> tokens_;
  StepOutcome* outcome_ = nullptr;
  uint64_t steps_ = 0;
};

// How many of the logits, sampled tokens, hidden rows and written blocks of `got` are missing in `expected`
// or have other bits.
int differences(const StepOutcome& expected, const StepOutcome& got);

}  // namespace kvasir::test
