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

}  // namespace kvasir
