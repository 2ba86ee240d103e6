#include "apps/flags/command_line.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string_view>
#include <vector>

namespace kvasir {
namespace {

constexpr int kExitFile = 1;
constexpr int kExitUsage = 2;
constexpr size_t kLongestName = 64;  // of a flag or command that is worth comparing with ours

// The least number of insertions, deletions, replacements and swaps of neighbours that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// The name nearest to `text`, or "" if more than a third of the letters differ.
std::string nearest(std::string_view text, const std::vector<std::string>& names) {
  if (text.size() > kLongestName) return "";
  std::string best;
  size_t least = text.size() / 3 + 1;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(text, name);
    if (distance >= least) continue;
    least = distance;
    best = name;
  }
  return best;
}

bool looks_like_flag(std::string_view argument) {
  return argument.size() > 1 && argument.front() == '-' && argument != "--";
}

std::string unknown_flag(const CLI::App& command, const std::string& argument) {
  const std::string flag = argument.substr(0, argument.find('='));
  const std::string name =
      nearest_flag(command, flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  return fmt::format("unknown flag {}{}", flag, name.empty() ? "" : "; did you mean --" + name + "?");
}

// `arguments`: those that no flag and no command took.
std::string unknown_command(const CLI::App& parent, const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  const std::string name = arguments.empty() ? "" : nearest(arguments.front(), known);
  return fmt::format("no command{}: there are {}{}", arguments.empty() ? "" : " '" + arguments.front() + "'",
                     fmt::join(known, ", "), name.empty() ? "" : "; did you mean " + name + "?");
}

// What is wrong with a value that is not of its option's type.
std::string wrong_value(const CLI::Option& option, const std::string& value) {
  const std::string type = option.get_type_name();
  const bool whole = type.starts_with("UINT") || type.starts_with("INT");
  const char* expected = type.starts_with("UINT") ? "a whole number of 0 or more"
                         : whole                  ? "a whole number"
                                                  : "a number";
  if (option.get_items_expected_max() == 0) expected = "true or false";
  const bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
  if (whole && digits) return fmt::format("{}: '{}' is too large", option.get_name(), value);
  return fmt::format("{}: '{}' is not {}", option.get_name(), value, expected);
}

// Names the environment variable in place of the option, if the value at fault is its.
std::string with_source(const CLI::App& command, const std::string& message) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name() + ":";
    if (!message.starts_with(name) || !from_environment(command, *option)) continue;
    return option->get_envname() + message.substr(name.size() - 1);
  }
  return message;
}

std::string explain(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  std::vector<std::string> left = app.remaining();
  while (left.empty() && !command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
    left = command->remaining();
  }
  std::string what;
  // An unknown flag comes first, because its value may have been taken for another argument.
  if (const auto flag = std::find_if(left.begin(), left.end(), looks_like_flag); flag != left.end()) {
    what = unknown_flag(*command, *flag);
  } else if (command->get_require_subcommand_min() > 0) {
    what = unknown_command(*command, left);
  } else if (!left.empty()) {
    what = fmt::format("unexpected argument '{}'", left.front());
  } else {
    return path + ": " + with_source(*command, explain_value(*command, e));
  }
  return fmt::format("{0}: {1} (see {0} --help)", path, what);
}

}  // namespace

CLI::Validator suggests(const std::vector<std::string>& names) {
  return CLI::Validator([](std::string&) { return std::string(); },
                        fmt::format("{{{}}}", fmt::join(names, ",")));
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  if (begin == std::string::npos || type.back() != '}') return {};
  return CLI::detail::split(type.substr(begin + 1, type.size() - begin - 2), ',');
}

bool from_environment(const CLI::App& command, const CLI::Option& option) {
  const std::vector<CLI::Option*>& given = command.parse_order();
  if (std::find(given.begin(), given.end(), &option) != given.end()) return false;
  const char* value = option.get_envname().empty() ? nullptr : std::getenv(option.get_envname().c_str());
  return value != nullptr && *value != '\0';
}

std::string nearest_flag(const CLI::App& command, std::string_view name) {
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    known.insert(known.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  return nearest(name, known);
}

// The library's own messages of these two kinds name the option but say neither what is expected nor, if it
// is missing, that a value is.
std::string explain_value(const CLI::App& command, const CLI::ParseError& e) {
  std::string message = e.what();
  for (const CLI::Option* option : command.get_options()) {
    const std::string conversion = "Could not convert: " + option->get_name() + " = ";
    if (message.starts_with(conversion)) return wrong_value(*option, message.substr(conversion.size()));
    if (e.get_exit_code() != static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) continue;
    if (!message.starts_with(option->get_name() + ": ")) continue;
    if (message.ends_with("missing")) return option->get_name() + ": its value is missing";
    if (option->count() > 1) return fmt::format("{} is given {} times", option->get_name(), option->count());
  }
  return message;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                      std::ostream& err) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e, out, err);
  } catch (const CLI::ParseError& e) {
    err << explain(app, e) << '\n';
    return e.get_exit_code() == static_cast<int>(CLI::ExitCodes::ConfigError) ? kExitFile : kExitUsage;
  }
  return std::nullopt;
}

}  // namespace kvasir
