// Starts the server, prints the two lines that a user needs, and shuts down in order.
#include "apps/serve/serve.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "apps/flags/cluster_flags.h"
#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/flags/slo_flag.h"
#include "apps/serve/http_flags.h"
#include "apps/serve/kv_events.h"
#include "apps/serve/reloads.h"
#include "apps/serve/signals.h"
#include "apps/serve/systemd.h"
#include "base/affinity.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "cluster/transport/socket_address.h"
#include "engine/live_map.h"
#include "model/files/model_file.h"
#include "runtime/device_limits.h"
#include "runtime/join_cluster.h"
#include "runtime/model_service.h"
#include "runtime/open_cuda_gpu.h"
#include "runtime/serving_device.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

constexpr Nanos kFlushTimeout = 2 * kNanosPerSecond;

Status override_formats(const ServeOptions& options, OutputFormats& formats) {
  KV_RETURN_IF_ERROR(override_tool_parser(options.tool_call_parser, formats));
  return override_reasoning_parser(options.reasoning_parser, formats);
}

// A socket that is open already wins over the flags.
Status use_inherited_socket(ServerOptions& server) {
  KV_ASSIGN_OR_RETURN(const std::optional<OpenSocket> open, inherited_socket());
  if (!open) return {};
  server.host = open->host;
  server.port = open->port;
  server.listening_fd = open->fd;
  return {};
}

bool is_loopback(const std::string& host, uint16_t port) {
  const auto address = parse_address(join_address(host, port), Names::kLookUp);
  return address.ok() && address->is_loopback();
}

// Without a key, only listening on the loopback interface keeps other machines out, or certificates of
// clients.
void warn_if_open_to_all(const ServerOptions& options, const Server& server) {
  const uint16_t port = server.port();
  const bool certificates = !options.tls.ca_certs.empty();
  const bool open_admin = options.admin_port && !(certificates && options.admin_client_certs);
  if (open_admin && !is_loopback(options.admin_host, server.admin_port())) {
    log_warning(
        "--admin-host {} is not the loopback interface: anyone who reaches port {} can make the server drain",
        options.admin_host, server.admin_port());
  }
  if (certificates || needs_key(options) || is_loopback(options.host, port)) return;
  log_warning(
      "no key is set and --host {} is not the loopback interface: anyone who reaches port {} can use the "
      "server; give --api-key-file FILE (or KVASIR_API_KEY), or --host 127.0.0.1",
      options.host, port);
}

void print_welcome(const ServeOptions& options, const Server& server, const Runtime& runtime,
                   const std::string& sampling, const OutputFormats& formats) {
  const std::string url = url_at(server.url(), "127.0.0.1");
  const bool chat = runtime.chat_template() != nullptr;
  fmt::print("{}\n", runtime.memory_report());
  const bool told = !runtime.sampling_defaults().text().empty();
  const bool overridden = !options.override_generation_config.empty();
  fmt::print("sampling: {} ({}), where a request says nothing else\n", sampling,
             overridden ? "--override-generation-config"
             : told     ? "the model's"
                        : "the model says nothing");
  if (chat) {
    const bool tools = !formats.tools_variable.empty();
    fmt::print("tool calls: {}; reasoning: {}\n",
               tools ? tool_parser_name(formats.tools) : "none, as the chat template has no tools",
               reasoning_parser_name(formats.reasoning));
  }
  if (options.server.admin_port) fmt::print("admin port: {}\n", server.admin_url());
  fmt::print("listening on {} (model '{}')\n", server.url(), options.server.model_names.front());
  if (chat && options.server.web) fmt::print("chat: {}/ in a browser\n", url);
  fmt::print("try: curl {}{} -H 'Content-Type: application/json'{} -d '{}'\n", url,
             chat ? "/v1/chat/completions" : "/v1/completions",
             !needs_key(options.server) ? "" : " -H \"Authorization: Bearer $KVASIR_API_KEY\"",
             chat ? R"({"messages":[{"role":"user","content":"What is a raven?"}],"max_tokens":64})"
                  : R"({"prompt":"A raven is","max_tokens":64})");
  std::fflush(stdout);
}

