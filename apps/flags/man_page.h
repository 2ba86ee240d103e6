// The manual page, made from the table of commands and flags that --help shows.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace kvasir {

// kvasir.1 as roff, with the macros of man(7). REQUIRES: app is the whole command line
std::string man_page(const CLI::App& app, std::string_view version);

}  // namespace kvasir
