#include "apps/flags/settings_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string_view>

#include "apps/flags/command_line.h"
#include "base/untrusted_text.h"

namespace kvasir {
namespace {

constexpr size_t kShownValue = 200;  // bytes of a value

struct Row {
  std::string name;
  std::string source;
  std::string value;
};

// What the help says behind "(default" or "; default", for a value that has no text of its own.
std::string told_default(const std::string& description) {
  size_t at = description.rfind("(default");
  if (at == std::string::npos) at = description.rfind("; default");
  if (at == std::string::npos) return "";
  const size_t begin = description.find(": ", at);
  const size_t end = description.find(')', at);
  return begin < end ? description.substr(begin + 2, end - begin - 2) : "";
}

std::string default_of(const CLI::Option& option) {
  if (!option.get_default_str().empty()) return option.get_default_str();
  std::string told = told_default(option.get_description());
  if (!told.empty()) return told;
  return option.get_items_expected_max() == 0 ? "off" : "-";
}

std::string value_of(const CLI::Option& option) {
  const bool has_password =
      option.get_type_name() == kUrlType && option.results().front().find('@') != std::string::npos;
  if (option.get_type_name() == kSecretType || has_password) return "(not shown)";
  if (option.get_items_expected_max() == 0) return option.results().back() == "true" ? "on" : "off";
  return one_line(fmt::format("{}", fmt::join(option.results(), ", ")), kShownValue);
}

Row row_of(const CLI::App& command, const CLI::Option& option, const SettingPlaces& places) {
  Row row{option.get_lnames().front(), "default", ""};
  if (option.count() == 0) {
    row.value = default_of(option);
    return row;
  }
  row.value = value_of(option);
  const auto place = places.find(&option);
  row.source = place != places.end()               ? place->second
               : from_environment(command, option) ? "environment, " + option.get_envname()
                                                   : "flag";
  return row;
}

}  // namespace

std::string settings_table(const CLI::App& command, const SettingPlaces& places) {
  std::vector<Row> rows;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_configurable() || option->get_lnames().empty()) continue;
    rows.push_back(row_of(command, *option, places));
  }
  size_t name_width = 0, source_width = 0;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.name.size());
    source_width = std::max(source_width, row.source.size());
  }
  std::string text;
  for (const Row& row : rows) {
    fmt::format_to(std::back_inserter(text), "{:<{}}  {:<{}}  {}\n", row.name, name_width, row.source,
                   source_width, row.value);
  }
  return text;
}

}  // namespace kvasir
