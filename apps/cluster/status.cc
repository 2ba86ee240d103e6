#include "apps/cluster/status.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <mutex>
#include <utility>
#include <vector>

#include "apps/cluster/report.h"
#include "apps/flags/cluster_flags.h"
#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "cluster/membership/cluster_keys.h"
#include "cluster/membership/etcd_address.h"
#include "server/http_caller.h"

namespace kvasir {
namespace {

constexpr uint64_t kMostStatusBytes = 1 << 20;
constexpr int kAskedAtOnce = 32;

Result<std::string> status_of(const Member& member, const ClusterStatusOptions& options) {
  const auto at_its_address = [&](const Status& why) {
    return error(why.code(), "no status from {}: {}", member.status_address, why.message());
  };
  Result<HttpUrl> url = parse_http_url(member.status_address + "/cluster/status");
  if (!url.ok()) return at_its_address(url.status());
  const ClusterTlsFiles& files = options.tls_files;
  const auto client = HttpCaller::create(*std::move(url), [] { return false; },
                                         {files.ca_certs, files.certfile, files.keyfile});
  if (!client.ok()) return at_its_address(client.status());
  Result<HttpCallerReply> answer = (*client)->get(from_seconds(options.timeout_s), kMostStatusBytes);
  if (!answer.ok()) return at_its_address(answer.status());
  if (answer->status == 200) return std::move(answer->body);
  return at_its_address(error(ErrorCode::kUnavailable, "it answers {}", answer->status));
}

ClusterStatuses ask_all(const std::vector<Member>& members, const ClusterStatusOptions& options) {
  std::mutex mutex;
  ClusterStatuses out;
  run_parallel(members.size(), kAskedAtOnce, [&](size_t i) {
    if (members[i].status_address.empty()) return;
    Result<std::string> status = status_of(members[i], options);
    const std::lock_guard lock(mutex);
    out.emplace(members[i].id.instance, std::move(status));
  });
  return out;
}

Status print_cluster(const ClusterStatusOptions& options) {
  const Result<EtcdAddress> address = parse_etcd_address(options.directory);
  if (!address.ok()) return error(address.status().code(), "--cluster: {}", address.status().message());
  std::shared_ptr<const ClusterTls> tls;
  if (options.tls_files.on()) {
    KV_ASSIGN_OR_RETURN(tls, ClusterTls::load(options.tls_files));
  }
  KV_RETURN_IF_ERROR(check_endpoints(*address, tls != nullptr));
  const Result<ClusterContents> contents = read_cluster(*address, from_seconds(options.timeout_s), tls);
  if (!contents.ok()) {
    return error(contents.status().code(), "--cluster {}: {}", options.directory,
                 contents.status().message());
  }
  const ClusterReport report = report_of(address->cluster, *contents, ask_all(contents->members, options));
  if (options.json) {
    fmt::print("{}\n", to_json(report));
  } else {
    fmt::print("{}", to_table(report));
  }
  return {};
}

}  // namespace

void add_cluster_status_flags(CLI::App& app, ClusterStatusOptions& options) {
  app.add_option("--cluster", options.directory,
                 "Directory of the cluster, etcd://HOST:2379[,HOST:2379][/NAME]: as for serve")
      ->required();
  add_cluster_tls_flags(app, options.tls_files);
  app.add_flag("--json", options.json, "One JSON document, rather than tables");
  app.add_option("--timeout", options.timeout_s,
                 "Seconds that an etcd endpoint, or a member, may take for an answer")
      ->check(between(0.01, 3600.0))
      ->capture_default_str();
}

int run_cluster_status(const ClusterStatusOptions& options) {
  const Status status = print_cluster(options);
  return status.ok() ? 0 : report_failure("cluster status", status.message());
}

}  // namespace kvasir
