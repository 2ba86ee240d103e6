#include "cache/commit/stage_ring_size.h"

#include <algorithm>

#include "plan/kv_placement.h"

namespace kvasir {
namespace {

constexpr uint64_t kFewestSlots = 4;
// One part in so many of the device tier.
constexpr uint64_t kLittle = 16;
constexpr uint64_t kByChoice = 32;

}  // namespace

uint64_t stage_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes, uint64_t slower_bytes,
                          uint32_t longest_tokens, RingUse use) {
  const uint64_t cell = geometry.kv_cell_bytes();
  if (slower_bytes < cell) return 0;
  const uint64_t slot = geometry.largest_piece_bytes();
  const uint64_t most = geometry.blocks_for(longest_tokens);
  // The longest request, in blocks, that fits beside a ring of so many slots that passes so many blocks.
  const auto longest = [&](uint64_t slots, uint64_t passes) {
    const CellCapacity capacity = {
        .groups = geometry.groups(),
        .device_cells = static_cast<uint32_t>((device_bytes - slots * slot) / cell),
        .slower_cells = static_cast<uint32_t>(slower_bytes / cell),
        .stage_blocks = static_cast<uint32_t>(passes),
        .windowed_groups = geometry.windowed.count(),
        .window_blocks = geometry.window_blocks()};
    return std::min<uint64_t>(most, KvPlacement::longest(capacity));
  };
  // What streams has two blocks on the device: the one in which it ends and the one in which a chunk begins.
  const uint64_t frames = std::max(device_bytes / 2, 2 * geometry.kv_block_bytes());
  const uint64_t room = device_bytes > frames ? (device_bytes - frames) / slot : 0;
  const uint64_t fewest = std::min(kFewestSlots, room);
  const uint64_t without = longest(fewest, fewest);
  const uint64_t two_layers = 2 * longest(0, UINT32_MAX);
  const auto at_most = [&](uint64_t share) {
    return std::clamp(two_layers, fewest, std::clamp(device_bytes / share / slot, fewest, room));
  };
  const uint64_t half = at_most(2), little = at_most(kLittle);
  if (longest(half, half) >= (use.asked_for_length ? without + 1 : 2 * without)) return half * slot;
  if (longest(little, little) > without) return little * slot;
  return (use.stages_by_choice ? at_most(kByChoice) : fewest) * slot;
}

uint64_t shared_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes) {
  const uint64_t slot = geometry.largest_piece_bytes();
  const uint64_t frames = 2 * geometry.kv_block_bytes();
  const uint64_t room = device_bytes > frames ? (device_bytes - frames) / slot : 0;
  const uint64_t two_layers = 2 * (device_bytes / geometry.kv_block_bytes()) / 5;
  return std::min(room, std::max(kFewestSlots, std::min(two_layers, device_bytes / 16 / slot))) * slot;
}

uint64_t peers_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes, uint64_t own_host_cells) {
  const uint64_t slot = geometry.largest_piece_bytes();
  const uint64_t frames = std::max(device_bytes / 2, 2 * geometry.kv_block_bytes());
  const uint64_t room = device_bytes > frames ? (device_bytes - frames) / slot : 0;
  const CellCapacity capacity = {.groups = geometry.groups(),
                                 .device_cells = 0,
                                 .slower_cells = static_cast<uint32_t>(own_host_cells),
                                 .stage_blocks = 0,
                                 .borrowed_cells = 1,
                                 .leaf_blocks = geometry.blocks_per_leaf()};
  return std::min(room, 2 * capacity.passing(UINT32_MAX)) * slot;
}

uint64_t projection_ring_bytes(const CacheGeometry& geometry, uint64_t device_bytes,
                               uint32_t longest_tokens) {
  if (!geometry.has(Form::kX)) return 0;
  const uint64_t slot = geometry.largest_piece_bytes();
  const uint64_t fit = device_bytes / geometry.kv_block_bytes();
  const uint64_t longest = std::min<uint64_t>(geometry.blocks_for(longest_tokens), fit);
  return std::min(longest, device_bytes / 16 / slot) * slot;
}

}  // namespace kvasir
