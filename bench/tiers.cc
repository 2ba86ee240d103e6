// What K and V on the host cost on a real model: how well their transfer hides behind a step's own work, and
// how a history that is larger than the device tier runs beside one that fits.
//
//   tiers --model FILE [overlap|offload|history] [--threads N] [--history N] [--chunk N] [--device-tokens N]
//
// overlap: one sequence, of which the whole history is on the host and staged in every step, over an emulated
// link that is set so that transfer : compute is 1:2, 1:1 and 2:1.
//
// offload: one prompt, prefilled in one step, of which every layer goes to the host as it is written and none
// stays, over an emulated link on which that takes 0.3 and 0.8 of what the prefill takes.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/units.h"
#include "cache/commit/committer.h"
#include "cache/tiers/memory_link.h"
#include "engine/engine.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "model/files/model_file.h"
#include "ops/cpu/isa.h"
#include "sched/registry.h"

namespace kvasir::bench {
namespace {

struct Options {
  std::string model;
  std::string what = "overlap";
  int threads = 2;
  uint32_t history = 2048;
  uint32_t chunk = 128;
  uint32_t device_tokens = 1024;
  uint32_t block_tokens = 64;
  uint32_t layers_per_group = 1;
  uint32_t output = 32;
  int repeats = 5;
};

struct Model {
  std::unique_ptr<ModelFile> file;
  std::unique_ptr<PackedModel> packed;
};

// The tiers, the link between them and an executor over them.
struct Machine {
  Machine(const Options& o, const Model& model, const CacheOptions& cache, double bytes_per_s)
      : device(Arena::map(cache.device_bytes + cache.stage_bytes, "the device tier").value()),
        host(Arena::map(std::max<uint64_t>(cache.host_bytes, 1), "the host tier").value()) {
    MemoryLinkOptions options;
    options.memory[index_of(Tier::kDevice)] = {device.data(), device.size()};
    options.memory[index_of(Tier::kHost)] = {host.data(), host.size()};
    options.emulated_bytes_per_s = bytes_per_s;
    link = std::make_unique<MemoryLink>(options, clock);
    executor = std::make_unique<CpuExecutor>(*model.packed, ops::kernels_for(ops::detect_isa()),
                                             cache.geometry, Decoder::Options{}, device.data(), o.threads,
                                             clock, std::vector<int>{}, link.get());
  }
  Arena device;
  Arena host;
  MonotonicClock clock;
  std::unique_ptr<MemoryLink> link;
  std::unique_ptr<CpuExecutor> executor;
};

CacheOptions cache_options(const Options& o, const Model& model) {
  const ModelSpec& c = model.file->spec();
  CacheOptions cache;
  cache.geometry = {o.block_tokens, static_cast<uint32_t>(c.layers), o.layers_per_group,
                    c.kv_plane_bytes_per_token_layer(ops::KvType::kBf16)};
  cache.prefix_caching = false;
  return cache;
}

std::vector<Token> prompt_of(uint32_t tokens) {
  Random random(7);
  std::vector<Token> prompt(tokens);
  for (Token& t : prompt) t = static_cast<Token>(random.below(1000));
  return prompt;
}

// ---------------------------------------------------------------- overlap

// One sequence on a machine, step by step.
class Overlap {
 public:
  Overlap(const Options& o, const Model& model, bool staged, double bytes_per_s)
      : o_(o),
        staged_(staged),
        cache_options_(sized(o, model)),
        machine_(o, model, cache_options_, bytes_per_s),
        cache_(cache_options_),
        committer_(cache_, machine_.link.get()) {
    const uint32_t total = o.history + o.chunk * static_cast<uint32_t>(o.repeats + 2);
    cache_.add_sequence(kSeq, prompt_of(total), "");
  }

  // The history: written through to the host, or into frames.
  void prefill() {
    while (at_ < o_.history) run(std::min(512u, o_.history - at_), staged_ ? LayerSet() : all());
    for (Nanos waited = 0; cache_.transfers_in_flight() > 0; ++waited) committer_.drain_transfers();
  }
  // One chunk on top of it, whose own K and V stay on the device.
  StepResult step() { return run(o_.chunk, all()); }

