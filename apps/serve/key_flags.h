// The flags of API keys: of `serve`, and the command that makes a key.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "server/server.h"

namespace CLI {
class App;
}

namespace kvasir {

struct KeyOptions {
  std::string plain_file;             // --api-key-file
  std::string file;                   // --api-keys
  std::vector<std::string> of_flags;  // --api-key
};

void add_key_flags(CLI::App& app, KeyOptions& options, ServerOptions& server);

// Reads the files, and sets the server's keys to theirs and those of the flags. On an error the server's
// options stay as they are.
Status read_keys(const KeyOptions& options, ServerOptions& server);

// `kvasir key NAME` prints a new key and its entry for --api-keys. 0, or 1 after one line on standard error.
int run_key(const std::string& name);
void add_key_name(CLI::App& app, std::string& name);

}  // namespace kvasir