bool lends(const cluster::ClusterNode& node) {
  const std::vector<cluster::PeerLink> links = node.status().links;
  return std::any_of(links.begin(), links.end(), [](const cluster::PeerLink& link) { return link.lent > 0; });
}

// /readyz says that the end comes, and requests are served on, until balancers have taken note.
void announce_end(double delay_s, Server& server, const Signals& signals, Watchdog& watchdog) {
  server.announce_end();
  if (delay_s > 0) log_info("shutting down: in {} s new requests are refused; /readyz says so now", delay_s);
  const MonotonicClock clock;
  const Nanos end = clock.now() + from_seconds(delay_s);
  while (signals.count() < 2 && clock.now() < end) {
    watchdog.beat();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// An instance of a cluster first returns what it has borrowed, and recalls what it has lent.
void shut_down(double timeout_s, Server& server, Engine& engine, cluster::ClusterNode* node, Signals& signals,
               Watchdog& watchdog) {
  server.drain();
  log_info("shutting down: requests that run have {} s; a second signal ends them at once", timeout_s);
  const MonotonicClock clock;
  const Nanos begin = clock.now(), end = begin + from_seconds(timeout_s);
  bool idle = false;
  const auto wait_idle = [&](Nanos until) {
    while (!(idle = server.wait_idle(50 * kNanosPerMilli)) && signals.count() < 2 && clock.now() < until) {
      watchdog.beat();
    }
  };
  if (node) {
    // Running requests may still need to borrow.
    wait_idle(begin + (end - begin) / 2);
    node->begin_to_leave();
  }
  wait_idle(end);
  while (node && !node->gone() && signals.count() < 2 && clock.now() < end) {
    watchdog.beat();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (node && lends(*node)) log_warning("peers lose the history that they keep here, and must recompute it");
  if (!idle) log_warning("requests are left; they are told that the server stops");
  engine.stop();
  server.stop(kFlushTimeout);
}

void add_reloads(const ServeOptions& options, const std::shared_ptr<Server>& server, Reloads& reloads) {
  if (options.server.tls.on()) {
    reloads.add("certificates", [weak = std::weak_ptr<Server>(server)] {
      const auto serving = weak.lock();
      return serving ? serving->reload() : Status();
    });
  }
  if (const ClusterOptions& cluster = options.runtime.cluster; cluster.tls) {
    reloads.add("cluster's certificates",
                [tls = cluster.tls, name = cluster.name] { return tls->reload(name); });
  }
  if (options.keys.file.empty() && options.keys.plain_file.empty()) return;
  reloads.add("API keys", [weak = std::weak_ptr<Server>(server), keys = options.keys] {
    ServerOptions read;
    KV_RETURN_IF_ERROR(read_keys(keys, read));
    if (const auto serving = weak.lock()) serving->set_keys(all_keys(read));
    return Status();
  });
}

Status serve(ServeOptions& options) {
  // The reader of a log or of standard error may leave.
  std::signal(SIGPIPE, SIG_IGN);
  give_back_large_blocks();
  KV_RETURN_IF_ERROR(check_device(options.runtime));
  KV_RETURN_IF_ERROR(check_build(options.runtime));
  if (is_on_gpu(options.runtime)) prepare_cuda();
  KV_RETURN_IF_ERROR(complete_options(options));
  KV_RETURN_IF_ERROR(use_inherited_socket(options.server));
  fit_descriptors(options.server.limits.max_connections);
  std::optional<LogThread> log_thread;  // ends last, since all threads log
  const auto reloads = std::make_shared<Reloads>();
  const auto state = std::make_shared<ServiceState>();
  Signals signals([state, reloads] { state->reload([&] { reloads->run(); }); });
  // The server is destroyed first, because it refers to the others; so does the engine to the events.
  std::unique_ptr<KvEventPublisher> kv_events;
  std::unique_ptr<LiveMap> map;
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<Server> server;
  // The server's threads inherit the CPUs of this one, which must not be those of the compute threads.
  const std::vector<int> all_cpus = allowed_cpus();
  const CpuShares shares = cpu_shares(options.runtime);
  if (!shares.others.empty()) keep_on_cpus(shares.others);
  log_thread.emplace();
  // Before the model is loaded, so that a port that is taken is known at once.
  KV_RETURN_IF_ERROR(start_watching(options.watch, options.server, *reloads));
  KV_ASSIGN_OR_RETURN(server, Server::start(options.server));
  KV_ASSIGN_OR_RETURN(kv_events, start_kv_events(options));
  if (options.server.web) {
    map = std::make_unique<LiveMap>(
        MapLabels{"serve", options.server.model_names.front(), options.runtime.scheduling_policy});
    options.runtime.map = map.get();
  }
  if (!shares.others.empty()) keep_on_cpus(all_cpus);
  warn_if_open_to_all(options.server, *server);
  add_reloads(options, server, *reloads);
  ClusterOptions& flags = options.runtime.cluster;
  if (flags.on()) {
    flags.http_address = url_at(server->url(), flags.advertise_host);
    flags.status_address =
        server->has_public_metrics() ? flags.http_address : url_at(server->admin_url(), flags.advertise_host);
  }
  KV_ASSIGN_OR_RETURN(runtime, load_runtime(options.runtime));
  backend = make_engine_backend(runtime->engine());
  runtime->engine().start();
  ModelService service = make_service(*runtime, *backend);
  service.parse_special = options.parse_special;
  service.map = map.get();
  override_pooling(options.pooling, service);
  if (!options.override_generation_config.empty()) {
    KV_RETURN_IF_ERROR(override_sampling(options.override_generation_config, service));
  }
  KV_RETURN_IF_ERROR(override_formats(options, service.formats));
  if (kv_events) add_kv_event_metrics(*kv_events, service);
  if (const cluster::ClusterNode* node = runtime->joined().node.get()) {
    service.cluster_status = [node] { return node->status_text(); };
    service.unready = [node] {
      return node->is_member() ? ""
                               : "this instance has lost its place in the cluster; it joins again by itself";
    };
  }
  const OutputFormats formats = service.formats;
  const std::string sampling = sampling_text(service);
  server->serve(std::move(service));
  signals.ready();  // before the welcome, at which a script may end us
  print_welcome(options, *server, *runtime, sampling, formats);
  state->ready();
  // A beat says that the port's thread answers, too, and that /livez gives 200.
  Watchdog watchdog;
  while (!signals.wait_for(watchdog.period())) {
    server->wait_idle(0);
    const bool is_alive =
        runtime->failure().empty() && backend->silent_for() <= options.server.liveness_timeout;
    if (is_alive) watchdog.beat();
  }
  state->stopping();
  announce_end(options.drain_delay_s, *server, signals, watchdog);
  shut_down(options.shutdown_timeout_s, *server, runtime->engine(), runtime->joined().node.get(), signals,
            watchdog);
  return {};
}

}  // namespace

Status complete_options(ServeOptions& options) {
  ServerOptions& server = options.server;
  KV_RETURN_IF_ERROR(read_keys(options.keys, server));
  if (server.model_names.empty()) {
    server.model_names = {model_name_of(options.runtime.model_path)};
  }
  KV_ASSIGN_OR_RETURN(server.slo.otherwise, parse_slo("--default-slo", options.default_slo));
  KV_ASSIGN_OR_RETURN(server.slo.tightest, parse_slo("--tightest-slo", options.tightest_slo));
  server.reads_priority = policy_traits(options.runtime.scheduling_policy).reads_priority;
  server.version = KVASIR_VERSION;
  if (!options.override_generation_config.empty()) {
    // What is wrong with it is said before a model is loaded.
    ModelService none;
    KV_RETURN_IF_ERROR(override_sampling(options.override_generation_config, none));
  }
  OutputFormats formats;
  KV_RETURN_IF_ERROR(override_formats(options, formats));
  if (options.runtime.cluster.on()) return complete_cluster_options(options.runtime.cluster);
  return {};
}

void add_serve_flags(CLI::App& app, ServeOptions& options) {
  ServerOptions& server = options.server;
  app.add_option("--host", server.host, "Address to listen on; 0.0.0.0: all addresses of this machine")
      ->capture_default_str();
  app.add_option("--port", server.port, "Port to listen on; 0: any free one")
      ->capture_default_str()
      ->check(between(0, 65535));
  app.add_option("--served-model-name", server.model_names,
                 "Name that clients use; may be given again for further names (default: the file's)")
      ->allow_extra_args(false);
  add_key_flags(app, options.keys, server);
  app.add_option("--default-slo", options.default_slo,
                 "Latency bounds in milliseconds for requests that state none, such as 'ttft:500 tpot:50' "
                 "(keys ttft, tpot, tbt, e2el; default: none)");
  app.add_option("--tightest-slo", options.tightest_slo,
                 "The tightest bounds that a request may ask for; tighter ones become these (default: any)");
  app.add_flag(
      "--parse-special,!--no-parse-special", options.parse_special,
      "Recognise control tokens such as <|im_end|> in the text of messages and prompts, for requests that do "
      "not set 'parse_special'; a message can then forge turns (default: off, only those that the chat "
      "template writes)");
  app.add_option(
         "--override-generation-config", options.override_generation_config,
         "Sampling of requests that do not say otherwise, as a JSON object such as "
         R"('{"temperature": 0.2, "top_p": 0.9}' (default: what the model's files say, else temperature )"
         "0.7 and min_p 0.05)")
      ->type_name(kJsonType);
  app.add_option(
         "--pooling", options.pooling,
         "What /v1/embeddings makes a vector of: last (the hidden row of the last token), mean (of all "
         "tokens), none, or auto: what the model's files say")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "none", "last", "mean"}));
  app.add_option("--tool-call-parser", options.tool_call_parser,
                 "The form in which the model writes calls of tools: hermes, llama3_json, mistral, granite, "
                 "qwen3_xml, openai, none, or auto: told by its chat template")
      ->capture_default_str()
      ->check(
          suggests({"auto", "hermes", "llama3_json", "mistral", "granite", "qwen3_xml", "openai", "none"}));
  app.add_option(
         "--reasoning-parser", options.reasoning_parser,
         "The form in which the model writes what it thinks before it answers: qwen3, deepseek_r1 "
         "(begins without a mark), granite, mistral, openai_gptoss, none, or auto: told by its chat template")
      ->capture_default_str()
      ->check(suggests({"auto", "qwen3", "deepseek_r1", "granite", "mistral", "openai_gptoss", "none"}));
  app.add_option("--responses-store-bytes", server.limits.responses_store_bytes,
                 "Memory for answers of /v1/responses, which requests with 'previous_response_id' continue; "
                 "the latest used ones are kept; 0: none")
      ->capture_default_str();
  add_http_flags(app, server);
  add_watch_flags(app, options.watch, server);
  add_kv_event_flags(app, options);
  app.add_option(
         "--drain-delay", options.drain_delay_s,
         "Seconds after SIGTERM or SIGINT in which /readyz gets a 503 and requests are still served, so "
         "that balancers can turn away first; 10 in Kubernetes")
      ->capture_default_str()
      ->check(between(0.0, 3600.0));
  app.add_option("--shutdown-timeout", options.shutdown_timeout_s,
                 "Seconds that running requests have left after --drain-delay; a second signal ends both")
      ->capture_default_str()
      ->check(between(0.0, 86400.0));
  add_runtime_flags(app, options.runtime);
  add_belief_flags(app, options.runtime.beliefs);
  add_cluster_flags(app, options.runtime.cluster);
  app.add_flag("--check-config", options.check_config,
               "Print the settings with their sources, read the files that they name and the model's header, "
               "serve nothing; exit with 0 if all is right, else with 1")
      ->configurable(false);
}

int run_serve(ServeOptions options) {
  set_log(options.watch.log_format, options.watch.log_level);
  const Status status = serve(options);
  return status.ok() ? 0 : report_failure("serve", status.message());
}

}  // namespace kvasir
