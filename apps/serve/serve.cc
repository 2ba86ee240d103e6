// Starts the server, prints the two lines that a user needs, and shuts down in order.
#include "apps/serve/serve.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "apps/flags/cluster_flags.h"
#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/flags/slo_flag.h"
#include "apps/serve/signals.h"
#include "base/affinity.h"
#include "base/log.h"
#include "cluster/transport/socket_address.h"
#include "model/files/model_file.h"
#include "runtime/join_cluster.h"
#include "runtime/model_service.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

constexpr Nanos kFlushTimeout = 2 * kNanosPerSecond;

// Every connection takes a descriptor, and the usual soft limit is lower than the hard one. A connection
// beyond the limit would wait instead of being refused, so this raises the limit and then admits no more than
// fit.
void fit_descriptors(uint32_t& max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t soft = std::exchange(limit.rlim_cur, limit.rlim_max);
  if (soft != limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log_warning("the limit on open files could not be raised");
    limit.rlim_cur = soft;
  }
  // Files, peers, and connections that are being refused need descriptors, too.
  const rlim_t others = std::min<rlim_t>(256, limit.rlim_cur / 2);
  if (max_connections <= limit.rlim_cur - others) return;
  log_warning("--max-connections is {}, not {}: the limit on open files is {}", limit.rlim_cur - others,
              max_connections, limit.rlim_cur);
  max_connections = static_cast<uint32_t>(limit.rlim_cur - others);
}

Result<std::vector<std::string>> read_keys(const std::string& path) {
  std::ifstream in(path);
  if (!in) return error(ErrorCode::kIo, "--api-key-file {}: cannot be read", path);
  std::vector<std::string> keys;
  for (std::string line; std::getline(in, line);) {
    const size_t end = line.find_last_not_of(" \t\r");
    if (end == std::string::npos) continue;
    keys.push_back(line.substr(0, end + 1));
  }
  if (keys.empty()) {
    return error(ErrorCode::kInvalidArgument, "--api-key-file {}: no key in it; write one per line", path);
  }
  return keys;
}

Status override_formats(const ServeOptions& options, OutputFormats& formats) {
  KV_RETURN_IF_ERROR(override_tool_parser(options.tool_call_parser, formats));
  return override_reasoning_parser(options.reasoning_parser, formats);
}

Status complete_options(ServeOptions& options) {
  ServerOptions& server = options.server;
  if (!options.api_key_file.empty()) {
    KV_ASSIGN_OR_RETURN(const std::vector<std::string> keys, read_keys(options.api_key_file));
    server.api_keys.insert(server.api_keys.end(), keys.begin(), keys.end());
  }
  for (const std::string& key : server.api_keys) {
    if (key.empty()) return error(ErrorCode::kInvalidArgument, "--api-key: the key is empty");
  }
  if (server.model_names.empty()) {
    server.model_names = {model_name_of(options.runtime.model_path)};
  }
  server.limits.body_grace = from_seconds(options.body_grace_s);
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

// The server's URL, with `host` in place of an address such as 0.0.0.0, to which no client can connect.
std::string url_at(const Server& server, const std::string& host) {
  std::string url = server.url();
  for (const char* any : {"//0.0.0.0:", "//[::]:"}) {
    if (url.find(any) != std::string::npos) return "http://" + join_address(host, server.port());
  }
  return url;
}

// Without a key, only listening on the loopback interface keeps other machines out.
void warn_if_open_to_all(const ServerOptions& options, uint16_t port) {
  const auto address = parse_address(join_address(options.host, port), Names::kLookUp);
  if (!options.api_keys.empty() || (address.ok() && address->is_loopback())) return;
  log_warning(
      "no key is set and --host {} is not the loopback interface: anyone who reaches port {} can use the "
      "server; give --api-key-file FILE (or KVASIR_API_KEY), or --host 127.0.0.1",
      options.host, port);
}

void print_welcome(const ServeOptions& options, const Server& server, const Runtime& runtime,
                   const std::string& sampling, const OutputFormats& formats) {
  const std::string url = url_at(server, "127.0.0.1");
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
  fmt::print("listening on {} (model '{}')\n", server.url(), options.server.model_names.front());
  fmt::print("try: curl {}{} -H 'Content-Type: application/json'{} -d '{}'\n", url,
             chat ? "/v1/chat/completions" : "/v1/completions",
             options.server.api_keys.empty() ? "" : " -H \"Authorization: Bearer $KVASIR_API_KEY\"",
             chat ? R"({"messages":[{"role":"user","content":"What is a raven?"}],"max_tokens":64})"
                  : R"({"prompt":"A raven is","max_tokens":64})");
  std::fflush(stdout);
}

bool lends(const cluster::ClusterNode& node) {
  const std::vector<cluster::PeerLink> links = node.status().links;
  return std::any_of(links.begin(), links.end(), [](const cluster::PeerLink& link) { return link.lent > 0; });
}

// An instance of a cluster first returns what it has borrowed, and recalls what it has lent.
void shut_down(double timeout_s, Server& server, Engine& engine, cluster::ClusterNode* node,
               Signals& signals) {
  log_info("shutting down: requests that run have {} s; a second signal ends them at once", timeout_s);
  server.drain();
  const MonotonicClock clock;
  const Nanos begin = clock.now(), end = begin + from_seconds(timeout_s);
  bool idle = false;
  const auto wait_idle = [&](Nanos until) {
    while (!(idle = server.wait_idle(50 * kNanosPerMilli)) && signals.count() < 2 && clock.now() < until) {
    }
  };
  if (node) {
    // Running requests may still need to borrow.
    wait_idle(begin + (end - begin) / 2);
    node->begin_to_leave();
  }
  wait_idle(end);
  while (node && !node->gone() && signals.count() < 2 && clock.now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (node && lends(*node)) log_warning("peers lose the history that they keep here, and must recompute it");
  if (!idle) log_warning("requests are left; they are told that the server stops");
  engine.stop();
  server.stop(kFlushTimeout);
}

Status serve(ServeOptions& options) {
  KV_RETURN_IF_ERROR(complete_options(options));
  fit_descriptors(options.server.limits.max_connections);
  Signals signals;
  // The server's threads inherit the CPUs of this one, which must not be those of the compute threads.
  const std::vector<int> all_cpus = allowed_cpus();
  const CpuShares shares = cpu_shares(options.runtime);
  if (!shares.others.empty()) keep_on_cpus(shares.others);
  // Before the model is loaded, so that a port that is taken is known at once.
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::start(options.server));
  if (!shares.others.empty()) keep_on_cpus(all_cpus);
  warn_if_open_to_all(options.server, server->port());
  ClusterOptions& flags = options.runtime.cluster;
  if (flags.on()) flags.http_address = url_at(*server, flags.advertise_host);
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, load_runtime(options.runtime));
  const std::unique_ptr<Backend> backend = make_engine_backend(runtime->engine());
  runtime->engine().start();
  ModelService service = make_service(*runtime, *backend);
  service.parse_special = options.parse_special;
  if (!options.override_generation_config.empty()) {
    KV_RETURN_IF_ERROR(override_sampling(options.override_generation_config, service));
  }
  KV_RETURN_IF_ERROR(override_formats(options, service.formats));
  const OutputFormats formats = service.formats;
  const std::string sampling = sampling_text(service);
  server->serve(std::move(service));
  signals.ready();  // before the welcome, at which a script may end us
  print_welcome(options, *server, *runtime, sampling, formats);
  signals.wait();
  shut_down(options.shutdown_timeout_s, *server, runtime->engine(), runtime->joined().node.get(), signals);
  return {};
}

