// Reading the command line: numbers within bounds, and one clear line for each mistake.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <optional>
#include <string>
#include <type_traits>

namespace kvasir {

// For an option's check(): a number from `least` to `most`, both included.
template <typename T>
CLI::Validator between(T least, T most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    T value{};
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return "";
    return fmt::format("'{}' is not a {} from {} to {}", text,
                       std::is_integral_v<T> ? "whole number" : "number", least, most);
  };
  return CLI::Validator(check, fmt::format("{} to {}", least, most));
}

// Parses the arguments into the options of `app`. Returns nothing if they are right; else what the process
// exits with: 0 after help or the version on `out`, 2 after a line on `err` that names the command, the
// argument at fault and what was expected.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                      std::ostream& err);

}  // namespace kvasir
