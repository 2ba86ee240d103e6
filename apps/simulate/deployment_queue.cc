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
    : options_(options), requests_(options.instances, 0), prompts_until_(options.instances, 0) {}

void DeploymentQueue::push(const Request& request) {
  waiting_.push_back(request);
}

void DeploymentQueue::ended(size_t index, uint32_t output_tokens) {
  const auto found = bound_.find(index);
  KV_CHECK(found != bound_.end(), "request {} is not bound", index);
  --requests_[found->second.place.instance];
  bound_.erase(found);
  ++ended_;
  ended_output_ += output_tokens;
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
    context += bound.prompt_tokens;
    batch += 1;
  }
  const double seconds = options_.costs.prefill_seconds(r.prompt_tokens) +
                         believed_output(r) * options_.costs.decode_seconds(batch, context);
  return std::max(now, prompts_until_[instance]) + from_seconds(seconds);
}

// What should have ended by now may end at any time.
std::vector<int64_t> DeploymentQueue::free_at(Nanos at) const {
  std::vector<int64_t> free(options_.instances, options_.blocks);
  for (const auto& [index, bound] : bound_) {
    if (bound.place.end <= at) continue;
    for (uint32_t i = 0; i < options_.instances; ++i) free[i] -= bound.place.blocks[i];
  }
  return free;
}

// ---------------------------------------------------------------- places

bool DeploymentQueue::fits(uint32_t instance, uint32_t blocks, const std::vector<int64_t>& free) const {
  const bool alone = free[instance] == int64_t{options_.blocks};
  return free[instance] >= int64_t{blocks} + (alone ? 0 : options_.blocks / kLeftFree);
}

// All of the owner's memory, and of the others those first that have most.
std::optional<DeploymentQueue::Place> DeploymentQueue::place_at_several(
    const Request& r, uint32_t owner, const std::vector<int64_t>& free) const {
  if (free[owner] < int64_t{options_.blocks}) return std::nullopt;
  const uint32_t blocks = blocks_of(r);
  int64_t away = std::min(blocks, round_up(blocks + kWritten - options_.blocks, options_.leaf_blocks));
  std::vector<uint32_t> others(options_.instances);
  std::iota(others.begin(), others.end(), 0u);
  std::stable_sort(others.begin(), others.end(), [&](uint32_t a, uint32_t b) { return free[a] > free[b]; });
  Place out{owner, std::vector<uint32_t>(options_.instances, 0), 0};
  out.blocks[owner] = options_.blocks;
  for (const uint32_t other : others) {
    if (other == owner) continue;
    const int64_t taken = std::min(away, std::max<int64_t>(0, free[other]));
    out.blocks[other] = static_cast<uint32_t>(taken);
    away -= taken;
  }
  if (away > 0) return std::nullopt;
  return out;
}

// Where it is believed to end first, among the places that leave the reserved one free when that is needed.
std::optional<DeploymentQueue::Place> DeploymentQueue::place(const Request& r,
                                                             const std::vector<int64_t>& free, Nanos now,
                                                             const Reservation* reserved) const {
  const uint32_t blocks = blocks_of(r);
  std::optional<Place> best;
  for (uint32_t i = 0; i < options_.instances; ++i) {
    if (requests_[i] >= options_.most_requests) continue;
    std::optional<Place> at;
    if (blocks > options_.blocks) {
      at = place_at_several(r, i, free);
    } else if (fits(i, blocks, free)) {
      at = Place{i, std::vector<uint32_t>(options_.instances, 0), 0};
      at->blocks[i] = blocks;
    }
    if (!at) continue;
    at->end = believed_end(r, i, now);
    if (best && best->end <= at->end) continue;
    if (reserved && at->end > reserved->begin) {
      bool leaves = true;
      for (uint32_t k = 0; k < options_.instances; ++k) leaves &= reserved->spare[k] >= at->blocks[k];
      if (!leaves) continue;
    }
    best = std::move(at);
  }
  return best;
}

bool DeploymentQueue::fits_empty(const Request& r) const {
  const uint32_t blocks = blocks_of(r);
  if (blocks <= options_.blocks) return true;
  if (!options_.lends) return false;
  return place_at_several(r, 0, std::vector<int64_t>(options_.instances, options_.blocks)).has_value();
}

// The earliest end of something that is enough for it.
DeploymentQueue::Reservation DeploymentQueue::reserve(const Request& r, Nanos now) const {
  std::vector<Nanos> ends;
  for (const auto& [index, bound] : bound_) ends.push_back(std::max(now, bound.place.end));
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  for (const Nanos end : ends) {
    std::vector<int64_t> free = free_at(end);
    const std::optional<Place> at = place(r, free, end, nullptr);
    if (!at) continue;
    for (uint32_t i = 0; i < options_.instances; ++i) free[i] -= at->blocks[i];
    return {end, std::move(free)};
  }
  // Only the number of requests at each instance is in its way.
  return {now, std::vector<int64_t>(options_.instances, 0)};
}

// ---------------------------------------------------------------- binding

DeploymentQueue::Binding DeploymentQueue::bind(const Request& r, Place place, Nanos now) {
  ++requests_[place.instance];
  prompts_until_[place.instance] = std::max(now, prompts_until_[place.instance]) +
                                   from_seconds(options_.costs.prefill_seconds(r.prompt_tokens));
  Binding out{r.index, place.instance, place.blocks};
  bound_.emplace(r.index, Bound{std::move(place), r.prompt_tokens});
  return out;
}

std::vector<DeploymentQueue::Binding> DeploymentQueue::bind(Nanos now) {
  std::vector<Binding> out;
  std::vector<Request> left;
  std::optional<Reservation> reserved;
  std::vector<int64_t> free = free_at(-1);
  for (const Request& r : waiting_) {
    std::optional<Place> at;
    if (!fits_empty(r)) {
      at = Place{0, std::vector<uint32_t>(options_.instances, 0), now};
    } else {
      at = place(r, free, now, reserved ? &*reserved : nullptr);
    }
    if (!at) {
      if (!reserved) reserved = reserve(r, now);
      left.push_back(r);
      continue;
    }
    for (uint32_t i = 0; i < options_.instances; ++i) {
      free[i] -= at->blocks[i];
      if (reserved && at->end > reserved->begin) reserved->spare[i] -= at->blocks[i];
    }
    out.push_back(bind(r, *std::move(at), now));
  }
  first_begins_.reset();
  if (reserved) first_begins_ = reserved->begin;
  waiting_ = std::move(left);
  return out;
}

}  // namespace kvasir
