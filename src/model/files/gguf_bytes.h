// Plain values as GGUF has them, little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvasir {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

inline void append_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <typename T>
void append_value(std::vector<std::byte>& out, const T& value) {
  append_bytes(out, std::as_bytes(std::span(&value, 1)));
}

// Length as u64, then the text.
inline void append_text(std::vector<std::byte>& out, std::string_view text) {
  append_value<uint64_t>(out, text.size());
  append_bytes(out, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace kvasir
