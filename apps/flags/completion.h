// Completion of the command line by a shell, made from the table of commands and flags, so that it has what
// the binary has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace kvasir {

// The shells that there are scripts for: bash, fish, zsh.
std::vector<std::string> completion_shells();

// The script that completes commands, flags, values of flags that have choices, and files where a flag takes
// one. REQUIRES: `shell` is one of completion_shells(); app is the whole command line
std::string completion_script(const CLI::App& app, std::string_view shell);

}  // namespace kvasir
