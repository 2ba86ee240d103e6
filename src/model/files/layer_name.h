// The numbers of layers in the names of tensors.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

// The layer and the rest of "blk.12.attn_q.weight", the prefix being "blk.".
struct LayerName {
  uint64_t layer = 0;
  std::string_view rest;
};

// nullopt: another name.
inline std::optional<LayerName> parse_layer_name(std::string_view name, std::string_view prefix = "blk.") {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  LayerName out;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  if (code != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  out.rest = name.substr(static_cast<size_t>(end - name.data()) + 1);
  return out;
}

// The parts of "blk.3.ffn_up.12.weight", one expert's matrix as folders and old files have it.
struct ExpertName {
  uint64_t layer = 0;
  std::string_view role;  // "ffn_up"
  uint64_t expert = 0;
};

// nullopt: another name.
inline std::optional<ExpertName> parse_expert_name(std::string_view name) {
  const auto block = parse_layer_name(name);
  if (!block) return std::nullopt;
  for (const std::string_view prefix : {"ffn_gate.", "ffn_up.", "ffn_down."}) {
    const auto numbered = parse_layer_name(block->rest, prefix);
    if (!numbered || numbered->rest != "weight") continue;
    return ExpertName{block->layer, prefix.substr(0, prefix.size() - 1), numbered->layer};
  }
  return std::nullopt;
}

}  // namespace kvasir
