#include "engine/torture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "engine/collecting_sink.h"
#include "engine/counting_policy.h"
#include "engine/engine.h"
#include "engine/random_policy.h"
#include "fakes/fake_lending.h"
#include "fakes/fake_link.h"
#include "fakes/shadow_executor.h"
#include "sched/beliefs/cost_beliefs.h"
#include "sched/beliefs/length_predictors.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kTriesPerPlan = 8;
constexpr uint64_t kMostTurnsWithoutAStep = 20'000;
constexpr double kMutatedShare = 0.1;

struct Live {
  RequestId id{};
  GenerationRequest request;
  std::shared_ptr<CollectingSink> sink;
  bool cancelled = false;
  uint64_t cancel_at = UINT64_MAX;  // a turn of the loop
};

// A prompt that often begins as another does.
std::vector<Token> random_prompt(Random& random, uint32_t longest) {
  std::vector<Token> prompt;
  const uint64_t family = random.below(4);
  if (random.unit() < 0.6) {
    const auto shared = static_cast<uint32_t>(random.between(1, longest / 2));
    for (uint32_t i = 0; i < shared; ++i) {
      prompt.push_back(static_cast<Token>(random_bits(family, 7, i) % kShadowVocab));
    }
  }
  const auto rest = random.unit() < 0.3 ? random.between(1, 4) : random.between(1, longest / 4);
  for (int64_t i = 0; i < rest; ++i) prompt.push_back(static_cast<Token>(random.below(kShadowVocab)));
  return prompt;
}

GenerationRequest random_request(Random& random, uint32_t longest) {
  GenerationRequest r;
  r.prompt = random_prompt(random, longest);
  const uint32_t room = longest - static_cast<uint32_t>(r.prompt.size());
  r.max_tokens = static_cast<uint32_t>(random.between(1, std::min<int64_t>(room, 60)));
  if (random.unit() < 0.02) r.max_tokens = 0;
  r.sampling.seed = random.below(3);
  if (random.unit() < 0.3) r.stop_tokens = {static_cast<Token>(random.below(kShadowVocab))};
  if (random.unit() < 0.2) r.cache_salt = "salt";
  r.priority = static_cast<int32_t>(random.below(3));
  return r;
}

uint32_t layers_of(const TortureConfig& config) {
  return config.layers > 0 ? config.layers : config.groups * config.layers_per_group;
}

CacheGeometry geometry_of(const TortureConfig& config) {
  CacheGeometry geometry = {config.block_tokens, layers_of(config), config.layers_per_group, 8};
  geometry.x_bytes_per_token_layer = config.x_bytes;
  std::vector<uint32_t> windows(geometry.layers, config.window);
  for (uint32_t l = 2; l < geometry.layers; l += 3) windows[l] = 0;
  geometry.set_windows(windows);
  geometry.window_chunk = 32;
  return geometry;
}

// Ends one after `length` tokens, of those that it may have.
void force_end(GenerationRequest& r, uint64_t length) {
  const uint64_t room = r.max_tokens > 0 ? r.max_tokens : 60;
  r.sampling.end_token = r.stop_tokens.empty() ? kShadowVocab - 1 : r.stop_tokens[0];
  r.stop_tokens = {r.sampling.end_token};
  r.sampling.forced_end = static_cast<uint32_t>(r.prompt.size() + length % room);
}

