#include "exec/sim/sim_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/draws.h"
#include "base/mutant.h"
#include "base/random.h"
#include "contract/forced_end.h"

namespace kvasir {
namespace {

// The random stream of the noise; tokens use the streams of their sequences.
constexpr uint64_t kNoiseStream = uint64_t{1} << 63;

}  // namespace

Token SimExecutor::token(SeqId seq, uint32_t position) const {
  return static_cast<Token>(random_bits(options_.seed, raw(seq), position) %
                            static_cast<uint64_t>(options_.vocab_size));
}

Nanos SimExecutor::duration(const Step& step) const {
  StepLoad load = load_of(step, options_.layers);
  double restores_s = 0;
  if (!step.hints.fuse || options_.restores_beside) {
    // They run in a pass of their own, within the same step of the engine.
    const StepLoad restores = take_restores(load);
    if (!restores.chunks.empty())
      restores_s = options_.times->seconds(restores) - options_.times->seconds({});
  }
  double seconds = options_.times->seconds(load);
  seconds = step.hints.fuse ? std::max(seconds, restores_s) : seconds + restores_s;
  if (options_.noise > 0) {
    uint64_t counter = 0;
    const double z = normal_draw(options_.seed, kNoiseStream + raw(step.id), &counter);
    seconds *= std::exp(options_.noise * z - options_.noise * options_.noise / 2);
  }
  return std::llround(seconds * static_cast<double>(kNanosPerSecond));
}

Nanos SimExecutor::collective_time(const Step& step, Nanos time) const {
  if (!options_.collectives) return 0;
  const double seconds = options_.times->collective_seconds(load_of(step, options_.layers));
  return std::min<Nanos>(time, std::llround(seconds * static_cast<double>(kNanosPerSecond)));
}

void SimExecutor::submit(Step step) {
  KV_CHECK(pending_.size() < static_cast<size_t>(options_.depth), "{} steps are in flight", pending_.size());
  KV_CHECK(step.is_indexed() && (step.waits.empty() || step.waits.back().layer < options_.layers),
           "step {}: a wait beyond {} layers, or lists that are not indexed", raw(step.id), options_.layers);
  for (const StepSlice& s : step.slices) {
    const uint32_t end = std::min(s.end_layer, options_.layers);
    KV_CHECK(end > 0 && (!s.samples || end == options_.layers), "a slice passes {} layers of {}", s.end_layer,
             options_.layers);
  }
  pending_.push_back({std::move(step), clock_.now()});
  if (pending_.size() == 1) transfers_.begin(pending_.front().step);
}

void SimExecutor::move_to(Nanos time) {
  if (time > clock_.now()) clock_.advance(time - clock_.now());
}

Nanos SimExecutor::run(const Step& step, Nanos started) {
  const Nanos time = duration(step) + (peers_ ? peers_->take_served(started) : 0);
  const Nanos exchanging = collective_time(step, time);
  Nanos exchanged = 0;  // so far, and how long that took
  Nanos exchanges = 0;
  const std::vector<Nanos> answers =
      peers_ && !step.remote.empty() ? peers_->ask(step, started) : std::vector<Nanos>();
  // Each wait so far has put off the points after it.
  const auto reach = [&](StepPoint point) {
    move_to(started + transfers_.stalled() + exchanges +
            (time - exchanging) * point / (2 * static_cast<Nanos>(options_.layers)));
  };
  for (uint32_t layer = 0; layer < options_.layers; ++layer) {
    reach(2 * layer);
    if (transfers_.waits_before(layer)) transfers_.wait_before(layer);
    if (transfers_.all_deferred()) return clock_.now();
    reach(layer_written(layer));
    transfers_.pass(layer_written(layer));
    if (!answers.empty() && answers[layer] > 0) {
      // Counted like a wait for a transfer, but a simulated peer always answers.
      transfers_.wait_for([&](Nanos) {
        clock_.advance(answers[layer]);
        return true;
      });
    }
    reach(layer_attended(layer));
    transfers_.pass(layer_attended(layer));
    if (exchanging == 0) continue;
    const Nanos until = exchanging * (layer + 1) / options_.layers;
    exchanges +=
        options_.collectives->collective(until - std::exchange(exchanged, until), options_.transfers_yield);
  }
  return started + transfers_.stalled() + exchanges + time - exchanging;
}

StepResult SimExecutor::wait() {
  KV_CHECK(!pending_.empty(), "no step is in flight");
  const Step& step = pending_.front().step;
  StepResult result;
  result.id = step.id;
  result.started = std::max(free_at_, pending_.front().submitted);
  result.ended = run(step, result.started);
  for (size_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    if (!slice.samples || (transfers_.deferred(s) && !mutant(Mutant::kDeferredSampled))) continue;
    SampledToken sampled;
    sampled.seq = slice.seq;
    sampled.token = with_forced_end(slice.sampling, slice.tokens.end, token(slice.seq, slice.tokens.end),
                                    options_.vocab_size);
    result.sampled.push_back(std::move(sampled));
  }
  transfers_.end(result);
  free_at_ = result.ended;
  pending_.pop_front();
  if (!pending_.empty()) transfers_.begin(pending_.front().step, /*submitted_early=*/true);
  return result;
}

}  // namespace kvasir
