#include "apps/simulate/deployment_queue.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvasir {
namespace {

// What a policy like vLLM's leaves free when it admits a request beside others: a hundredth.
constexpr uint32_t kLeftFree = 100;
// Of a request streamed over instances: the block in which a chunk begins and the one in which it ends.
constexpr uint32_t kWritten = 2;
// Before any request has ended, of one that states no limit.
constexpr double kFirstOutput = 256;

}  // namespace

DeploymentQueue::DeploymentQueue(const Options& options)
    : options_(options), prompts_until_(options.instances, 0) {}

void DeploymentQueue::push(const Request& request) {
  waiting_.push_back(request);
}

void DeploymentQueue::ended(size_t index, std::optional<uint32_t> output_tokens) {
  const auto found = bound_.find(index);
  KV_CHECK(found != bound_.end(), "request {} is not bound", index);
  bound_.erase(found);
  if (!output_tokens) return;
  ++ended_;
  ended_output_ += *output_tokens;
}

// ---------------------------------------------------------------- belief

uint32_t DeploymentQueue::blocks_of(const Request& r) const {
  return static_cast<uint32_t>(
      ceil_div(uint64_t{r.prompt_tokens} + r.max_tokens, uint64_t{options_.block_tokens}));
}

double DeploymentQueue::believed_output(const Request& r) const {
  const double limit = r.max_tokens;
  if (ended_ == 0) return limit > 0 ? limit : kFirstOutput;
  const double mean = static_cast<double>(ended_output_) / static_cast<double>(ended_);
  return limit > 0 ? std::min(limit, mean) : mean;
}

// The instance computes its prompts one after the other, and then decodes its requests together.
Nanos DeploymentQueue::believed_end(const Request& r, uint32_t instance, Nanos now) const {
  double context = r.prompt_tokens;
  double batch = 1;
  for (const auto& [index, bound] : bound_) {
    if (bound.place.instance != instance) continue;
    context += bound.request.prompt_tokens;
    batch += 1;
  }
  const double seconds = options_.costs.prefill_seconds(r.prompt_tokens) +
                         believed_output(r) * options_.costs.decode_seconds(batch, context);
  return std::max(now, prompts_until_[instance]) + from_seconds(seconds);
}

// What is bound ends so much later if `by` begins beside it: its decodes wait for the prompt, and its steps
// are slower while both decode.
Nanos DeploymentQueue::delay(const Bound& bound, const Request& by) const {
  const double steps = std::min(bound.output, believed_output(by));
  const double slower = options_.costs.decode_seconds(2, bound.request.prompt_tokens + by.prompt_tokens) -
                        options_.costs.decode_seconds(1, bound.request.prompt_tokens);
  return from_seconds(options_.costs.prefill_seconds(by.prompt_tokens) + steps * slower);
}

void DeploymentQueue::take(const Place& place, Usage& from) const {
  ++from.requests[place.instance];
  for (uint32_t i = 0; i < options_.instances; ++i) {
    from.free[i] -= place.blocks[i];
    if (i != place.instance) from.lent[i] += place.blocks[i];
  }
}

DeploymentQueue::Usage DeploymentQueue::empty() const {
  return {std::vector<int64_t>(options_.instances, options_.blocks),
          std::vector<int64_t>(options_.instances, 0), std::vector<uint32_t>(options_.instances, 0)};
}

// What should have ended by now may end at any time.
DeploymentQueue::Usage DeploymentQueue::usage_at(Nanos at) const {
  Usage usage = empty();
  for (const auto& [index, bound] : bound_) {
    if (bound.place.end > at) take(bound.place, usage);
  }
  return usage;
}

// ---------------------------------------------------------------- places

bool DeploymentQueue::fits(uint32_t instance, uint32_t blocks, const Usage& usage) const {
  const bool alone = usage.free[instance] == int64_t{options_.blocks};
  return usage.free[instance] >= int64_t{blocks} + (alone ? 0 : options_.blocks / kLeftFree);
}

std::optional<DeploymentQueue::Place> DeploymentQueue::place_at(const Request& r, uint32_t instance,
                                                                const Usage& usage) const {
  if (usage.requests[instance] >= options_.most_requests) return std::nullopt;
  const uint32_t blocks = blocks_of(r);
  if (blocks <= options_.blocks) {
    if (!fits(instance, blocks, usage)) return std::nullopt;
    Place out{instance, std::vector<uint32_t>(options_.instances, 0), 0};
    out.blocks[instance] = blocks;
    return out;
  }
  if (!options_.lends || usage.free[instance] < int64_t{options_.blocks}) return std::nullopt;
  // As KvPlacement: whole leaves where all that is lent is enough for them.
  const uint32_t fewest = blocks + kWritten - options_.blocks;
  const uint32_t leaves = std::min(blocks, round_up(fewest, options_.leaf_blocks));
  const uint64_t lent = uint64_t{options_.instances - 1} * std::min(options_.lent_blocks, options_.blocks);
  return place_at_several(instance, leaves <= lent ? leaves : fewest, usage);
}

