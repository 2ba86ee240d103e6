// Hand-made steps on the CPU executor over a tiny model, whose history is held as KV, as X or not at all,
// cell by cell. What is not held is not there: its memory holds nothing that could be read in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "fakes/fake_link.h"
#include "model/files/model_file.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

// What a cell is held as; neither kv nor x: rows have to compute its K and V again.
struct HeldCell {
  bool kv = false;
  bool x = false;
};
using HeldCells = std::function<HeldCell(uint32_t block, uint32_t group)>;

// A tiny model, the tokens of its sequences, and the logits of every one of them with all K and V on the
// device.
struct FormsModel {
  static constexpr uint32_t kSequences = 3;
  static constexpr uint32_t kTokens = 304;

  FormsModel(const TinyLlamaShape& shape, ops::WeightType weights, ops::KvType kv, bool bias);

  std::unique_ptr<ModelFile> file;
  std::unique_ptr<PackedModel> packed;
  const ops::KvType kv_type;
  std::vector<std::vector<Token>> tokens;  // by sequence
  std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> logits;
};

class FormsRig {
 public:
  struct Options {
    uint32_t layers_per_group = 1;
    int threads = 2;
    bool tap_all_rows = true;
    // Rows that compute cells again leave X of them, too, beside the first.
    bool rewrite = false;
  };
  // Tokens of a sequence that run in a step, behind its history.
  struct Part {
    uint32_t seq = 0;
    Interval tokens;
  };
  static constexpr uint32_t kBlockTokens = 16;
  static constexpr uint32_t kBlocks = FormsModel::kTokens / kBlockTokens;

  // The model outlives the rig.
  FormsRig(const FormsModel& model, const Options& options);

  // From now on the cells of a sequence are held like this: what its rows leave, and what history is read as.
  // Of tokens that have run, `cells` holds nothing that was not held before.
  void hold(uint32_t seq, HeldCells cells);

  Step make_step(const std::vector<Part>& parts) const;
  // Runs a step and compares its logits.
  StepResult run(Step step);
  StepResult run(const std::vector<Part>& parts) { return run(make_step(parts)); }

  // Logits that came out so far, and those that have other bits than the model's.
  uint32_t seen() const { return seen_; }
  uint32_t wrong() const { return wrong_; }
  // Cells that were written again, and those of them that came out otherwise than the first time.
  uint32_t rewritten() const { return rewritten_; }
  uint32_t rewritten_otherwise() const { return rewritten_otherwise_; }

  FakeLink& link() { return *link_; }

 private:
  uint64_t block_at(uint32_t seq, uint32_t block) const { return (seq * kBlocks + block) * block_bytes_; }
  // Where a cell's X begins in the device's memory.
  uint64_t x_at(uint32_t seq, uint32_t block, uint32_t group) const;
  KvPlanes home(uint32_t seq, uint32_t block, uint32_t layer) const;
  KvPlanes in_ring(uint32_t seq, uint32_t block) const;
  KvPlanes planes(uint32_t seq, uint32_t block, uint32_t layer) const;
  HeldCell cell(uint32_t seq, uint32_t block, uint32_t layer) const {
    return cells_[seq](block, geometry_.group_of(layer));
  }
  // How many layers a block's rows pass to compute what is dropped; 0: nothing is.
  uint32_t layers_again(uint32_t seq, uint32_t block) const;
  void add_part(const Part& part, Step& step) const;
  void add_recompute(const Part& part, Step& step) const;
  uint32_t add_slice(uint32_t seq, Interval tokens, Step& step) const;
  void add_x_writes(uint32_t seq, uint32_t slice, bool second, Step& step) const;
  void add_projections(const Part& part, uint32_t slice, Step& step) const;
  void forget(uint64_t at, uint64_t bytes);

  const FormsModel& model_;
  const Options options_;
  CacheGeometry geometry_;
  uint64_t kv_bytes_ = 0, x_bytes_ = 0, block_bytes_ = 0;  // of one block
  std::vector<std::byte> device_, host_;
  VirtualClock clock_;
  std::unique_ptr<FakeLink> link_;
  std::unique_ptr<CpuExecutor> executor_;
  std::vector<HeldCells> cells_;
  mutable uint64_t steps_ = 0;
  uint32_t seen_ = 0, wrong_ = 0, rewritten_ = 0, rewritten_otherwise_ = 0;
};

}  // namespace kvasir::test
