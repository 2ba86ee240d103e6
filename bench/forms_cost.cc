// What a step costs whose history is held as X, or not at all: a decode of many sequences against the share
// of X cells, and against the share of the history that is recomputed beside it.
//
//   forms_cost --model FILE | --layers N --dim N --heads N --kv-heads N --ffn N --weights TYPE
//              [--threads N] [--sequences N] [--history N] [--repeats N]
//
// Beside each time stands what one would predict: the step without, and the parts that come on top of it,
// measured alone: projections by the cell, recomputed rows by the cost of a row in a prefill. Steps are made
// by hand, so that no policy and no cache take part.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/kv_projection.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/thread_pool.h"
#include "model/files/model_file.h"
#include "ops/cpu/isa.h"
#include "ops/x_layout.h"
#include "support/tiny_llama.h"

namespace kvasir::bench {
namespace {

struct Options {
  std::string model;
  std::string weights = "Q4_1";
  test::TinyLlamaShape shape;
  int threads = 2;
  uint32_t sequences = 16;
  uint32_t history = 256;
  uint32_t block_tokens = 64;
  int repeats = 7;
};

// How the blocks of a sequence's history are held: first those of no form, then X, then KV.
struct Held {
  uint32_t dropped = 0;
  uint32_t x = 0;
};

CacheGeometry geometry_of(const Options& o, const PackedModel& model) {
  const ModelSpec& c = model.spec();
  CacheGeometry g;
  g.block_tokens = o.block_tokens;
  g.layers = g.layers_per_group = static_cast<uint32_t>(c.layers);
  g.kv_plane_bytes_per_token_layer = c.kv_plane_bytes_per_token_layer(ops::KvType::kBf16);
  const int64_t x_bytes = ops::x_row_bytes(model.x_type(ops::ActivationMode::kAuto), c.dim);
  g.x_bytes_per_token_layer = static_cast<uint64_t>(x_bytes);
  return g;
}

class Machine {
 public:
  Machine(const Options& o, const PackedModel& model)
      : o_(o),
        model_(model),
        geometry_(geometry_of(o, model)),
        blocks_(geometry_.blocks_for(o.history + 1)),
        kv_bytes_(2 * geometry_.layer_plane_bytes() * geometry_.layers),
        block_bytes_(round_up<uint64_t>(kv_bytes_ + geometry_.cell_bytes(Form::kX), 64)),
        ring_(o.sequences * blocks_ * block_bytes_),
        memory_(Arena::map(ring_ + o.sequences * blocks_ * 2 * geometry_.layer_plane_bytes(), "K, V and X")
                    .value()),
        executor_(model, ops::kernels_for(ops::detect_isa()), geometry_, Decoder::Options{}, memory_.data(),
                  o.threads, clock_) {
    // One sequence's history; the others have the same.
    Step step = empty_step();
    const uint32_t slice = add_slice(0, {0, o.history}, Held{}, step);
    step.slices[slice].samples = true;
    for (uint32_t b = 0; b < blocks_ && b * o.block_tokens < o.history; ++b) {
      step.x_writes.push_back({0, slice, b, x_at(0, b)});
    }
    step.index_by_layer();
    run(step);
    const uint64_t bytes = blocks_ * block_bytes_;
    for (uint32_t s = 1; s < o.sequences; ++s) {
      std::memcpy(memory_.data() + s * bytes, memory_.data(), bytes);
    }
  }

  const CacheGeometry& geometry() const { return geometry_; }

  // A token of each sequence, behind a history held like this.
  Step decode(const Held& held) const {
    Step step = empty_step();
    for (uint32_t s = 0; s < o_.sequences; ++s) {
      if (held.dropped > 0) {
        const uint32_t slice =
            add_slice(s, {0, std::min(o_.history, held.dropped * o_.block_tokens)}, held, step);
        step.slices[slice].kind = RowKind::kRestore;
      }
      const uint32_t slice = add_slice(s, {o_.history, o_.history + 1}, held, step);
      step.slices[slice].kind = RowKind::kDecode;
      step.slices[slice].samples = true;
      for (uint32_t b = held.dropped; b < held.dropped + held.x; ++b) {
        for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
          step.projections.push_back({layer, slice, b * o_.block_tokens, o_.block_tokens,
                                      x_at(s, b) + layer * geometry_.piece_bytes(Form::kX), in_ring(s, b)});
        }
      }
    }
    step.index_by_layer();
    return step;
  }

  // The history of one sequence, as a prompt.
  Step prefill() const {
    Step step = empty_step();
    step.slices[add_slice(0, {0, o_.history}, Held{blocks_, 0}, step)].samples = true;
    return step;
  }

