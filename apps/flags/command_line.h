// Reading the command line: numbers within bounds, and one clear line for each mistake.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvasir {

// Types of options by which more is known than that they are text. In help they stand for the value.
inline constexpr const char* kFileType = "FILE";      // its name
inline constexpr const char* kFolderType = "FOLDER";  // its name
inline constexpr const char* kPathType = "PATH";      // a name of either
inline constexpr const char* kJsonType = "JSON";      // an object
inline constexpr const char* kSecretType = "SECRET";  // never shown
inline constexpr const char* kUrlType = "URL";        // not shown if it may have a password

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

// For an option's check(): names that it may have. Help and completion show them; any other text passes, too,
// because it may be right, or is refused later with a better message.
CLI::Validator suggests(const std::vector<std::string>& names);
// The names by which the option's check() or suggests() say what it may be; empty: any.
std::vector<std::string> choices_of(const CLI::Option& option);

// Of a command that is being parsed or has been: whether the option has its value from its environment
// variable.
bool from_environment(const CLI::App& command, const CLI::Option& option);

// The long flag of `command` that is nearest to `name`, both without dashes; "": none is near.
std::string nearest_flag(const CLI::App& command, std::string_view name);

// What is wrong with the value of an option, which is named first.
std::string explain_value(const CLI::App& command, const CLI::ParseError& e);

// Parses the arguments into the options of `app`. Returns nothing if they are right; else what the process
// exits with: 0 after help or the version on `out`; 2 after a line on `err` that names the command, the
// argument at fault and what was expected; 1 after a line that names the place in a file (CLI::ConfigError).
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                      std::ostream& err);

}  // namespace kvasir
