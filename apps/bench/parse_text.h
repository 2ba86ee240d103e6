// Small pieces of text out of flags: numbers and lists.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace kvasir {

// Without the spaces at its ends.
std::string_view trim(std::string_view text);

// The parts between commas, trimmed, without the empty ones.
std::vector<std::string_view> split_commas(std::string_view text);

// A finite number that takes all of the text.
std::optional<double> parse_number(std::string_view text);

}  // namespace kvasir
