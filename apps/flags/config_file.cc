#include "apps/flags/config_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/flags/command_line.h"
#include "base/status.h"
#include "base/untrusted_text.h"
#include "base/yaml.h"

namespace kvasir {
namespace {

using Kind = YamlNode::Kind;

constexpr size_t kShownKey = 100;  // bytes of a key in a message

// What YAML 1.1 and 1.2 write for true and false.
std::string switch_value(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text == "true" || text == "yes" || text == "on") return "true";
  if (text == "false" || text == "no" || text == "off") return "false";
  return "";
}

nlohmann::json json_of(const YamlNode& node) {
  nlohmann::json json;
  if (node.kind == Kind::kText) {
    if (!node.quoted) json = nlohmann::json::parse(node.text, nullptr, /*allow_exceptions=*/false);
    const bool literal = !node.quoted && (json.is_number() || json.is_boolean());
    return literal ? json : nlohmann::json(node.text);
  }
  if (node.kind == Kind::kList) {
    json = nlohmann::json::array();
    for (const YamlNode& item : node.items) json.push_back(json_of(item));
  } else if (node.kind == Kind::kMap) {
    json = nlohmann::json::object();
    for (const YamlNode& item : node.items) json[item.name] = json_of(item);
  }
  return json;
}

// One file for one command.
class ConfigReader {
 public:
  ConfigReader(CLI::App& command, const std::string& path, const CLI::App* shared_with, SettingPlaces& places)
      : command_(command), path_(path), shared_with_(shared_with), places_(places) {}

  Status read() {
    KV_ASSIGN_OR_RETURN(const YamlNode root, read_yaml(path_));
    if (root.kind == Kind::kNone) return {};
    if (root.kind != Kind::kMap) {
      return error_at(path_, root.at, "no settings; write NAME: VALUE, one on each line");
    }
    for (const YamlNode& entry : root.items) KV_RETURN_IF_ERROR(take(entry));
    return {};
  }

 private:
  Status take(const YamlNode& entry) {
    std::string name = entry.name;
    std::replace(name.begin(), name.end(), '_', '-');
    CLI::Option* const option = command_.get_option_no_throw("--" + name);
    if (!option) {
      if (shared_with_ && shared_with_->get_option_no_throw("--" + name)) return {};
      return unknown(entry, name);
    }
    if (!option->get_configurable()) {
      return error_at(path_, entry.name_at, "'{}' is for the command line only; leave it out", name);
    }
    const auto [first, fresh] = lines_.emplace(option, entry.name_at.line);
    if (!fresh) {
      return error_at(path_, entry.name_at, "'{}' is set twice; the first is in line {}", name,
                      first->second);
    }
    KV_ASSIGN_OR_RETURN(std::vector<std::string> values, values_of(entry, name, *option));
    if (option->count() > 0) return {};  // by the command line or the environment
    try {
      option->add_result(std::move(values));
      option->run_callback();
    } catch (const CLI::ParseError& e) {
      const std::string message = explain_value(command_, e);
      return error_at(path_, entry.at, "{}", message.substr(message.starts_with("--") ? 2 : 0));
    }
    places_[option] = fmt::format("{}:{}", path_, entry.name_at.line);
    return {};
  }

  Status unknown(const YamlNode& entry, const std::string& name) const {
    const std::string nearest = nearest_flag(command_, name);
    return error_at(path_, entry.name_at, "unknown key '{}'{} (see --help)", one_line(entry.name, kShownKey),
                    nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }

  Result<std::vector<std::string>> values_of(const YamlNode& entry, const std::string& name,
                                             const CLI::Option& option) const {
    if (entry.kind == Kind::kNone) {
      return error_at(path_, entry.at, "{}: has no value; leave the key out for the default", name);
    }
    if (option.get_items_expected_max() == 0) {
      const std::string value = switch_value(entry.text);
      if (value.empty()) return error_at(path_, entry.at, "{}: must be true or false", name);
      return std::vector<std::string>{option.get_flag_value(name, value)};
    }
    if (option.get_type_name() == kJsonType && entry.kind == Kind::kMap) {
      return std::vector<std::string>{json_of(entry).dump()};
    }
    if (entry.kind == Kind::kText) return std::vector<std::string>{entry.text};
    const bool list = option.get_expected_max() > 1;
    if (!list || entry.kind == Kind::kMap) {
      return error_at(path_, entry.at, "{}: must be {}, not a {}", name, list ? "a list" : "one value",
                      entry.kind == Kind::kMap ? "map" : "list");
    }
    if (entry.items.empty()) {
      return error_at(path_, entry.at, "{}: the list is empty; leave the key out for the default", name);
    }
    std::vector<std::string> values;
    for (const YamlNode& item : entry.items) {
      if (item.kind != Kind::kText) {
        return error_at(path_, item.at, "{}: each item of the list must be one value", name);
      }
      values.push_back(item.text);
    }
    return values;
  }

  CLI::App& command_;
  const std::string& path_;
  const CLI::App* const shared_with_;
  SettingPlaces& places_;
  std::map<const CLI::Option*, int> lines_;  // of the options that the file has, also overridden ones
};

}  // namespace

void add_config_file(CLI::App& command, SettingPlaces& places, const CLI::App* shared_with) {
  command
      .add_option_function<std::string>(
          "--config",
          [&command, &places, shared_with](const std::string& path) {
            // The environment reaches commands that are not run, and --help comes before mistakes.
            if (!command.parsed() || command.get_help_ptr()->count() > 0) return;
            const Status status = ConfigReader(command, path, shared_with, places).read();
            if (status.ok()) return;
            throw CLI::ConfigError((status.code() == ErrorCode::kNotFound ? "--config " : "") +
                                   status.message());
          },
          "YAML file of settings: names of flags, as 'max-num-seqs: 64'. The command line and the "
          "environment "
          "count more (default: none)")
      ->type_name(kFileType)
      ->configurable(false);
}

}  // namespace kvasir
