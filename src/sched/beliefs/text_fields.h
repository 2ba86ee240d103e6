// Reads the words and numbers of a small, untrusted text format.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace kvasir {

// Fields are separated by blanks and line ends. After the first wrong field nothing more is read. Used by one
// thread; the text outlives it.
class TextFields {
 public:
  explicit TextFields(std::string_view text) : text_(text) {}

  bool word(std::string_view expected) { return next() == expected || fail(); }
  // At most `most`.
  bool number(uint64_t most, uint64_t& out) {
    const std::string_view field = next();
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), out);
    const bool whole = !field.empty() && error == std::errc() && end == field.data() + field.size();
    return (whole && out <= most) || fail();
  }
  // Finite, and within [-most, most].
  bool real(double most, double& out) {
    const std::string_view field = next();
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), out);
    const bool whole = !field.empty() && error == std::errc() && end == field.data() + field.size();
    return (whole && std::isfinite(out) && std::abs(out) <= most) || fail();
  }
  // All fields were right, and none is left.
  bool at_end() { return next().empty() && !failed_; }

 private:
  std::string_view next() {
    constexpr std::string_view kBetween = " \n";
    const size_t begin = failed_ ? std::string_view::npos : text_.find_first_not_of(kBetween);
    if (begin == std::string_view::npos) {
      text_ = {};
      return {};
    }
    const size_t end = std::min(text_.find_first_of(kBetween, begin), text_.size());
    const std::string_view field = text_.substr(begin, end - begin);
    text_.remove_prefix(end);
    return field;
  }
  bool fail() {
    failed_ = true;
    return false;
  }

  std::string_view text_;
  bool failed_ = false;
};

}  // namespace kvasir
