#include "engine/engine.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/patiently.h"
#include "plan/kv_placement.h"

namespace kvasir {
namespace {

// The longest sleep of a loop in which every request waits for transfers or peers.
constexpr Nanos kLongestSleep = 100 * kNanosPerMilli;

}  // namespace

uint32_t Engine::longest_fit(const CacheOptions& cache) {
  const uint32_t borrowable = cache.borrowable_cells();
  const CellCapacity capacity = {cache.geometry.groups(),
                                 cache.cells(Tier::kDevice),
                                 cache.cells(cache.slower_tier()) - borrowable,
                                 cache.stage_blocks(),
                                 borrowable,
                                 cache.geometry.blocks_per_leaf(),
                                 /*may_borrow=*/false,
                                 cache.geometry.windowed.count(),
                                 cache.geometry.window_blocks()};
  return KvPlacement::longest(capacity) * cache.geometry.block_tokens;
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Policy> policy, Executor& executor,
               const Clock& clock, PlanLog* log, Link* link, const Beliefs& beliefs, Lending* lending)
    : options_(options),
      policy_(std::move(policy)),
      policy_state_(policy_->save_state()),
      executor_(executor),
      clock_(clock),
      link_(link),
      lending_(lending),
      beliefs_(beliefs),
      inbox_(options_, clock, metrics_.refused_late),
      parts_{options_, *policy_, executor, clock, log, link, lending, beliefs_, metrics_, inbox_, in_hand_},
      loop_(std::in_place, parts_, StepLoop::Past()) {
  const uint32_t fit = longest_fit(options.cache);
  KV_CHECK(options.max_model_len > 0 && options.max_model_len <= fit, "max_model_len={} fit={}",
           options.max_model_len, fit);
  // The committer names one token of a sequence by reference, so no more than one may be unknown.
  KV_CHECK(executor.depth() == 1 || executor.depth() == 2, "depth={}", executor.depth());
  KV_CHECK(!options.cache_events || options.cache.tells_events, "the cache tells no events: {}",
           options.cache.tells_events);
  KV_CHECK(lending || options.cache.borrowable_cells() == 0, "there are no peers to borrow {} cells from",
           options.cache.borrowable_cells());
  KV_CHECK(options.peer_prefixes != PeerPrefixUse::kNever || options.cache.attended_cells == 0,
           "no prefixes are shared: attended cells={}", options.cache.attended_cells);
  KV_CHECK(
      options.peer_prefixes == PeerPrefixUse::kNever || (lending && link && options.cache.prefix_cells > 0),
      "prefixes of {} cells of peers, without peers or a link", options.cache.prefix_cells);
  if (link_) {
    observe_link();
    link_->set_wake([this] { inbox_.wake(); });
  }
  if (lending_) lending_->set_wake([this] { inbox_.wake(); });
  if (options_.map) options_.map->set_wake([this] { inbox_.wake(); });
}

Engine::~Engine() {
  stop();
}

void Engine::observe_link() {
  if (!link_) return;
  std::lock_guard lock(link_metrics_mutex_);
  metrics_.link.set(link_->stats());
}

Nanos Engine::silent_for() const {
  // In this order: the sign that is read is then no older than the turn.
  const bool in_turn = in_turn_;
  Nanos since = last_sign_;
  if (in_turn) {
    since = std::max(since, executor_.came_on_at());
  } else {
    const Nanos unheard = inbox_.unheard_since();
    if (unheard == 0) return 0;
    since = std::max(since, unheard);
  }
  return std::max<Nanos>(0, clock_.now() - since);
}

void Engine::start() {
  KV_CHECK(!thread_.joinable(), "the engine runs already");
  thread_ = std::thread([this] { run(); });
}

void Engine::stop() {
  if (std::exchange(stopped_, true)) return;
  inbox_.stop();
  // A step whose layers all wait for a slow link could take longer than the caller has time for.
  executor_.give_up_waiting();
  if (thread_.joinable()) thread_.join();
  // From here on this is the engine's thread.
  if (link_) link_->set_wake({});
  if (lending_) lending_->set_wake({});
  if (options_.map) options_.map->set_wake({});
  for (;;) {
    try {
      return loop_->finish();
    } catch (const std::bad_alloc&) {
      start_anew();
    }
  }
}

size_t Engine::restore_prefixes(std::span<const DiskEntry> cells) {
  return loop_->restore_prefixes(cells);
}

std::vector<DiskEntry> Engine::save_prefixes(Nanos patience) {
  KV_CHECK(inbox_.stopped(), "the engine runs");
  return loop_->save_prefixes(patience);
}

void Engine::run() {
  const auto timeout = [this]() -> std::optional<Nanos> {
    if (!loop_->has_work()) return std::nullopt;
    if (!loop_->waits()) return 0;
    return std::clamp<Nanos>(loop_->due() - clock_.now(), 0, kLongestSleep);
  };
  while (inbox_.wait(timeout())) {
    last_sign_ = clock_.now();
    in_turn_ = true;
    step();
    last_sign_ = clock_.now();
    in_turn_ = false;
  }
}

bool Engine::step() {
  try {
    loop_->turn();
  } catch (const std::bad_alloc&) {
    start_anew();
  }
  return loop_->has_work();
}

// The old loop goes before the new one is made, which so finds the memory that the old one had.
void Engine::start_anew() {
  ++metrics_.fresh_starts;
  log_error("there was no memory for a step of the engine: its requests fail, and its cache begins empty");
  loop_->abandon();
  const StepLoop::Past past = loop_->past();
  patiently([&] { loop_.emplace(parts_, past); });
  const Status restored = patiently([this] { return policy_->restore_state(policy_state_); });
  KV_CHECK(restored.ok(), "{}", restored.message());
}

}  // namespace kvasir
