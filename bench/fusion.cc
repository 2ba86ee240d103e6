// What it saves to recompute dropped tokens in the pass of the decodes that read them, and not in one
// before it. On a CPU that is the fusion: rows of both kinds share every reading of the weights.
//
//   fusion --model FILE | --layers N --dim N --heads N --kv-heads N --head-dim N --ffn N --weights TYPE
//          [--sequences N,...] [--dropped N,...] [--history N] [--block N] [--threads N] [--repeats N]
//          [--clock wall|cpu]
//
// Each sequence decodes one token behind `history` tokens, the first `dropped` of which have no K and V. One
// pass: a slice of each sequence recomputes them, into scratch of one layer, beside its decode. Two
// passes: a step of the same slices alone, whose K and V of all layers are kept, and a step of the decodes.
// Both are made by hand, so that no policy and no cache take part, and run in turns; of each pair the ratio
// is taken. Before that, logits of both are compared with those of a history that was never dropped: bit by
// bit, and with scratch that held NaN before.
//
// --clock cpu, with --threads 1, counts the CPU time of the process: for a machine that others use, too.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "bench_model.h"
#include "cpu_clock.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "ops/cpu/isa.h"

namespace kvasir::bench {
namespace {

struct Options {
  ModelChoice model;
  int threads = 2;
  std::vector<uint32_t> sequences = {1, 4, 16};
  std::vector<uint32_t> dropped = {16, 64, 96, 128};
  uint32_t history = 256;
  uint32_t block_tokens = 16;
  int repeats = 15;
  std::string clock = "wall";

  uint32_t most_sequences() const { return *std::max_element(sequences.begin(), sequences.end()); }
  uint32_t most_dropped() const { return *std::max_element(dropped.begin(), dropped.end()); }
};

CacheGeometry geometry_of(const Options& o, const ModelSpec& c) {
  CacheGeometry g;
  g.block_tokens = o.block_tokens;
  g.layers = g.layers_per_group = static_cast<uint32_t>(c.layers);
  g.kv_plane_bytes_per_token_layer = c.kv_plane_bytes_per_token_layer(ops::KvType::kBf16);
  return g;
}

// Where K and V of the dropped blocks are, and which rows there are.
enum class Dropped : uint8_t {
  kNever,       // in their frames
  kInOnePass,   // in scratch of one layer, which rows of the step fill
  kFirstPass,   // the step fills them in all layers, and has no other rows
  kSecondPass,  // a step before has filled them
};

// By sequence.
using Logits = std::map<uint64_t, std::vector<float>>;

class Machine {
 public:
  Machine(const Options& o, const PackedModel& model, const Clock& clock)
      : o_(o),
        geometry_(geometry_of(o, model.spec())),
        blocks_(geometry_.blocks_for(o.history + 1)),
        piece_(geometry_.piece_bytes(Form::kKv)),
        kept_(o.most_sequences() * blocks_ * piece_ * geometry_.layers),
        scratch_(2 * kept_),
        memory_(Arena::map(scratch_ + o.most_sequences() * blocks_ * piece_, "K and V").value()),
        executor_(model, ops::kernels_for(ops::detect_isa()), geometry_, Decoder::Options{}, memory_.data(),
                  o.threads, clock) {
    for (uint32_t s = 0; s < o.most_sequences(); ++s) {
      Step step = empty_step();
      add_slice(s, {0, o.history}, RowKind::kPrefill, Dropped::kNever, 0, step);
      run(step);
    }
  }

  Step step(uint32_t sequences, uint32_t dropped, Dropped how) const {
    Step step = empty_step();
    for (uint32_t s = 0; s < sequences; ++s) {
      if (how == Dropped::kInOnePass || how == Dropped::kFirstPass) {
        add_slice(s, {0, dropped}, RowKind::kRestore, how, dropped, step);
      }
      if (how == Dropped::kFirstPass) continue;
      add_slice(s, {o_.history, o_.history + 1}, RowKind::kDecode, how, dropped, step);
      step.slices.back().samples = true;
    }
    return step;
  }

