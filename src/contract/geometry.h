// The shape of the grid, token block x layer group, and the bytes of its cells.
//
// A frame holds one copy of a cell in one form: KV or X of `block_tokens` tokens x `layers_per_group`
// consecutive layers. Where the layers do not divide evenly, the last group is shorter and leaves the end of
// its frame unused, so that all frames of a form are equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/leaf_tokens.h"
#include "base/units.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"

namespace kvasir {

struct CacheGeometry {
  uint32_t block_tokens = 64;  // a multiple of 16 that divides 256
  uint32_t layers = 0;
  uint32_t layers_per_group = 0;  // 1 .. layers
  // Bytes of K alone (V is as large), including the scales of the cache type: kv_heads *
  // ops::kv_row_bytes().
  uint64_t kv_plane_bytes_per_token_layer = 0;
  // Bytes of X, the operand of the QKV projection, including scales; a multiple of 4. 0: no copies in form X.
  uint64_t x_bytes_per_token_layer = 0;
  // In the layer groups `windowed` a position attends to no more than its last `window` positions, its own
  // included. 0: there are none of them.
  uint32_t window = 0;
  LayerSet windowed{};
  // Tokens of a chunk for which a sequence has room beside its window in any case.
  uint32_t window_chunk = 512;
  // What windowed layers hold are parts of states: of a block the state behind its last token that was
  // computed. A row reads what the token before it has left, so the window is a block and a token. The state
  // of a block that is not full is overwritten.
  bool states = false;
  // A piece of KV is at least so large: then K and V leave the end of theirs unused, so that states are in
  // fewer layers.
  uint64_t least_piece_bytes = 0;
  // Planes of K and V: two, or one where V is a part of K (latent attention).
  uint32_t kv_planes = 2;

  uint32_t groups() const { return ceil_div(layers, layers_per_group); }
  uint32_t group_of(uint32_t layer) const { return layer / layers_per_group; }
  // The index of a layer inside its group's frame.
  uint32_t layer_in_group(uint32_t layer) const { return layer % layers_per_group; }

  // K (or V) of one layer of a block.
  uint64_t layer_plane_bytes() const { return kv_plane_bytes_per_token_layer * block_tokens; }
  // From where K of a layer of a block begins to where its V does.
  uint64_t v_offset() const { return (kv_planes - 1) * layer_plane_bytes(); }
  // K and V of one token in one layer.
  uint64_t kv_bytes_per_token_layer() const { return kv_planes * kv_plane_bytes_per_token_layer; }
  bool has(Form form) const { return piece_bytes(form) > 0; }
  // A cell is one piece for each layer of its group, one behind the other, in the order of the layers. A
  // piece is contiguous: K and then V (if they are two planes), or X.
  uint64_t piece_bytes(Form form) const {
    return form == Form::kKv ? std::max(kv_planes * layer_plane_bytes(), least_piece_bytes)
                             : x_bytes_per_token_layer * block_tokens;
  }
  uint64_t cell_bytes(Form form) const { return piece_bytes(form) * layers_per_group; }
  uint64_t kv_cell_bytes() const { return cell_bytes(Form::kKv); }
  uint64_t kv_block_bytes() const { return kv_cell_bytes() * groups(); }
  // The largest piece of any form: the size of a slot of the stage ring.
  uint64_t largest_piece_bytes() const { return std::max(piece_bytes(Form::kKv), piece_bytes(Form::kX)); }
  // Layers of a group: layers_per_group, or fewer in the last group.
  uint32_t layers_in(uint32_t group) const {
    return std::min(layers_per_group, layers - group * layers_per_group);
  }

  // On a disk a piece begins at a multiple of this.
  static constexpr uint64_t kDiskAlignment = 4096;
  // The distance from one piece of a cell to the next, and from one cell to the next, on a tier.
  uint64_t piece_stride(Form form, Tier tier) const {
    return tier == Tier::kDisk ? round_up(piece_bytes(form), kDiskAlignment) : piece_bytes(form);
  }
  uint64_t cell_stride(Form form, Tier tier) const { return piece_stride(form, tier) * layers_per_group; }

  uint32_t blocks_for(uint32_t tokens) const { return ceil_div(tokens, block_tokens); }
  uint32_t blocks_per_leaf() const { return kLeafTokens / block_tokens; }
  // Blocks of all leaves that overlap these tokens.
  uint32_t blocks_of_leaves(Interval tokens) const {
    return (ceil_div(tokens.end, kLeafTokens) - tokens.begin / kLeafTokens) * blocks_per_leaf();
  }
  uint32_t block_of(uint32_t position) const { return position / block_tokens; }

  // Blocks of a windowed group that a running sequence needs at most. Longer chunks take free cells.
  uint32_t window_blocks() const { return blocks_for(window + window_chunk) + 1; }
  // The cells that a sequence of so many blocks needs at a time, if it gives up those that are dead.
  uint32_t most_cells(uint32_t blocks) const {
    const uint32_t of_windows = windowed.count();
    return blocks * (groups() - of_windows) + std::min(blocks, window_blocks()) * of_windows;
  }
  // The blocks of the longest sequence that needs no more than so many cells at a time.
  uint32_t blocks_within(uint32_t cells) const {
    const uint32_t all = cells / groups(), lasting = groups() - windowed.count();
    if (windowed.empty() || all < window_blocks()) return all;
    if (lasting == 0) return UINT32_MAX / block_tokens;
    return window_blocks() + (cells - window_blocks() * groups()) / lasting;
  }
  // The cells in these groups of a block whose windowed ones are dead; if there are no others, of one that
  // lives.
  uint32_t lasting_in(const LayerSet& groups) const {
    const uint32_t lasting = (groups - windowed).count();
    return lasting > 0 ? lasting : groups.count();
  }
  // The window of each layer, 0: none. A group with layers of both kinds has none; where windows differ, the
  // largest counts for all.
  void set_windows(std::span<const uint32_t> by_layer) {
    window = 0;
    windowed = LayerSet::all(groups());
    for (uint32_t l = 0; l < layers; ++l) {
      if (by_layer[l] == 0) windowed.remove(group_of(l));
      window = std::max(window, by_layer[l]);
    }
    if (windowed.empty()) window = 0;
  }
  // These layers, which are those with windows, hold parts of states.
  void set_states(std::span<const uint32_t> by_layer) {
    set_windows(by_layer);
    states = window > 0;
    window_chunk = std::min(window_chunk, block_tokens);
  }
  // The first blocks of a sequence are dead in its windowed groups: no row from position `ready_tokens` on
  // attends to them. A sequence that keeps X may have to begin the block again in which it ends.
  uint32_t dead_blocks(uint32_t ready_tokens) const {
    if (has(Form::kX)) ready_tokens -= ready_tokens % block_tokens;
    return window == 0 || ready_tokens < window ? 0 : (ready_tokens - window + 1) / block_tokens;
  }
};

}  // namespace kvasir
