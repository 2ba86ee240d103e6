// The settings of a command, for people.
#pragma once

#include <string>

#include "apps/flags/config_file.h"

namespace kvasir {

// One line for each setting of a command that has been parsed: its name, where its value comes from (flag,
// environment, a place in the file, default) and the value. Never a secret. `places`: see add_config_file().
std::string settings_table(const CLI::App& command, const SettingPlaces& places);

}  // namespace kvasir
