// The file of --api-keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/keys/api_key.h"

namespace kvasir {

// The most keys of a server: each has its lines in /metrics.
inline constexpr size_t kMaxKeys = 1000;

// YAML: a list `keys` of maps with `name`, `sha256` and, where they differ from the defaults, the other
// fields of docs/keys.md. `path` is for messages. kInvalidArgument: one line with file, line, column,
// entry and field.
Result<std::vector<ApiKey>> parse_key_file(const std::string& text, std::string_view path);
// As parse_key_file; kNotFound: it cannot be read.
Result<std::vector<ApiKey>> read_key_file(const std::string& path);

// A new key from the system's random numbers, "kv-" and 43 characters of base64url: 256 bits.
std::string new_key();
// Its entry in such a file. REQUIRES: valid_key_name(name)
std::string key_entry(std::string_view name, std::string_view key);
// 1 to 64 of the letters, digits, '.', '_', '-' and '@'.
bool valid_key_name(std::string_view name);

}  // namespace kvasir