  double run(const Step& step) {
    executor_.submit(step);
    const StepResult result = executor_.wait();
    KV_CHECK(result.status.ok(), "{}", result.status.message());
    return to_millis(result.ended - result.started);
  }

  // What the steps' decodes see, one step after the other. Scratch is NaN before the first.
  Logits logits_of(const std::vector<Step>& steps) {
    std::memset(memory_.data() + kept_, 0xff, memory_.size() - kept_);
    Logits logits;
    executor_.set_tap([&](SeqId seq, uint32_t, std::span<const float> row) {
      logits[raw(seq)].assign(row.begin(), row.end());
    });
    for (const Step& step : steps) run(step);
    executor_.set_tap({});
    return logits;
  }

 private:
  Step empty_step() const {
    Step step;
    step.id = StepId{1};
    step.groups = geometry_.groups();
    return step;
  }

  KvPlanes planes(uint32_t seq, uint32_t block, uint32_t layer, Dropped how) const {
    const uint64_t index = seq * blocks_ + block;
    uint64_t at = (index * geometry_.layers + layer) * piece_;
    if (how == Dropped::kFirstPass || how == Dropped::kSecondPass) at += kept_;
    if (how == Dropped::kInOnePass) at = scratch_ + index * piece_;
    return {at, at + geometry_.layer_plane_bytes()};
  }

  void add_slice(uint32_t seq, Interval tokens, RowKind kind, Dropped how, uint32_t dropped,
                 Step& step) const {
    StepSlice slice;
    slice.seq = SeqId{seq};
    slice.tokens = tokens;
    slice.kind = kind;
    slice.first_token = step.row_count();
    slice.blocks = geometry_.blocks_for(tokens.end);
    slice.sampling.temperature = 0;
    step.add_staged(slice, {0, slice.blocks}, geometry_.layers);
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (uint32_t b = 0; b < slice.blocks; ++b) {
        const bool away = b * o_.block_tokens < dropped;
        step.staged_planes(slice, b, layer) = planes(seq, b, layer, away ? how : Dropped::kNever);
      }
    }
    for (uint32_t p = tokens.begin; p < tokens.end; ++p) {
      step.token_ids.push_back(static_cast<Token>(3 + (p * 31 + seq * 57) % 250));
    }
    step.slices.push_back(slice);
  }

  const Options& o_;
  const CacheGeometry geometry_;
  const uint32_t blocks_;  // of a sequence
  const uint64_t piece_;   // K and V of one layer of a block
  const uint64_t kept_;    // where a first pass leaves what it recomputes
  const uint64_t scratch_;
  Arena memory_;
  CpuExecutor executor_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// The same bits in both, and in a history that was never dropped.
bool same_logits(Machine& machine, uint32_t sequences, const Step& one, const std::vector<Step>& two) {
  const auto equal = [](const Logits& a, const Logits& b) {
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
             return x.first == y.first && x.second.size() == y.second.size() &&
                    std::memcmp(x.second.data(), y.second.data(), x.second.size() * sizeof(float)) == 0;
           });
  };
  const Logits held = machine.logits_of({machine.step(sequences, 0, Dropped::kNever)});
  return held.size() == sequences && equal(machine.logits_of({one}), held) &&
         equal(machine.logits_of(two), held);
}

