// What the number of layers per frame (F, --kv-layer-group) costs and saves, where part of each history is
// dropped and part is on the host.
//
//   block_grain map   [--layers N] [--batch N,...] [--history N] [--groups F,...] [--blocks N,...]
//   block_grain waste [--depths N,...] [--population N] [--groups F,...] [--blocks N,...]
//   block_grain steps [--model FILE | --layers N ...] [--batch N] [--threads N] [--clock wall|cpu]
//
// map: what the engine's thread takes to make a step of decodes of a plan and to end it, in CPU time, over a
// link that moves nothing: with all of each history held, the same where each sequence gets a new block, and
// with part of it away; and how long it takes to find the address of (sequence, token, layer).
//
// waste: the share of the bytes in allocated frames that hold no token, or no layer, for histories of random
// lengths. `as frames`: what it would be if scratch came in frames of F layers, too, of which two layers are
// in use at a time, and `--gone` of all tokens passed through it. That one is computed and not measured: our
// scratch is slots of one layer.
//
// steps: the same decodes on the real executor, with a real link; all F in turns.
//
// F = 0 is all layers.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/units.h"
#include "bench_model.h"
#include "cache/commit/committer.h"
#include "cache/tiers/memory_link.h"
#include "cpu_clock.h"
#include "decode_batch.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "instant_link.h"
#include "ops/cpu/isa.h"