  double run(const Step& step) {
    executor_.submit(step);
    const StepResult result = executor_.wait();
    KV_CHECK(result.status.ok(), "{}", result.status.message());
    return to_millis(result.ended - result.started);
  }

  // The step's projections and nothing else, by the same team.
  double project(const Step& step) {
    const ModelSpec& spec = model_.spec();
    const ops::KvShape frame{1, spec.kv_heads, spec.head_dim, o_.block_tokens, ops::KvType::kBf16};
    const std::vector<ops::KvShape> frames(static_cast<size_t>(spec.layers), frame);
    KvProjector projector(model_, ops::kernels_for(ops::detect_isa()), geometry_, frames,
                          ops::ActivationMode::kAuto, memory_.data(), o_.threads);
    StepTransfers transfers(nullptr, clock_);
    Step running = step;
    transfers.begin(running);
    ThreadPool pool(o_.threads);
    const auto once = [&] {
      const Nanos start = clock_.now();
      for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
        projector.run(running, layer, transfers, pool);
      }
      return to_millis(clock_.now() - start);
    };
    double best = once();
    for (int i = 0; i < o_.repeats; ++i) best = std::min(best, once());
    StepResult result;
    transfers.end(result);
    return best;
  }

 private:
  uint64_t block_at(uint32_t seq, uint32_t block) const { return (seq * blocks_ + block) * block_bytes_; }
  uint64_t x_at(uint32_t seq, uint32_t block) const { return block_at(seq, block) + kv_bytes_; }
  KvPlanes home(uint32_t seq, uint32_t block, uint32_t layer) const {
    const uint64_t plane = geometry_.layer_plane_bytes();
    const uint64_t at = block_at(seq, block) + 2 * plane * layer;
    return {at, at + plane};
  }
  KvPlanes in_ring(uint32_t seq, uint32_t block) const {
    const uint64_t plane = geometry_.layer_plane_bytes();
    const uint64_t at = ring_ + 2 * plane * (seq * blocks_ + block);
    return {at, at + plane};
  }

  Step empty_step() const {
    Step step;
    step.id = StepId{1};
    step.groups = geometry_.groups();
    return step;
  }

  uint32_t add_slice(uint32_t seq, Interval tokens, const Held& held, Step& step) const {
    StepSlice slice;
    slice.seq = SeqId{seq};
    slice.tokens = tokens;
    slice.first_token = step.row_count();
    slice.blocks = geometry_.blocks_for(tokens.end);
    slice.sampling.temperature = 0;
    step.add_staged(slice, {0, slice.blocks}, geometry_.layers);
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (uint32_t b = 0; b < slice.blocks; ++b) {
        step.staged_planes(slice, b, layer) =
            b < held.dropped + held.x ? in_ring(seq, b) : home(seq, b, layer);
      }
    }
    for (uint32_t p = tokens.begin; p < tokens.end; ++p) {
      step.token_ids.push_back(static_cast<Token>(3 + p * 31 % 250));
    }
    step.slices.push_back(slice);
    return static_cast<uint32_t>(step.slices.size() - 1);
  }

  const Options& o_;
  const PackedModel& model_;
  const CacheGeometry geometry_;
  const uint32_t blocks_;  // of a sequence
  const uint64_t kv_bytes_, block_bytes_, ring_;
  Arena memory_;
  MonotonicClock clock_;
  CpuExecutor executor_;
};

// The best of all repeats of each step, taken in turns, since a shared machine's speed changes.
std::vector<double> best_of(const Options& o, Machine& machine, const std::vector<Step>& steps) {
  std::vector<double> best(steps.size(), std::numeric_limits<double>::max());
  for (int i = 0; i <= o.repeats; ++i) {
    for (size_t s = 0; s < steps.size(); ++s) {
      const double ms = machine.run(steps[s]);
      if (i > 0) best[s] = std::min(best[s], ms);
    }
  }
  return best;
}