// All of the owner's memory, and of the others those first that can lend most.
std::optional<DeploymentQueue::Place> DeploymentQueue::place_at_several(uint32_t owner, uint32_t blocks_away,
                                                                        const Usage& usage) const {
  const auto lendable = [&](uint32_t i) {
    return std::max<int64_t>(0, std::min(usage.free[i], int64_t{options_.lent_blocks} - usage.lent[i]));
  };
  std::vector<uint32_t> others(options_.instances);
  std::iota(others.begin(), others.end(), 0u);
  std::stable_sort(others.begin(), others.end(),
                   [&](uint32_t a, uint32_t b) { return lendable(a) > lendable(b); });
  Place out{owner, std::vector<uint32_t>(options_.instances, 0), 0};
  out.blocks[owner] = options_.blocks;
  int64_t away = blocks_away;
  for (const uint32_t other : others) {
    if (other == owner) continue;
    const int64_t taken = std::min(away, lendable(other));
    out.blocks[other] = static_cast<uint32_t>(taken);
    away -= taken;
  }
  if (away > 0) return std::nullopt;
  return out;
}

bool DeploymentQueue::has_place(const Request& r, const Usage& usage) const {
  for (uint32_t i = 0; i < options_.instances; ++i) {
    if (place_at(r, i, usage)) return true;
  }
  return false;
}

// Whether the first one is believed to begin later if `r` begins now.
bool DeploymentQueue::delays(const Reservation& reserved, const Request& r, const Place& place,
                             Nanos now) const {
  Usage then = reserved.then;
  if (place.end > reserved.begin) take(place, then);
  for (const auto& [index, bound] : bound_) {
    if (bound.place.instance != place.instance || bound.place.end > reserved.begin) continue;
    if (std::max(now, bound.place.end) + delay(bound, r) > reserved.begin) take(bound.place, then);
  }
  return !has_place(reserved.first, then);
}

// Where it is believed to end first, among the places that do not delay the first one.
std::optional<DeploymentQueue::Place> DeploymentQueue::place(const Request& r, const Usage& usage, Nanos now,
                                                             const Reservation* reserved) const {
  std::optional<Place> best;
  for (uint32_t i = 0; i < options_.instances; ++i) {
    std::optional<Place> at = place_at(r, i, usage);
    if (!at) continue;
    at->end = believed_end(r, i, now);
    if (best && best->end <= at->end) continue;
    if (reserved && delays(*reserved, r, *at, now)) continue;
    best = std::move(at);
  }
  return best;
}

// The earliest end of something that is enough for it.
DeploymentQueue::Reservation DeploymentQueue::reserve(const Request& r, Nanos now) const {
  std::vector<Nanos> ends;
  for (const auto& [index, bound] : bound_) ends.push_back(std::max(now, bound.place.end));
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  for (const Nanos end : ends) {
    Usage then = usage_at(end);
    if (has_place(r, then)) return {r, end, std::move(then)};
  }
  KV_CHECK(false, "request {} has no place though all others end", r.index);
}

// ---------------------------------------------------------------- binding

DeploymentQueue::Binding DeploymentQueue::bind(const Request& r, Place place, Nanos now) {
  for (auto& [index, bound] : bound_) {
    Place& other = bound.place;
    if (other.instance == place.instance) other.end = std::max(now, other.end) + delay(bound, r);
  }
  Nanos& prompts_until = prompts_until_[place.instance];
  prompts_until =
      std::max(now, prompts_until) + from_seconds(options_.costs.prefill_seconds(r.prompt_tokens));
  Binding out{r.index, place.instance, place.blocks};
  bound_.emplace(r.index, Bound{std::move(place), r, believed_output(r)});
  return out;
}

std::vector<DeploymentQueue::Binding> DeploymentQueue::bind(Nanos now) {
  std::vector<Binding> out;
  std::vector<Request> left;
  std::optional<Reservation> reserved;
  const Usage none = empty();
  Usage usage = usage_at(-1);
  for (const Request& r : waiting_) {
    if (!has_place(r, none)) {
      // It is refused at once, and delays nothing.
      const std::vector<uint32_t> nothing(options_.instances, 0);
      bound_.emplace(r.index, Bound{{0, nothing, now}, r, 0});
      out.push_back({r.index, 0, nothing});
      continue;
    }
    std::optional<Place> at = place(r, usage, now, reserved ? &*reserved : nullptr);
    if (!at) {
      if (!reserved) reserved = reserve(r, now);
      left.push_back(r);
      continue;
    }
    out.push_back(bind(r, *std::move(at), now));
    usage = usage_at(-1);
    if (reserved) reserved->then = usage_at(reserved->begin);
  }
  first_begins_.reset();
  if (reserved) first_begins_ = reserved->begin;
  waiting_ = std::move(left);
  return out;
}

}  // namespace kvasir
