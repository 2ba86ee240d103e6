// A text with marks that say which of its bytes may form control tokens.
//
// The bytes of a chat template, and of the tokens that the server gives it, are trusted. Bytes that came with
// a request are plain. A control token is recognised only where all of its bytes are trusted and side by
// side, so a client can neither write one nor complete one that a template has begun.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/interval.h"

namespace kvasir {

// Not thread-safe while it changes. REQUIRES: fewer than 2^32 bytes.
class MarkedText {
 public:
  MarkedText() = default;
  // All of it is plain, which is the safe default.
  MarkedText(std::string plain) : text_(std::move(plain)) {}
  static MarkedText trusted(std::string text);

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  // Byte ranges: ascending, none empty, none touching the next.
  const std::vector<Interval>& trusted_ranges() const { return trusted_; }
  // Also of an empty text.
  bool all_trusted() const;
  // What the marks take beside the bytes; at most 8 for each byte.
  size_t mark_bytes() const { return trusted_.size() * sizeof(Interval); }

  void append(const MarkedText& other) { append(other, 0, other.size()); }
  // Bytes [begin, end) of `other`, which is not this text. O(log marks + what is added).
  void append(const MarkedText& other, size_t begin, size_t end);

  // Those bytes of this text that `part` views. REQUIRES: `part` points into text().
  MarkedText slice(std::string_view part) const;

 private:
  std::string text_;
  std::vector<Interval> trusted_;
};

}  // namespace kvasir