namespace kvasir::bench {
namespace {

struct Options {
  ModelChoice model;
  std::string what = "map";
  std::vector<uint32_t> groups = {1, 2, 4, 8, 0};
  std::vector<uint32_t> blocks = {16, 64};
  std::vector<uint32_t> batch = {16, 64, 256};
  std::vector<uint32_t> depths = {80, 40, 30, 22};
  uint32_t history = 512;
  uint32_t population = 512;
  double dropped = 0.25;  // of each history
  double host = 0.25;
  double gone = 0.36;
  int threads = 2;
  int repeats = 40;
  std::string clock = "wall";
};

uint32_t layers_per_group(uint32_t asked, uint32_t layers) {
  return asked == 0 ? layers : std::min(asked, layers);
}
std::string name_of(uint32_t asked) {
  return asked == 0 ? "all" : std::to_string(asked);
}

// One step more is for warming up.
DecodeBatch::Shape shape_of(const Options& o, uint32_t sequences, double dropped, double host) {
  return {sequences, o.history, dropped, host, static_cast<uint32_t>(o.repeats) + 1};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// ---------------------------------------------------------------- the map

class MapOnly {
 public:
  explicit MapOnly(DecodeBatch& batch) : batch_(batch) {
    batch.prefill(link_, [&](Step step) { end(std::move(step)); });
  }
  // Microseconds of a step: to make it of a plan, and to end it.
  double step_us() {
    const StepPlan plan = batch_.decode();
    const Nanos begin = clock_.now();
    Step step = batch_.apply(plan);
    const Nanos made = clock_.now();
    for (StepTransfer& f : step.transfers) link_.start(std::move(f.transfer));
    const Nanos fired = clock_.now();
    finish(step);
    return 1e-3 * static_cast<double>(made - begin + clock_.now() - fired);
  }

 private:
  void end(Step step) {
    for (StepTransfer& f : step.transfers) link_.start(std::move(f.transfer));
    finish(step);
  }
  void finish(const Step& step) {
    StepResult result;
    result.id = step.id;
    batch_.committer().step_ended(result);
    batch_.committer().drain_transfers();
  }

  DecodeBatch& batch_;
  InstantLink link_;
  const CpuClock clock_{CpuClock::Of::kThread};
};

// Where K of a token in a layer is: on the device, else on the host, else nowhere.
uint64_t find(const KvCache& cache, SeqId seq, uint32_t token, uint32_t layer) {
  const CacheGeometry& g = cache.geometry();
  const uint32_t group = g.group_of(layer);
  const BlockMap::Block& block = cache.block(cache.blocks_of(seq)[g.block_of(token)]);
  for (const Place& place : {kDeviceKv, Place{Form::kKv, Tier::kHost}}) {
    const BlockMap::Copies& copies = block.at(place);
    if (!copies.usable().contains(group)) continue;
    return copies.by_group[group].at + g.layer_in_group(layer) * g.piece_bytes(Form::kKv);
  }
  return KvPlanes::kAbsent;
}

struct LookupTimes {
  double mean_ns = 0, p90_ns = 0, most_ns = 0;
};

// Of random tokens of random sequences.
LookupTimes time_lookups(const KvCache& cache, uint32_t sequences, uint32_t tokens) {
  struct Key {
    SeqId seq;
    uint32_t token, layer;
  };
  Random random(5);
  std::vector<Key> keys(200'000);
  for (Key& k : keys) {
    k = {SeqId{1 + random.below(sequences)}, static_cast<uint32_t>(random.below(tokens)),
         static_cast<uint32_t>(random.below(cache.geometry().layers))};
  }
  volatile uint64_t sink = 0;
  // One by one, in ascending order, less what a reading of the clock takes.
  const auto one_by_one = [&](const Clock& clock) {
    std::vector<double> each, empty;
    for (const Key& k : keys) {
      const Nanos a = clock.now();
      sink = find(cache, k.seq, k.token, k.layer);
      const Nanos b = clock.now();
      each.push_back(static_cast<double>(b - a));
      empty.push_back(static_cast<double>(clock.now() - b));
    }
    std::sort(each.begin(), each.end());
    const double nothing = median(std::move(empty));
    for (double& e : each) e = std::max(0.0, e - nothing);
    return each;
  };
  const CpuClock cpu(CpuClock::Of::kThread);
  const Nanos begin = cpu.now();
  for (const Key& k : keys) sink = find(cache, k.seq, k.token, k.layer);
  LookupTimes t;
  t.mean_ns = static_cast<double>(cpu.now() - begin) / static_cast<double>(keys.size());
  // The clock of time that passes is the finer one; but the longest on it is that in which others ran.
  t.p90_ns = one_by_one(MonotonicClock())[keys.size() * 9 / 10];
  t.most_ns = one_by_one(cpu).back();
  (void)sink;
  return t;
}

struct MapTimes {
  std::vector<double> step_us;           // where no sequence needs a new block
  std::vector<double> growing_us;        // where all of them do
  std::optional<LookupTimes> find = {};  // afterwards
};

MapTimes time_map(const Options& o, const CacheGeometry& g, const DecodeBatch::Shape& shape, bool lookups) {
  DecodeBatch batch(shape, g);
  MapOnly map(batch);
  MapTimes times;
  for (int i = 0; i <= o.repeats; ++i) {
    const bool grows = batch.cache().ready_tokens(SeqId{1}) % g.block_tokens == 0;
    const double us = map.step_us();
    if (i > 0) (grows ? times.growing_us : times.step_us).push_back(us);
  }
  if (lookups) times.find = time_lookups(batch.cache(), shape.sequences, shape.history);
  return times;
}

void measure_map(const Options& o, uint32_t block, uint32_t sequences, uint32_t f) {
  const auto layers = static_cast<uint32_t>(o.model.shape.layers);
  const CacheGeometry g = {block, layers, layers_per_group(f, layers), 1024};
  DecodeBatch::Shape shape = shape_of(o, sequences, 0, 0);
  shape.history -= block / 2;  // so that a new block is needed on the way
  std::vector<double> held, growing;
  for (int i = 0; i < 3; ++i) {
    const MapTimes t = time_map(o, g, shape, false);
    held.insert(held.end(), t.step_us.begin(), t.step_us.end());
    growing.insert(growing.end(), t.growing_us.begin(), t.growing_us.end());
  }
  shape = shape_of(o, sequences, o.dropped, o.host);
  shape.history -= block / 2;
  const MapTimes away = time_map(o, g, shape, true);
  const auto [low, high] = std::minmax_element(away.step_us.begin(), away.step_us.end());
  const double per_piece = 1e3 * (median(away.step_us) - median(held)) / DecodeBatch(shape, g).pieces();
  fmt::print("{:>6} {:>6} {:>5} {:>9.1f} {:>11.0f} {:>13.0f} {:>14} {:>9.0f} {:>9.1f} {:>7.0f} {:>8.0f}\n",
             block, sequences, name_of(f), median(held),
             growing.empty() ? 0 : *std::min_element(growing.begin(), growing.end()), median(away.step_us),
             fmt::format("{:.0f}..{:.0f}", *low, *high), per_piece, away.find->mean_ns, away.find->p90_ns,
             away.find->most_ns);
  std::fflush(stdout);
}

void measure_map(const Options& o) {
  fmt::print("{} layers, {} tokens of history: {:.0f} % dropped and recomputed, {:.0f} % on the host\n",
             o.model.shape.layers, o.history, 100 * o.dropped, 100 * o.host);
  fmt::print("{:>6} {:>6} {:>5} {:>9} {:>11} {:>13} {:>14} {:>9} {:>9} {:>7} {:>8}\n", "block", "batch", "F",
             "held, us", "growing, us", "part away, us", "least..most", "ns/piece", "find, ns", "p90",
             "most");
  for (uint32_t block : o.blocks) {
    for (uint32_t sequences : o.batch) {
      for (uint32_t f : o.groups) measure_map(o, block, sequences, f);
    }
  }
}

// ---------------------------------------------------------------- waste

// Prompts and outputs of exponential lengths, of ShareGPT's means as the paper gives them, somewhere on their
// way through the output.
std::vector<uint32_t> population(uint32_t count) {
  Random random(11);
  std::vector<uint32_t> lengths(count);
  for (uint32_t& length : lengths) {
    const auto drawn = [&](double mean) { return -mean * std::log(1 - random.unit()); };
    const double prompt = drawn(222), output = drawn(1346);
    length = static_cast<uint32_t>(std::min(4096.0, 1 + prompt + random.unit() * output));
  }
  return lengths;
}

void measure_waste(const Options& o) {
  const std::vector<uint32_t> lengths = population(o.population);
  uint64_t tokens = 0;
  for (uint32_t length : lengths) tokens += length;
  fmt::print("{} histories of {:.0f} tokens on average; scratch as frames: {:.0f} % of tokens gone\n",
             lengths.size(), static_cast<double>(tokens) / static_cast<double>(lengths.size()), 100 * o.gone);
  fmt::print("{:>7} {:>6} {:>5} {:>10} {:>14} {:>15} {:>10}\n", "layers", "block", "F", "wasted",
             "of that tails", "of that groups", "as frames");
  for (uint32_t layers : o.depths) {
    for (uint32_t block : o.blocks) {
      for (uint32_t f : o.groups) {
        CacheOptions c;
        c.geometry = {block, layers, layers_per_group(f, layers), 1024};
        uint64_t blocks = 0;
        for (uint32_t length : lengths) blocks += c.geometry.blocks_for(length);
        c.device_bytes = blocks * c.geometry.kv_block_bytes();
        c.prefix_caching = false;
        KvCache cache(c);
        Committer committer(cache, nullptr);
        for (uint32_t i = 0; i < lengths.size(); ++i) {
          const SeqId seq{i + 1};
          cache.add_sequence(seq, std::vector<Token>(lengths[i], 1), "");
          Writes writes;
          writes.kv = LayerSet::all(c.geometry.groups());
          cache.extend(seq, lengths[i], writes, StepId{1});
        }
        const auto piece_of_token = static_cast<double>(2 * c.geometry.kv_plane_bytes_per_token_layer);
        const auto allocated = static_cast<double>(cache.map().used_bytes(Tier::kDevice));
        const double filled = static_cast<double>(tokens) * layers * piece_of_token;
        const double tails = (static_cast<double>(blocks * block - tokens)) * layers * piece_of_token;
        // Two consecutive layers lie in 1 + 1/F frames of F layers, on average over where they begin.
        const double per_group = c.geometry.layers_per_group;
        const double scratch = o.gone * static_cast<double>(blocks * block) * piece_of_token;
        const double frames = (1 - o.gone) * allocated + scratch * (per_group + 1);
        const double used = (1 - o.gone) * filled + scratch * 2;
        fmt::print("{:>7} {:>6} {:>5} {:>9.2f}% {:>13.2f}% {:>14.2f}% {:>9.2f}%\n", layers, block, name_of(f),
                   100 * (1 - filled / allocated), 100 * tails / allocated,
                   100 * (allocated - filled - tails) / allocated, 100 * (1 - used / frames));
      }
    }
  }
}

// ---------------------------------------------------------------- steps

class Machine {
 public:
  Machine(const Options& o, const PackedModel& model, uint32_t per_group, const Clock& clock)
      : batch_(shape_of(o, o.batch.front(), o.dropped, o.host), geometry_of(o, model.spec(), per_group)),
        device_(
            Arena::map(batch_.options().device_bytes + batch_.options().stage_bytes, "the device").value()),
        host_(Arena::map(batch_.options().host_bytes, "the host").value()),
        link_(memories(device_, host_), wall_),
        executor_(model, ops::kernels_for(ops::detect_isa()), batch_.options().geometry, Decoder::Options{},
                  device_.data(), o.threads, clock, {}, &link_) {
    batch_.prefill(link_, [&](Step step) { run(std::move(step)); });
  }

  struct Took {
    double step_ms = 0;
    double map_us = 0;  // of the engine's thread, beside the step
    std::vector<Token> tokens;
  };
  Took decode() {
    Took took;
    const StepPlan plan = batch_.decode();
    const Nanos begin = thread_.now();
    Step step = batch_.apply(plan);
    took.map_us = 1e-3 * static_cast<double>(thread_.now() - begin);
    for (StepSlice& s : step.slices) s.sampling.temperature = 0;
    executor_.submit(std::move(step));
    const StepResult result = executor_.wait();
    const Nanos ended = thread_.now();
    finish(result);
    took.map_us += 1e-3 * static_cast<double>(thread_.now() - ended);
    took.step_ms = to_millis(result.ended - result.started);
    for (const SampledToken& t : result.sampled) took.tokens.push_back(t.token);
    return took;
  }

 private:
  static CacheGeometry geometry_of(const Options& o, const ModelSpec& c, uint32_t per_group) {
    const auto layers = static_cast<uint32_t>(c.layers);
    return {o.blocks.front(), layers, layers_per_group(per_group, layers),
            c.kv_plane_bytes_per_token_layer(ops::KvType::kBf16)};
  }
  static MemoryLinkOptions memories(const Arena& device, const Arena& host) {
    MemoryLinkOptions options;
    options.memory[index_of(Tier::kDevice)] = {device.data(), device.size()};
    options.memory[index_of(Tier::kHost)] = {host.data(), host.size()};
    return options;
  }
  void run(Step step) {
    executor_.submit(std::move(step));
    finish(executor_.wait());
  }
  void finish(const StepResult& result) {
    KV_CHECK(result.status.ok() && result.deferred.empty(), "{}", result.status.message());
    batch_.committer().step_ended(result);
    batch_.committer().drain_transfers();
  }

  DecodeBatch batch_;
  Arena device_;
  Arena host_;
  const MonotonicClock wall_;
  const CpuClock thread_{CpuClock::Of::kThread};
  MemoryLink link_;
  CpuExecutor executor_;
};

int measure_steps(const Options& o) {
  auto file = o.model.open();
  if (!file.ok()) {
    fmt::print(stderr, "{}\n", file.status().message());
    return 1;
  }
  const auto model = PackedModel::make(**file, static_cast<uint32_t>((*file)->spec().context_length)).value();
  const MonotonicClock wall;
  const CpuClock cpu(CpuClock::Of::kProcess);
  std::vector<std::unique_ptr<Machine>> machines;
  for (uint32_t f : o.groups) {
    machines.push_back(
        std::make_unique<Machine>(o, *model, f, o.clock == "cpu" ? static_cast<const Clock&>(cpu) : wall));
  }
  std::vector<std::vector<double>> step_ms(machines.size()), map_us(machines.size()), ratio(machines.size());
  for (int i = 0; i <= o.repeats; ++i) {
    std::vector<Machine::Took> took;
    for (const auto& machine : machines) took.push_back(machine->decode());
    for (size_t m = 0; m < machines.size(); ++m) {
      KV_CHECK(took[m].tokens == took[0].tokens, "F={}: other tokens", name_of(o.groups[m]));
      if (i == 0) continue;  // scratch grows in the first
      step_ms[m].push_back(took[m].step_ms);
      map_us[m].push_back(took[m].map_us);
      ratio[m].push_back(took.back().step_ms / took[m].step_ms);
    }
  }
  fmt::print(
      "{} sequences x {} tokens, blocks of {}, {:.0f} % dropped, {:.0f} % on the host, {} threads, {} time\n",
      o.batch.front(), o.history, o.blocks.front(), 100 * o.dropped, 100 * o.host, o.threads, o.clock);
  fmt::print("{:>5} {:>10} {:>16} {:>10} {:>10} {:>22}\n", "F", "step, ms", "least..most", "map, us",
             "map/step", "tokens/s, to the last");
  for (size_t m = 0; m < machines.size(); ++m) {
    const auto [low, high] = std::minmax_element(step_ms[m].begin(), step_ms[m].end());
    const auto [less, more] = std::minmax_element(ratio[m].begin(), ratio[m].end());
    fmt::print("{:>5} {:>10.1f} {:>16} {:>10.0f} {:>9.3f}% {:>22}\n", name_of(o.groups[m]),
               median(step_ms[m]), fmt::format("{:.1f}..{:.1f}", *low, *high), median(map_us[m]),
               0.1 * median(map_us[m]) / median(step_ms[m]),
               fmt::format("{:.3f} ({:.2f}..{:.2f})", median(ratio[m]), *less, *more));
  }
  return 0;
}

int run(const Options& o) {
  if (o.what == "steps") return measure_steps(o);
  if (o.what == "waste") {
    measure_waste(o);
  } else {
    measure_map(o);
  }
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::Options options;
  CLI::App app("Layers per frame: what the map takes, what frames waste, and steps that do both");
  app.add_option("what", options.what, "map, waste or steps")
      ->check(CLI::IsMember({"map", "waste", "steps"}));
  options.model.add_flags(app);
  app.add_option("--groups", options.groups, "layers per frame; 0: all")->delimiter(',');
  app.add_option("--blocks", options.blocks, "tokens of a block (steps: the first)")->delimiter(',');
  app.add_option("--batch", options.batch, "sequences that decode (steps: the first)")->delimiter(',');
  app.add_option("--depths", options.depths, "layers (waste)")->delimiter(',');
  app.add_option("--history", options.history, "tokens of each (map, steps)");
  app.add_option("--population", options.population, "histories (waste)");
  app.add_option("--dropped", options.dropped, "share of a history that is recomputed");
  app.add_option("--host", options.host, "share of a history that is staged");
  app.add_option("--gone", options.gone, "share of the tokens that pass scratch (waste)");
  app.add_option("-t,--threads", options.threads, "compute threads");
  app.add_option("--repeats", options.repeats, "steps to measure")->check(CLI::PositiveNumber);
  app.add_option("--clock", options.clock, "wall or cpu: of the process (steps)")
      ->check(CLI::IsMember({"wall", "cpu"}));
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(options);
}
