#include "apps/serve/check_config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/flags/settings_table.h"
#include "apps/serve/kv_events.h"
#include "apps/serve/watch_flags.h"
#include "base/file.h"
#include "cluster/transport/socket_address.h"
#include "model/templates/chat_template.h"
#include "runtime/cost_profile.h"
#include "runtime/engine_options.h"
#include "runtime/serving_device.h"
#include "sched/beliefs/length_predictors.h"
#include "sched/registry.h"
#include "server/browser_rules.h"

namespace kvasir {
namespace {

Status check_address(const char* flag, const std::string& host, uint16_t port) {
  const auto address = parse_address(join_address(host, port), Names::kLookUp);
  if (address.ok()) return {};
  return error(address.status().code(), "{}: {}", flag, address.status().message());
}

Status check_chat_template(const std::string& path) {
  if (path.empty()) return {};
  const Result<std::string> source = read_file(path);
  if (!source.ok()) return error(source.status().code(), "--chat-template {}", source.status().message());
  const auto parsed = ChatTemplate::parse(*source);
  if (parsed.ok()) return {};
  return error(parsed.status().code(), "--chat-template {}: {}", path, parsed.status().message());
}

Status check_cost_profile(const std::string& path) {
  return path.empty() ? Status() : load_profile(path).status();
}

// What the types of the cache and of activations say of the model, and the model's header.
Status check_model(const RuntimeOptions& options) {
  Decoder::Options decoder;
  KV_ASSIGN_OR_RETURN(decoder.kv_type, kv_type_from(options.kv_cache_dtype));
  KV_ASSIGN_OR_RETURN(decoder.activation, activation_from(options.activation_type));
  std::error_code ignored;
  if (!std::filesystem::exists(options.model_path, ignored)) {
    fmt::print("model {} is not there: its header was not read\n", options.model_path);
    return {};
  }
  KV_ASSIGN_OR_RETURN(const auto model, open_model(options));
  return make_geometry(options, *model, decoder).status();
}

// Variables that look like those of flags and are none: nothing reads them, so there is no other message.
void print_misspelt_variables(const CLI::App& command) {
  constexpr std::string_view kPrefix = "KVASIR_";
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view variable = text.substr(0, text.find('='));
    if (!variable.starts_with(kPrefix)) continue;
    std::string flag(variable.substr(kPrefix.size()));
    std::transform(flag.begin(), flag.end(), flag.begin(),
                   [](unsigned char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
    const std::string near = nearest_flag(command, flag);
    if (near.empty() || near == flag) continue;
    fmt::print("{} is not read: it is no flag's variable; --{} is the nearest flag\n", variable, near);
  }
}

}  // namespace

int check_config(const CLI::App& command, const SettingPlaces& places, ServeOptions options) {
  fmt::print("{}", settings_table(command, places));
  print_misspelt_variables(command);
  const ServerOptions& server = options.server;
  const RuntimeOptions& runtime = options.runtime;
  bool right = true;
  const auto check = [&right](const Status& status) {
    if (!status.ok()) right = report_failure("serve", status.message()) == 0;
  };
  check(complete_options(options));
  check(check_address("--host", server.host, server.port));
  if (server.admin_port) check(check_address("--admin-host", server.admin_host, *server.admin_port));
  if (server.tls.on()) check(make_tls_context(server.tls).status());
  check(check_browser_options(server.browsers));
  check(check_access_log(options.watch));
  check(check_otlp_endpoint(options.watch));
  check(kv_events_wanted(options).status());
  check(make_policy(runtime.scheduling_policy).status());
  check(check_limits(runtime));
  check(check_build(runtime));
  check(make_length_predictor(runtime.beliefs.length_predictor).status());
  check(check_cost_profile(runtime.beliefs.cost_profile));
  check(check_chat_template(runtime.chat_template_path));
  check(check_model(runtime));
  if (right) fmt::print("the configuration is valid\n");
  return right ? 0 : 1;
}

}  // namespace kvasir