  // The whole history in one step, of a sequence that is new each time.
  struct Whole {
    double step_ms = 0;
    double moved_ms = 0;  // until all of it is where it is to be
  };
  Whole whole() {
    if (at_ > 0) {
      cache_.remove_sequence(kSeq);
      cache_.add_sequence(kSeq, prompt_of(o_.history + o_.chunk), "");
      at_ = 0;
    }
    const StepResult r = run(o_.history, staged_ ? LayerSet() : all());
    while (cache_.transfers_in_flight() > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      committer_.drain_transfers();
    }
    return {to_millis(r.ended - r.started), to_millis(machine_.clock.now() - r.started)};
  }

  uint64_t staged_bytes() const {
    return uint64_t{o_.history} * 2 * cache_options_.geometry.kv_plane_bytes_per_token_layer *
           cache_options_.geometry.layers;
  }
  LinkStats link() const { return machine_.link->stats(); }

 private:
  static constexpr SeqId kSeq{1};

  static CacheOptions sized(const Options& o, const Model& model) {
    CacheOptions cache = cache_options(o, model);
    const uint64_t block = cache.geometry.kv_block_bytes();
    const uint32_t history = cache.geometry.blocks_for(o.history);
    cache.device_bytes =
        block * (history + cache.geometry.blocks_for(o.chunk) * static_cast<uint32_t>(o.repeats + 3));
    cache.host_bytes = block * (history + 1);
    cache.stage_bytes = 2 * cache.geometry.layer_plane_bytes() * 2 * (history + 1);  // two layers of it
    return cache;
  }
  LayerSet all() const { return LayerSet::all(cache_options_.geometry.groups()); }

  StepResult run(uint32_t rows, const LayerSet& keep) {
    StepPlan plan;
    const auto change = [&](Verb verb, Interval tokens, const LayerSet& layers, Tier tier, Trigger trigger) {
      if (!tokens.empty()) plan.copies.push_back({verb, kSeq, tokens, layers, Form::kKv, tier, trigger});
    };
    const uint32_t end = at_ + rows;
    if (staged_) change(Verb::kStage, {0, at_}, all(), Tier::kDevice, Trigger::kBeforeLayer);
    if (keep != all()) change(Verb::kAdd, {at_, end}, all(), Tier::kHost, Trigger::kAfterLayerWrites);
    Rows r;
    r.seq = kSeq;
    r.tokens = {at_, end};
    r.layers = all();
    r.writes.kv = keep;
    plan.rows.push_back(std::move(r));
    committer_.drain_transfers();
    machine_.executor->submit(committer_.apply(plan, StepId{++steps_}));
    StepResult result = machine_.executor->wait();
    KV_CHECK(result.status.ok() && result.deferred.empty(), "{}", result.status.message());
    committer_.step_ended(result);
    at_ = end;
    return result;
  }

