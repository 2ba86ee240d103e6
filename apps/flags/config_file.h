// --config: settings from a file of YAML.
#pragma once

#include <map>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvasir {

// Of the options whose value comes from a file: the place, as "kvasir.yaml:3".
using SettingPlaces = std::map<const CLI::Option*, std::string>;

// Adds --config FILE to `command`. The file is a map of flags' names, with '-' or '_' between their words, to
// values: true or false for a switch, a list for a flag that may be given again, a map for one of type JSON.
// It counts for flags that neither the command line nor the environment gives. A mistake ends the parsing
// with a CLI::ConfigError of one line that names file, line, column and key. `shared_with`: a command whose
// file this may be, too, so that keys which only that one has are passed over. `places` gets the options that
// are set, and outlives the parsing, as `shared_with` does. REQUIRES: called after all other flags are added
void add_config_file(CLI::App& command, SettingPlaces& places, const CLI::App* shared_with = nullptr);

}  // namespace kvasir
