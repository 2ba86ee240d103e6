// `kvasir view`: a record of the cache map in a browser, or two beside one another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvasir {

struct ViewOptions {
  std::vector<std::string> files;  // one or two
  uint16_t port = 0;               // 0: any free one
  bool open = false;               // with the program that opens links here
};

void add_view_flags(CLI::App& app, ViewOptions& options);

// Serves the page on the loopback interface until SIGINT or SIGTERM. 0; else 1 after one line on standard
// error.
int run_view(const ViewOptions& options);

}  // namespace kvasir
