#include "apps/serve/key_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <set>
#include <utility>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "server/keys/key_file.h"

namespace kvasir {
namespace {

Result<std::vector<std::string>> read_plain_keys(const std::string& path) {
  std::ifstream in(path);
  if (!in) return error(ErrorCode::kIo, "--api-key-file {}: cannot be read", path);
  std::vector<std::string> keys;
  for (std::string line; std::getline(in, line);) {
    const size_t end = line.find_last_not_of(" \t\r");
    if (end == std::string::npos) continue;
    keys.push_back(line.substr(0, end + 1));
  }
  if (in.bad()) return error(ErrorCode::kIo, "--api-key-file {}: cannot be read to its end", path);
  if (keys.empty()) {
    return error(ErrorCode::kInvalidArgument, "--api-key-file {}: no key in it; write one per line", path);
  }
  return keys;
}

Status check_together(const ServerOptions& server) {
  std::set<std::string> names;
  std::set<KeyDigest> named;
  for (const ApiKey& key : server.named_keys) named.insert(key.digest);
  for (const std::string& key : server.api_keys) {
    if (!named.contains(key_digest(key))) continue;
    return error(ErrorCode::kInvalidArgument,
                 "a key of --api-keys is also one of --api-key or --api-key-file, where it has no limits; "
                 "leave it out there");
  }
  for (const ApiKey& key : all_keys(server)) {
    if (names.insert(key.name).second) continue;
    return error(ErrorCode::kInvalidArgument,
                 "--api-keys: the name '{}' is that of a key of --api-key or --api-key-file; choose another",
                 key.name);
  }
  if (names.size() <= kMaxKeys) return {};
  return error(ErrorCode::kInvalidArgument,
               "--api-key, --api-key-file and --api-keys: more than {} keys in all", kMaxKeys);
}

}  // namespace

void add_key_flags(CLI::App& app, KeyOptions& options, ServerOptions& server) {
  app.add_option("--api-key", options.of_flags,
                 "Key that clients must send; may be given again (default: none)")
      ->type_name(kSecretType)
      ->allow_extra_args(false);
  app.add_option("--api-key-file", options.plain_file, "File with such keys, one per line (default: none)")
      ->type_name(kFileType);
  app.add_option(
         "--api-keys", options.file,
         "YAML file of keys with names and limits, as docs/keys.md has it; 'kvasir key NAME' makes a key. "
         "Read again on SIGHUP (default: none)")
      ->type_name(kFileType);
  app.add_flag(
      "--share-prefixes,!--no-share-prefixes", server.share_prefixes,
      "Reuse a prefix that a request with another key has computed, by which one holder can find out what "
      "another has sent (default: off)");
}

Status read_keys(const KeyOptions& options, ServerOptions& server) {
  ServerOptions next;
  next.api_keys = options.of_flags;
  for (const std::string& key : next.api_keys) {
    if (key.empty()) return error(ErrorCode::kInvalidArgument, "--api-key: the key is empty");
  }
  if (!options.plain_file.empty()) {
    KV_ASSIGN_OR_RETURN(const std::vector<std::string> keys, read_plain_keys(options.plain_file));
    next.api_keys.insert(next.api_keys.end(), keys.begin(), keys.end());
  }
  if (!options.file.empty()) {
    auto keys = read_key_file(options.file);
    if (!keys.ok()) return error(keys.status().code(), "--api-keys {}", keys.status().message());
    next.named_keys = std::move(keys).value();
  }
  KV_RETURN_IF_ERROR(check_together(next));
  server.api_keys = std::move(next.api_keys);
  server.named_keys = std::move(next.named_keys);
  return {};
}

void add_key_name(CLI::App& app, std::string& name) {
  app.add_option("name", name, "Whose key it is, for logs and metrics")->required();
}

int run_key(const std::string& name) {
  if (!valid_key_name(name)) {
    return report_failure(
        "key", fmt::format("'{}': a name has 1 to 64 letters, digits, '.', '_', '-' or '@'", name));
  }
  const std::string key = new_key();
  fmt::print("The key, which is shown only now: {}\nIts entry for the file of --api-keys, below 'keys:':\n{}",
             key, key_entry(name, key));
  return 0;
}

}  // namespace kvasir