  const Options& o_;
  const bool staged_;
  const CacheOptions cache_options_;
  Machine machine_;
  KvCache cache_;
  Committer committer_;
  uint32_t at_ = 0;
  uint64_t steps_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void overlap(const Options& o, const Model& model) {
  Overlap resident(o, model, false, 0);
  resident.prefill();
  std::vector<double> first;
  resident.step();
  for (int i = 0; i < o.repeats; ++i) {
    const StepResult r = resident.step();
    first.push_back(to_millis(r.ended - r.started));
  }
  const double guess = median(first);
  fmt::print(
      "a chunk of {} tokens after {} on the host, all layers staged, {} compute threads; EMULATED link\n",
      o.chunk, o.history, o.threads);
  fmt::print("{:>10} {:>12} {:>12} {:>12} {:>10} {:>12} {:>10} {:>14}\n", "wanted", "compute ms",
             "transfer ms", "step ms", "GB/s", "step / max", "stalled ms", "link CPU, core");
  for (double ratio : {0.5, 1.0, 2.0}) {
    // Beside each other: what the machine gives changes from minute to minute.
    Overlap plain(o, model, false, 0);
    plain.prefill();
    const double bytes = static_cast<double>(plain.staged_bytes());
    const double rate = bytes / (guess * ratio * 1e-3);
    Overlap staged(o, model, true, rate);
    staged.prefill();
    plain.step();
    staged.step();
    std::vector<double> compute, step, stalled, of_max;
    const LinkStats before = staged.link();
    double seconds = 0;
    for (int i = 0; i < o.repeats; ++i) {
      const StepResult p = plain.step();
      const StepResult s = staged.step();
      compute.push_back(to_millis(p.ended - p.started));
      step.push_back(to_millis(s.ended - s.started));
      stalled.push_back(to_millis(s.stalled));
      of_max.push_back(step.back() / std::max(compute.back(), 1e3 * bytes / rate));
      seconds += to_seconds(s.ended - s.started);
    }
    fmt::print("{:>10} {:>12.1f} {:>12.1f} {:>12.1f} {:>10.2f} {:>12.2f} {:>10.1f} {:>13.1f}%\n",
               ratio < 1   ? "1:2"
               : ratio > 1 ? "2:1"
                           : "1:1",
               median(compute), 1e3 * bytes / rate, median(step), rate * 1e-9, median(of_max),
               median(stalled), 100 * (staged.link().cpu_s - before.cpu_s) / seconds);
    std::fflush(stdout);
  }
}

void offload(const Options& o, const Model& model) {
  Overlap resident(o, model, false, 0);
  std::vector<double> first;
  resident.whole();
  for (int i = 0; i < o.repeats; ++i) first.push_back(resident.whole().step_ms);
  const double bytes = static_cast<double>(resident.staged_bytes());
  fmt::print(
      "a prompt of {} tokens in one step, every layer written through to the host, {} compute threads; "
      "EMULATED link\n",
      o.history, o.threads);
  fmt::print("{:>16} {:>12} {:>12} {:>12} {:>10} {:>10} {:>14}\n", "offload/prefill", "prefill ms",
             "offload ms", "step ms", "GB/s", "overlap", "moved after ms");
  for (double ratio : {0.3, 0.8}) {
    const double rate = bytes / (median(first) * ratio * 1e-3);
    Overlap offloaded(o, model, true, rate);
    offloaded.whole();
    // Beside each other: what the machine gives changes from minute to minute.
    std::vector<double> without, with, more, after;
    for (int i = 0; i < o.repeats; ++i) {
      without.push_back(resident.whole().step_ms);
      const Overlap::Whole w = offloaded.whole();
      with.push_back(w.step_ms);
      more.push_back(w.step_ms - without.back());
      after.push_back(w.moved_ms - w.step_ms);
    }
    const double offload_ms = 1e3 * bytes / rate;
    fmt::print("{:>16.1f} {:>12.1f} {:>12.1f} {:>12.1f} {:>10.2f} {:>10.3f} {:>14.1f}\n", ratio,
               median(without), offload_ms, median(with), rate * 1e-9, 1 - median(more) / offload_ms,
               median(after));
    std::fflush(stdout);
  }
}

// ---------------------------------------------------------------- a history larger than the device tier

struct Answer {
  std::vector<Token> tokens;
  double prefill_s = 0;
  double decode_ms = 0;  // per token
  LinkStats link;
};

class TokenSink final : public OutputSink {
 public:
  TokenSink(Answer& answer, const Clock& clock) : answer_(answer), clock_(clock), start_(clock.now()) {}
  void on_output(OutputEvent event) override {
    for (const OutputToken& t : event.tokens) answer_.tokens.push_back(t.id);
    KV_CHECK(event.error.empty(), "{}", event.error);
    if (answer_.prefill_s == 0) {
      first_ = clock_.now();
      answer_.prefill_s = to_seconds(first_ - start_);
    }
    const size_t more = answer_.tokens.size() - 1;
    if (event.finish && more > 0)
      answer_.decode_ms = to_millis(clock_.now() - first_) / static_cast<double>(more);
  }