void compare(const Options& o, const PackedModel& model) {
  Machine machine(o, model);
  const CacheGeometry& g = machine.geometry();
  const ModelSpec& c = model.spec();
  const auto kv = static_cast<double>(g.piece_bytes(Form::kKv));
  const uint32_t history_blocks = o.history / o.block_tokens;
  fmt::print(
      "{} layers x {}, {} heads over {}, weights {}, X {}: X/KV {:.3f} in bytes; {} sequences x {} tokens, "
      "blocks of {}, {} threads\n",
      c.layers, c.dim, c.heads, c.kv_heads, model.weight_types(),
      ops::activation_type_name(model.x_type(ops::ActivationMode::kAuto)),
      static_cast<double>(g.piece_bytes(Form::kX)) / kv, o.sequences, o.history, o.block_tokens, o.threads);

  std::vector<uint32_t> shares;  // in blocks
  for (uint32_t i = 0; i <= 4; ++i) shares.push_back(history_blocks * i / 4);
  std::vector<Step> with_x, with_dropped;
  for (uint32_t n : shares) {
    with_x.push_back(machine.decode({0, n}));
    with_dropped.push_back(machine.decode({n, 0}));
  }
  const double all_cells_ms = machine.project(with_x.back());
  const std::vector<double> x_ms = best_of(o, machine, with_x);
  fmt::print("{:>10} {:>12} {:>10} {:>8} {:>16} {:>14} {:>10}\n", "X share", "X tokens", "step ms", "ratio",
             "projections ms", "predicted ms", "of that");
  for (size_t i = 0; i < shares.size(); ++i) {
    const double part = all_cells_ms * shares[i] / history_blocks;
    fmt::print("{:>9.0f}% {:>12} {:>10.2f} {:>8.2f} {:>16.2f} {:>14.2f} {:>10.2f}\n",
               100.0 * shares[i] / history_blocks, o.sequences * shares[i] * o.block_tokens, x_ms[i],
               x_ms[i] / x_ms[0], part, x_ms[0] + part, x_ms[i] / (x_ms[0] + part));
  }

  const double row_ms = best_of(o, machine, {machine.prefill()})[0] / o.history;
  const std::vector<double> dropped_ms = best_of(o, machine, with_dropped);
  fmt::print("a row of a prefill of {}: {:.4f} ms; a projected token: {:.4f} ms in all layers\n", o.history,
             row_ms, all_cells_ms / (o.sequences * history_blocks * o.block_tokens));
  fmt::print("{:>10} {:>12} {:>10} {:>8} {:>16} {:>14} {:>10}\n", "recomputed", "rows", "step ms", "ratio",
             "rows ms", "predicted ms", "of that");
  for (size_t i = 0; i < shares.size(); ++i) {
    const uint32_t rows = o.sequences * shares[i] * o.block_tokens;
    const double part = row_ms * rows;
    fmt::print("{:>9.0f}% {:>12} {:>10.2f} {:>8.2f} {:>16.2f} {:>14.2f} {:>10.2f}\n",
               100.0 * shares[i] / history_blocks, rows, dropped_ms[i], dropped_ms[i] / dropped_ms[0], part,
               dropped_ms[0] + part, dropped_ms[i] / (dropped_ms[0] + part));
  }
}

Result<std::unique_ptr<ModelFile>> open_model(const Options& o) {
  if (!o.model.empty()) return ModelFile::open(o.model);
  if (const auto type = ops::weight_type_of_name(o.weights)) {
    return ModelFile::from_bytes(test::make_tiny_llama(o.shape, *type, 1), "random weights");
  }
  return error(ErrorCode::kInvalidArgument, "--weights {}: give a type of GGUF, such as Q4_K", o.weights);
}

int run(const Options& o) {
  if (o.history % (4 * o.block_tokens) != 0) {
    fmt::print(stderr, "--history {}: give a multiple of {}\n", o.history, 4 * o.block_tokens);
    return 1;
  }
  auto file = open_model(o);
  if (!file.ok()) {
    fmt::print(stderr, "{}\n", file.status().message());
    return 1;
  }
  compare(o, *PackedModel::make(**file, o.history + 1).value());
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::Options options;
  options.shape.layers = 12;
  options.shape.dim = 768;
  options.shape.heads = options.shape.kv_heads = 12;
  options.shape.head_dim = 64;
  options.shape.ffn = 2048;
  options.shape.vocab = 1024;
  CLI::App app("What a history costs that is held as X, or not at all");
  app.add_option("-m,--model", options.model, "a GGUF file; without it random weights of a shape");
  app.add_option("--weights", options.weights, "type of the random weights");
  app.add_option("--layers", options.shape.layers);
  app.add_option("--dim", options.shape.dim);
  app.add_option("--heads", options.shape.heads);
  app.add_option("--kv-heads", options.shape.kv_heads);
  app.add_option("--head-dim", options.shape.head_dim);
  app.add_option("--ffn", options.shape.ffn);
  app.add_option("-t,--threads", options.threads, "compute threads");
  app.add_option("--sequences", options.sequences, "sequences that decode");
  app.add_option("--history", options.history, "tokens of each");
  app.add_option("--block", options.block_tokens, "tokens of a block");
  app.add_option("--repeats", options.repeats, "times that each step runs");
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(options);
}
