#include "apps/view.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/serve/signals.h"
#include "base/log.h"
#include "engine/map_lines.h"
#include "server/server.h"

extern char** environ;

namespace kvasir {
namespace {

// That the file has a map, of a format that the page reads.
Status check_record(const MapRecord& record) {
  std::optional<Status> first;
  KV_RETURN_IF_ERROR(each_map_line(record, [&](const std::string& line) {
    if (!first) first = MapReader().read(line);
    return first->ok();
  }));
  if (first && first->ok()) return {};
  if (first) return error(first->code(), "{}: {}", record.path, first->message());
  return error(ErrorCode::kInvalidArgument,
               "{}: there is no cache map in it; kvasir simulate --record FILE and kvasir serve --log-plans "
               "FILE write one",
               record.path);
}

// Starts the program that opens links, which gets the signals that are blocked here. 0: there is none.
pid_t start_opener(const std::string& url) {
  std::string program = "xdg-open", argument = url;
  char* const argv[] = {program.data(), argument.data(), nullptr};
  posix_spawnattr_t attributes;
  if (::posix_spawnattr_init(&attributes) != 0) return 0;
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, program.c_str(), nullptr, &attributes, argv, environ);
  ::posix_spawnattr_destroy(&attributes);
  return failed == 0 ? child : 0;
}

void warn_of_opener() {
  log_warning("--open: there is no program here that opens links; open the URL above");
}

// Until a signal comes. The opener may stay as long as the browser does.
void wait_for_signal(Signals& signals, pid_t opener) {
  constexpr Nanos kLook = kNanosPerSecond / 10;
  while (opener > 0 && !signals.wait_for(kLook)) {
    int status = 0;
    if (::waitpid(opener, &status, WNOHANG) == 0) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) warn_of_opener();
    opener = 0;
  }
  signals.wait_for(std::nullopt);
}

Status view(const ViewOptions& options) {
  Signals signals;
  ServerOptions server_options;
  server_options.port = options.port;
  server_options.model_names = {"records"};
  server_options.version = KVASIR_VERSION;
  for (const std::string& path : options.files) {
    const MapRecord record{std::filesystem::path(path).filename().string(), path};
    KV_RETURN_IF_ERROR(check_record(record));
    server_options.records.push_back(record);
  }
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::start(server_options));
  signals.ready();
  const std::string url = server->url() + "/cache";
  fmt::print("{}\n", url);
  std::fflush(stdout);
  const pid_t opener = options.open ? start_opener(url) : 0;
  if (options.open && opener == 0) warn_of_opener();
  wait_for_signal(signals, opener);
  server->stop(0);
  return {};
}

}  // namespace

void add_view_flags(CLI::App& app, ViewOptions& options) {
  app.add_option("files", options.files,
                 "Files that kvasir simulate --record or kvasir serve --log-plans has written; two are shown "
                 "side by side")
      ->type_name(kFileType)
      ->required()
      ->expected(1, 2);
  app.add_option("--port", options.port, "Port on 127.0.0.1; 0: any free one")
      ->capture_default_str()
      ->check(between(0, 65535));
  app.add_flag("--open", options.open, "Open the page in a browser (xdg-open)");
}

int run_view(const ViewOptions& options) {
  const Status status = view(options);
  return status.ok() ? 0 : report_failure("view", status.message());
}

}  // namespace kvasir
