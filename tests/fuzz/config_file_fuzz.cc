// A file of --config from anywhere, for a command with each kind of flag: it ends in settings that a table
// can show without the secret, or in an error of one line.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/flags/command_line.h"
#include "apps/flags/config_file.h"
#include "apps/flags/settings_table.h"
#include "base/check.h"

namespace {

// In memory, one for each process.
const char* path() {
  static const std::string file = "/dev/shm/kvasir_config_file_fuzz." + std::to_string(getpid());
  return file.c_str();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(path(), std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  CLI::App app("Fuzz", "kvasir");
  CLI::App* serve = app.add_subcommand("serve", "Serve");
  std::string text, json, secret;
  std::vector<std::string> names, origins;
  uint16_t port = 0;
  double share = 0;
  bool cache = false;
  serve->add_option("model,-m,--model", text);
  serve->add_option("--port", port)->check(kvasir::between(0, 65535));
  serve->add_option("--share", share);
  serve->add_option("--level", text)->check(CLI::IsMember({"low", "high"}));
  serve->add_option("--json", json)->type_name(kvasir::kJsonType);
  serve->add_option("--api-key", secret)->type_name(kvasir::kSecretType);
  serve->add_option("--name", names)->allow_extra_args(false);
  serve->add_option("--more", names);
  serve->add_option("--origins", origins)->delimiter(',');
  serve->add_flag("--cache,!--no-cache", cache);
  serve->add_flag_function("--metrics,!--no-metrics", [](int64_t) {});
  kvasir::SettingPlaces places;
  kvasir::add_config_file(*serve, places);
  const std::vector<const char*> arguments = {"kvasir", "serve", "--config", path()};
  std::ostringstream out, err;
  const auto code =
      kvasir::parse_command_line(app, static_cast<int>(arguments.size()), arguments.data(), out, err);
  std::remove(path());
  const std::string line = err.str();
  if (code) {
    KV_CHECK(*code == 1 && line.find('\n') == line.size() - 1, "{}: {}", *code, line);
    KV_CHECK(line.starts_with(std::string("kvasir serve: ") + path() + ":"), "{}", line);
    return 0;
  }
  const std::string table = kvasir::settings_table(*serve, places);
  KV_CHECK(!table.empty(), "no settings");
  if (secret.size() > 20) KV_CHECK(table.find(secret) == std::string::npos, "the secret is shown");
  return 0;
}
