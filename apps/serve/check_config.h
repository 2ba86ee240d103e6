// `kvasir serve --check-config`.
#pragma once

#include "apps/flags/config_file.h"
#include "apps/serve/serve.h"

namespace kvasir {

// Prints the settings that a parsed command line results in, with their sources, and checks all that can be
// read without loading the model: files of keys and certificates, what flags of text say, and the model's
// header, if the model is there. 0, or 1 after one line on standard error for each fault.
int check_config(const CLI::App& command, const SettingPlaces& places, ServeOptions options);

}  // namespace kvasir