 private:
  Answer& answer_;
  const Clock& clock_;
  const Nanos start_;
  Nanos first_ = 0;
};

Answer answer(const Options& o, const Model& model, const std::string& policy, uint32_t device_tokens,
              double bytes_per_s) {
  EngineOptions options;
  options.cache = cache_options(o, model);
  const CacheGeometry& g = options.cache.geometry;
  const uint32_t total = o.history + o.output;
  const uint64_t bytes = g.kv_block_bytes() * g.blocks_for(device_tokens);
  if (device_tokens < total) {
    options.cache.host_bytes = g.kv_block_bytes() * (g.blocks_for(total) + 1);
    // The ring is a part of the device tier: as much as two layers need, and no more than half.
    options.cache.stage_bytes =
        std::min<uint64_t>(bytes / 2, 4 * g.layer_plane_bytes() * g.blocks_for(total));
  }
  options.cache.device_bytes = bytes - options.cache.stage_bytes;
  options.max_model_len = total;
  Machine machine(o, model, options.cache, bytes_per_s);
  Link* const link = options.cache.host_bytes > 0 ? machine.link.get() : nullptr;
  Engine engine(options, make_policy(policy).value(), *machine.executor, machine.clock, nullptr, link);
  Answer out;
  GenerationRequest request;
  request.prompt = prompt_of(o.history);
  request.max_tokens = o.output;
  request.sampling.temperature = 0;
  (void)engine.submit(std::move(request), std::make_shared<TokenSink>(out, machine.clock)).value();
  engine.start();
  KV_CHECK(engine.wait_idle(600 * kNanosPerSecond), "no answer in ten minutes");
  engine.stop();
  out.link = machine.link->stats();
  return out;
}

void history(const Options& o, const Model& model) {
  fmt::print(
      "{} tokens of history and {} of output, {} compute threads; the limited run has a device tier of {} "
      "tokens\n",
      o.history, o.output, o.threads, o.device_tokens);
  fmt::print("{:<12} {:<12} {:>12} {:>16} {:>12} {:>12}\n", "policy", "device tier", "prefill s",
             "decode ms/token", "moved GiB", "same tokens");
  for (const char* policy : {"sarathi", "vllm-swap"}) {
    const Answer unlimited = answer(o, model, policy, o.history + o.output + o.block_tokens, 0);
    const Answer limited = answer(o, model, policy, o.device_tokens, 0);
    const auto moved = [](const LinkStats& s) {
      uint64_t sum = 0;
      for (const auto& row : s.bytes) {
        for (uint64_t b : row) sum += b;
      }
      return static_cast<double>(sum) / static_cast<double>(kGiB);
    };
    for (const auto& [name, a] :
         {std::pair<const char*, const Answer&>{"unlimited", unlimited}, {"limited", limited}}) {
      fmt::print("{:<12} {:<12} {:>12.2f} {:>16.2f} {:>12.2f} {:>12}\n", policy, name, a.prefill_s,
                 a.decode_ms, moved(a.link), a.tokens == unlimited.tokens ? "yes" : "NO");
    }
    fmt::print("{:<12} {:<12} {:>11.2f}x {:>15.2f}x\n", policy, "ratio",
               limited.prefill_s / unlimited.prefill_s, limited.decode_ms / unlimited.decode_ms);
    std::fflush(stdout);
  }
}

int run(const Options& o) {
  auto file = ModelFile::open(o.model);
  if (!file.ok()) {
    fmt::print(stderr, "{}\n", file.status().message());
    return 1;
  }
  Model model;
  model.file = std::move(file).value();
  model.packed =
      PackedModel::make(*model.file, static_cast<uint32_t>(model.file->spec().context_length)).value();
  if (o.what == "overlap") {
    overlap(o, model);
  } else if (o.what == "offload") {
    offload(o, model);
  } else {
    history(o, model);
  }
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::Options options;
  CLI::App app("K and V on the host: what staging them costs");
  app.add_option("what", options.what, "overlap, offload or history")
      ->check(CLI::IsMember({"overlap", "offload", "history"}));
  app.add_option("-m,--model", options.model, "a GGUF file")->required();
  app.add_option("-t,--threads", options.threads, "compute threads");
  app.add_option("--history", options.history, "tokens before the measured ones");
  app.add_option("--chunk", options.chunk, "tokens of a measured step (overlap)");
  app.add_option("--device-tokens", options.device_tokens, "size of the limited device tier (history)");
  app.add_option("--output", options.output, "tokens to decode (history)");
  app.add_option("--kv-layer-group", options.layers_per_group, "layers per frame");
  app.add_option("--repeats", options.repeats, "steps to measure (overlap, offload)");
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(options);
}