// "" if a request's output is what its tokens say.
std::string judge(const Live& live, const ShadowLayers& layers, uint32_t longest) {
  const GenerationRequest& r = live.request;
  const CollectingSink& sink = *live.sink;
  if (!sink.finish || sink.events_after_finish > 0) return "no end, or more than one";
  const uint32_t limit = r.max_tokens > 0 ? r.max_tokens : longest - static_cast<uint32_t>(r.prompt.size());
  const auto want = shadow_output(layers, r.prompt, r.sampling, limit, r.stop_tokens);
  if (sink.tokens.size() > want.size() || !std::equal(sink.tokens.begin(), sink.tokens.end(), want.begin())) {
    return fmt::format("tokens {} instead of {}", fmt::join(sink.tokens, " "), fmt::join(want, " "));
  }
  const bool stopped =
      std::find(r.stop_tokens.begin(), r.stop_tokens.end(), want.back()) != r.stop_tokens.end();
  switch (*sink.finish) {
    case FinishReason::kAbort:
      return live.cancelled ? "" : "aborted, but it was not cancelled";
    case FinishReason::kError:
      return sink.error.find("told to fail") != std::string::npos ? "" : "failed: " + sink.error;
    case FinishReason::kStop:
    case FinishReason::kLength:
      if (sink.tokens.size() != want.size()) return "ended early";
      return (*sink.finish == FinishReason::kStop) == stopped ? "" : "ended for the wrong reason";
  }
  return "no reason";
}

void settle(const Live& live, const TortureConfig& config, TortureOutcome& out) {
  const std::string wrong = judge(live, ShadowLayers(geometry_of(config)), config.longest);
  if (!wrong.empty() && out.wrong++ == 0) {
    out.first_wrong = fmt::format("request {} (prompt of {} tokens, seed {}): {}", raw(live.id),
                                  live.request.prompt.size(), live.request.sampling.seed, wrong);
  }
  const auto reason = live.sink->finish.value_or(FinishReason::kError);
  if (reason == FinishReason::kAbort) {
    ++out.aborted;
  } else if (reason == FinishReason::kError) {
    ++out.failed;
  } else {
    ++out.complete;
  }
}

EngineOptions engine_options(const TortureConfig& config) {
  EngineOptions o;
  o.cache.geometry = geometry_of(config);
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * config.total_blocks;
  o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * config.host_blocks;
  o.cache.disk_bytes =
      o.cache.geometry.cell_stride(Form::kKv, Tier::kDisk) * o.cache.geometry.groups() * config.disk_blocks;
  o.cache.stage_bytes = o.cache.geometry.largest_piece_bytes() * config.stage_blocks;
  o.cache.borrowed_bytes = o.cache.geometry.kv_block_bytes() * config.borrowed_blocks;
  if (config.prefixes > 0) {
    o.peer_prefixes = config.attended_blocks > 0 ? PeerPrefixUse::kAttend : PeerPrefixUse::kFetch;
    o.cache.prefix_cells = o.cache.cells(Tier::kDevice);
    o.cache.attended_cells = config.attended_blocks * o.cache.geometry.groups();
  }
  if (config.prompts > 0) o.peer_prompts = PeerPromptUse::kAlways;
  o.vocab_size = kShadowVocab;
  o.scratch_tokens = config.scratch_tokens;
  o.max_decode_stall = config.max_decode_stall;
  o.cache.prefix_caching = config.prefix_caching;
  o.limits.max_num_seqs = config.max_num_seqs;
  o.limits.max_num_batched_tokens = config.max_num_batched_tokens;
  o.max_model_len = config.longest;
  o.fair_slack_tokens = 50;  // so that tenants are held back
  o.check_plans = config.check;
  o.check_integrity = config.check;
  o.map = config.map;
  return o;
}

// Shows each view before it is planned.
class SeeingPolicy final : public Policy {
 public:
  SeeingPolicy(std::unique_ptr<Policy> policy, std::function<void(const View&)> seen)
      : policy_(std::move(policy)), seen_(std::move(seen)) {}
  StepPlan plan(const View& view) override {
    seen_(view);
    return policy_->plan(view);
  }
  std::string save_state() const override { return policy_->save_state(); }
  Status restore_state(std::string_view state) override { return policy_->restore_state(state); }

 private:
  const std::unique_ptr<Policy> policy_;
  const std::function<void(const View&)> seen_;
};

// Of a learner that keeps to what it began with.
CostLearnerOptions never() {
  CostLearnerOptions options;
  options.prior_weight = 1e12;
  options.refit_every = UINT32_MAX;
  return options;
}