void add_connection_flags(CLI::App& app, ServeOptions& options) {
  HttpLimits& limits = options.server.limits;
  app.add_option("--max-connections", limits.max_connections, "Most open connections; further ones get a 503")
      ->capture_default_str()
      ->check(between(1u, 1'000'000u));
  app.add_option(
      "--max-connections-per-address", limits.max_connections_per_address,
      "Most of these from one IPv4 address or one IPv6 /64 network; further ones get a 429. Behind a proxy, "
      "which is one address, set it to --max-connections (default: 0, three quarters of --max-connections)");
  app.add_option("--min-body-rate", limits.min_body_bytes_per_s,
                 "Least bytes per second at which a request's body must arrive in each --body-grace-period, "
                 "or the request gets a 408; 0: any")
      ->capture_default_str();
  app.add_option("--body-grace-period", options.body_grace_s,
                 "Seconds over which --min-body-rate is measured")
      ->capture_default_str()
      ->check(between(0.1, 120.0));
}

}  // namespace

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
  app.add_option("--api-key", server.api_keys,
                 "Key that clients must send; may be given again (default: none)")
      ->allow_extra_args(false);
  app.add_option("--api-key-file", options.api_key_file, "File with such keys, one per line");
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
      "0.7 and min_p 0.05)");
  app.add_option("--tool-call-parser", options.tool_call_parser,
                 "The form in which the model writes calls of tools: hermes, llama3_json, mistral, granite, "
                 "qwen3_xml, openai, none, or auto: told by its chat template")
      ->capture_default_str();
  app.add_option("--reasoning-parser", options.reasoning_parser,
                 "The form in which the model writes what it thinks before it answers: qwen3, deepseek_r1 "
                 "(begins without a mark), mistral, openai_gptoss, none, or auto: told by its chat template")
      ->capture_default_str();
  app.add_option("--responses-store-bytes", server.limits.responses_store_bytes,
                 "Memory for answers of /v1/responses, which requests with 'previous_response_id' continue; "
                 "the latest used ones are kept; 0: none")
      ->capture_default_str();
  add_connection_flags(app, options);
  app.add_option("--shutdown-timeout", options.shutdown_timeout_s,
                 "Seconds that running requests have left after SIGTERM or SIGINT")
      ->capture_default_str()
      ->check(between(0.0, 86400.0));
  add_runtime_flags(app, options.runtime);
  add_belief_flags(app, options.runtime.beliefs);
  add_cluster_flags(app, options.runtime.cluster);
}

int run_serve(ServeOptions options) {
  const Status status = serve(options);
  return status.ok() ? 0 : report_failure("serve", status.message());
}

}  // namespace kvasir