bool compare(const Options& o, Machine& machine, uint32_t sequences, uint32_t dropped) {
  const Step one = machine.step(sequences, dropped, Dropped::kInOnePass);
  const Step first = machine.step(sequences, dropped, Dropped::kFirstPass);
  const Step second = machine.step(sequences, dropped, Dropped::kSecondPass);
  const bool same = same_logits(machine, sequences, one, {first, second});
  std::vector<double> one_ms, first_ms, second_ms, two_ms, ratio;
  const auto run_one = [&] { one_ms.push_back(machine.run(one)); };
  const auto run_two = [&] {
    first_ms.push_back(machine.run(first));
    second_ms.push_back(machine.run(second));
    two_ms.push_back(first_ms.back() + second_ms.back());
  };
  for (int i = 0; i < o.repeats; ++i) {
    // The first finds in the caches what the last pair left.
    if (i % 2 == 0) run_one();
    run_two();
    if (i % 2 != 0) run_one();
    ratio.push_back(one_ms.back() / two_ms.back());
  }
  const auto [low, high] = std::minmax_element(ratio.begin(), ratio.end());
  const double best = *std::min_element(one_ms.begin(), one_ms.end()) /
                      (*std::min_element(first_ms.begin(), first_ms.end()) +
                       *std::min_element(second_ms.begin(), second_ms.end()));
  const double r = median(ratio);
  fmt::print(
      "{:>9} {:>8} {:>6} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>8.3f} {:>15} {:>8.3f} {:>8.1f}% "
      "{:>8.1f}% "
      "{:>6}\n",
      sequences, dropped, sequences * dropped, median(one_ms), median(two_ms), median(first_ms),
      median(second_ms), r, fmt::format("{:.3f}..{:.3f}", *low, *high), best, 100 * (1 - r),
      100 * (1 / r - 1), same ? "yes" : "NO");
  std::fflush(stdout);
  return same;
}

int run(const Options& o) {
  for (uint32_t d : o.dropped) {
    if (d == 0 || d % o.block_tokens != 0 || d > o.history) {
      fmt::print(stderr, "--dropped {}: give multiples of {}, up to {}\n", d, o.block_tokens, o.history);
      return 1;
    }
  }
  auto file = o.model.open();
  if (!file.ok()) {
    fmt::print(stderr, "{}\n", file.status().message());
    return 1;
  }
  const auto model = PackedModel::make(**file, o.history + 1).value();
  const ModelSpec& c = model->spec();
  fmt::print(
      "{} layers x {}, {} heads over {}, weights {}; {} tokens of history, blocks of {}, {} threads, {} "
      "time\n",
      c.layers, c.dim, c.heads, c.kv_heads, model->weight_types(), o.history, o.block_tokens, o.threads,
      o.clock);
  const MonotonicClock wall;
  const CpuClock cpu(CpuClock::Of::kProcess);
  Machine machine(o, *model, o.clock == "cpu" ? static_cast<const Clock&>(cpu) : wall);
  fmt::print("{:>9} {:>8} {:>6} {:>10} {:>10} {:>10} {:>10} {:>8} {:>15} {:>8} {:>9} {:>9} {:>6}\n",
             "sequences", "dropped", "rows", "one, ms", "two, ms", "of that 1st", "2nd", "one/two",
             "least..most", "of best", "TPOT less", "tokens/s", "same");
  bool same = true;
  for (uint32_t sequences : o.sequences) {
    for (uint32_t dropped : o.dropped) same = compare(o, machine, sequences, dropped) && same;
  }
  return same ? 0 : 1;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::Options options;
  CLI::App app("What it saves to recompute dropped tokens in the pass of the decodes that read them");
  options.model.add_flags(app);
  app.add_option("-t,--threads", options.threads, "compute threads");
  app.add_option("--sequences", options.sequences, "sequences that decode")->delimiter(',');
  app.add_option("--dropped", options.dropped, "tokens of each that are recomputed")->delimiter(',');
  app.add_option("--history", options.history, "tokens of each");
  app.add_option("--block", options.block_tokens, "tokens of a block");
  app.add_option("--repeats", options.repeats, "pairs that are run")->check(CLI::PositiveNumber);
  app.add_option("--clock", options.clock, "wall or cpu")->check(CLI::IsMember({"wall", "cpu"}));
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(options);
}