void submit_one(Engine& engine, Random& random, const TortureConfig& config, uint64_t turn, uint32_t index,
                std::vector<Live>& live) {
  Live next;
  next.request = random_request(random, config.longest);
  next.request.slo = config.slo;
  next.request.tenant.id = static_cast<uint32_t>(random_bits(config.seed, 13, index) % config.tenants);
  if (random_unit(config.seed, 11, index) < config.forced_ends) {
    force_end(next.request, random_bits(config.seed, 12, index));
  }
  next.sink = std::make_shared<CollectingSink>();
  if (random.unit() < config.cancels) next.cancel_at = turn + random.below(80);
  auto id = engine.submit(next.request, next.sink);
  next.id = id.value();
  live.push_back(std::move(next));
}

}  // namespace

uint32_t scaled(uint32_t requests) {
  if (at_long_level()) return 30 * requests;
#if defined(KVASIR_SANITIZED)
  return (requests + 1) / 2;
#else
  return requests;
#endif
}

TortureOutcome torture(const TortureConfig& config) {
  const auto start = std::chrono::steady_clock::now();
  const EngineOptions options = engine_options(config);
  VirtualClock clock;
  std::vector<std::byte> device(options.cache.device_bytes + options.cache.stage_bytes);
  const uint64_t peers_end = options.cache.peers_begin() + options.cache.peers_bytes();
  std::vector<std::byte> host(std::max(options.cache.host_and_borrowed_bytes(), peers_end));
  std::vector<std::byte> disk(options.cache.disk_bytes);
  FakeLink link(clock, {device, host, disk});
  link.be_late(config.late_waits, config.seed);
  link.fail_share(config.failing_transfers, config.seed + 1);
  const bool has_link = config.host_blocks + config.borrowed_blocks + config.disk_blocks > 0;
  Link* const used_link = has_link || config.prefixes > 0 ? &link : nullptr;
  const std::span<std::byte> borrowed =
      std::span(host).subspan(options.cache.borrowed_begin(), options.cache.held_at_peers_bytes());
  const std::span<std::byte> shown =
      std::span(host).subspan(options.cache.peers_begin() + options.cache.held_at_peers_bytes());
  FakeLending lending({.cells = options.cache.borrowable_cells(),
                       .attended = options.cache.attended_cells,
                       .seed = config.seed + 3,
                       .refusals = config.refusals,
                       .recalls = config.recalls,
                       .losses = config.losses,
                       .own = config.own_lent,
                       .prefixes = config.prefixes,
                       .prefixes_lost = config.prefixes_lost,
                       .stays = config.stays,
                       .prompts = config.prompts},
                      borrowed);
  lending.have_prefixes(
      {{device, host, {}}, shown, options.cache.geometry.kv_cell_bytes(), options.cache.geometry.groups()});
  lending.compute_prompts({options.cache.geometry, {device, host, {}}});
  ShadowExecutor executor(options.cache.geometry, device, config.depth, clock, used_link);
  executor.set_peers(borrowed, config.lost_answers, config.seed + 4,
                     [&](uint64_t at) { return lending.lost_at(at); });
  if (config.borrowed_blocks > 0 || config.prefixes > 0) {
    const uint64_t first_shown = options.cache.peers_begin() + options.cache.held_at_peers_bytes();
    link.set_lost([&, first_shown](MemoryAddress a) {
      if (a.tier == Tier::kHost && config.prefixes > 0 && a.offset >= first_shown) {
        return lending.shown_lost_at(a.offset - first_shown);
      }
      return options.cache.has_peers_cells() && a.tier == Tier::kHost &&
             a.offset >= options.cache.borrowed_begin() &&
             lending.lost_at(a.offset - options.cache.borrowed_begin());
    });
  }
  PlanCounts counts;
  std::unique_ptr<Policy> policy = make_test_policy(config.policy).value();
  if (config.mutations) {
    policy = std::make_unique<MutatingPolicy>(std::move(policy), kTriesPerPlan, kMutatedShare,
                                              config.seed + 5, *config.mutations);
  }
  policy = std::make_unique<CountingPolicy>(std::move(policy), counts);
  if (config.seen) policy = std::make_unique<SeeingPolicy>(std::move(policy), config.seen);
  CostBeliefs costs(CostLearner(config.costs), CostBeliefs::Learns::kAtOnce);
  std::unique_ptr<LengthPredictor> lengths;
  if (!config.predictor.empty()) lengths = make_length_predictor(config.predictor).value();
  const bool believes = config.costs.known() || config.learns_costs;
  CostBeliefs fixed(CostLearner(config.costs, never()), CostBeliefs::Learns::kAtOnce);
  const Beliefs beliefs = {!believes ? nullptr : (config.learns_costs ? &costs : &fixed), lengths.get()};
  Engine engine(
      options, std::move(policy), executor, clock, config.log, used_link, beliefs,
      config.borrowed_blocks > 0 || config.own_lent > 0 || config.prefixes > 0 ? &lending : nullptr);
  Random random(config.seed);
  Random moving(config.seed + 2);
  TortureOutcome out;
  std::vector<Live> live;
  uint32_t submitted = 0;
  uint64_t steps = 0, last_step = 0;
  for (uint64_t turn = 0; submitted < config.requests || !live.empty(); ++turn) {
    if (const uint64_t now = engine.metrics().steps; now != steps) {
      steps = now;
      last_step = turn;
    }
    if (steps >= config.most_steps || turn - last_step > kMostTurnsWithoutAStep) break;
    if (config.mutations && config.mutations->tried >= config.most_mutations) submitted = config.requests;
    while (submitted < config.requests && live.size() < config.at_once && random.unit() < 0.5) {
      submit_one(engine, random, config, turn, submitted, live);
      ++submitted;
    }
    for (Live& l : live) {
      if (turn < l.cancel_at || l.cancelled) continue;
      engine.cancel(l.id);
      l.cancelled = true;
    }
    if (config.failing_steps > 0 && random.unit() < config.failing_steps) executor.fail_next();
    if (moving.unit() < config.moved) link.complete_some(moving);
    engine.step();
    std::erase_if(live, [&](const Live& l) {
      if (!l.sink->finish) return false;
      settle(l, config, out);
      return true;
    });
  }
  for (const Live& l : live) engine.cancel(l.id);
  out.wrong += live.size();
  lending.end();
  while (engine.step() || link.queued() > 0) link.complete_all();
  engine.step();
  out.steps = engine.metrics().steps;
  out.preemptions = engine.metrics().num_preemptions;
  out.hit_tokens = engine.metrics().prefix_cache_hits;
  out.used_blocks_left = engine.metrics().kv_blocks_used;
  out.host_bytes_left = engine.metrics().tiers[1].bytes_used;
  out.disk_bytes_left = engine.metrics().tiers[2].bytes_used;
  out.counts = counts;
  out.transfers_left = engine.metrics().transfers_in_flight;
  out.swapped = engine.metrics().num_preemptions_swapped;
  out.staged_steps = engine.metrics().steps_staged;
  out.partial_steps = counts.partial_steps;
  out.deferred = engine.metrics().deferred_rows;
  out.transfers = link.stats().transfers;
  out.remote_leaves = executor.remote_leaves();
  out.granted = lending.granted();
  out.recalled = lending.recalled();
  out.lost = lending.lost();
  out.lent = lending.lent();
  out.prefix_hits = engine.metrics().peers.prefix_hits;
  out.prefix_late = engine.metrics().peers.prefix_late;
  out.prefix_failed = engine.metrics().peers.prefix_failed;
  out.prefix_shown = engine.metrics().peers.prefix_shown;
  out.prefix_attended = engine.metrics().peers.prefix_attended;
  out.computed_at_peers = lending.computed();
  out.computed_for_peers = lending.computed_here();
  out.kept_for_peers = lending.kept_here();
  out.standstills = engine.metrics().standstills;
  out.believed = costs.latest();
  out.integrity = engine.check_integrity().message();
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace kvasir::test
