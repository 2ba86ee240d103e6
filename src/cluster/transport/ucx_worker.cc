#include "cluster/transport/ucx_worker.h"

#include <dirent.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <vector>

extern "C" {
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
}

namespace kvasir {
namespace {

// Settings that UCX takes from the environment alone. What the user has set there stays.
void prepare_ucx() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Else the port of a killed process stays taken for a minute.
    setenv("UCX_TCP_CM_REUSEADDR", "y", 0);
    // Without these UCX silently leaves shared memory out where it must report dead peers.
    setenv("UCX_POSIX_ERROR_HANDLING", "y", 0);
    setenv("UCX_SYSV_ERROR_HANDLING", "y", 0);
    // A part of a message goes in one piece.
    setenv("UCX_TCP_TX_SEG_SIZE", "64k", 0);
    setenv("UCX_TCP_RX_SEG_SIZE", "64k", 0);
    // UCX has taken these signals when it was loaded; the program's own handlers come back.
    for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(number);
    // A dead peer is no error here, and standard output is the program's.
    if (!std::getenv("UCX_LOG_LEVEL")) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  });
}

Status ucx_error(const char* what, ucs_status_t status) {
  return error(ErrorCode::kIo, "UCX: {}: {}", what, ucs_status_string(status));
}

struct FolderClose {
  void operator()(DIR* folder) const { closedir(folder); }
};

// UCX keeps its sockets to itself. Those that listen at an address, or have been accepted there.
std::vector<int> sockets_at(const SocketAddress& at, bool listening) {
  std::vector<int> found;
  const std::unique_ptr<DIR, FolderClose> folder(opendir("/proc/self/fd"));
  if (!folder) return found;
  while (const dirent* entry = readdir(folder.get())) {
    // "." and ".." are 0, which is no socket of UCX's.
    const auto fd = static_cast<int>(std::strtol(entry->d_name, nullptr, 10));
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) continue;
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) continue;
    const auto family = bound.storage.ss_family;
    if ((family != AF_INET && family != AF_INET6) || (listens != 0) != listening) continue;
    if (bound.port() != at.port()) continue;
    if (bound.host() == at.host() || (!listening && at.is_any())) found.push_back(fd);
  }
  return found;
}

struct ConfigRelease {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};

Status modify(ucp_config_t* config, const char* key, const std::string& value) {
  const ucs_status_t status = ucp_config_modify(config, key, value.c_str());
  if (status == UCS_OK) return {};
  return error(ErrorCode::kInvalidArgument, "UCX: {}={}: {}", key, value, ucs_status_string(status));
}

}  // namespace

Result<std::unique_ptr<UcxWorker>> UcxWorker::make(const TransportOptions& options,
                                                   const SocketAddress& listen) {
  prepare_ucx();
  ucp_config_t* raw = nullptr;
  if (const auto status = ucp_config_read(nullptr, nullptr, &raw); status != UCS_OK) {
    return ucx_error("its configuration", status);
  }
  const std::unique_ptr<ucp_config_t, ConfigRelease> config(raw);
  std::string devices = options.ucx_devices.empty() ? device_of(listen) : options.ucx_devices;
  KV_RETURN_IF_ERROR(modify(config.get(), "TLS", options.ucx_transports));
  // A device that two machines have under one address, as bridges do, makes connecting hang: never all of
  // them.
  if (!devices.empty()) KV_RETURN_IF_ERROR(modify(config.get(), "NET_DEVICES", devices));
  // Parts are sent whole, by copying (kPartBytes).
  KV_RETURN_IF_ERROR(modify(config.get(), "RNDV_THRESH", "inf"));
  KV_RETURN_IF_ERROR(modify(config.get(), "ZCOPY_THRESH", "inf"));

  std::unique_ptr<UcxWorker> made(new UcxWorker);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (const auto status = ucp_init(&params, config.get(), &made->context_); status != UCS_OK) {
    return error(ErrorCode::kIo,
                 "UCX: transports '{}' on devices '{}': {}: give others by --cluster-ucx-tls or "
                 "--cluster-ucx-devices",
                 options.ucx_transports, devices, ucs_status_string(status));
  }
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const auto status = ucp_worker_create(made->context_, &worker, &made->worker_); status != UCS_OK) {
    return ucx_error("a worker", status);
  }
  if (const auto status = ucp_worker_get_efd(made->worker_, &made->event_fd_); status != UCS_OK) {
    return ucx_error("the worker's event file", status);
  }
  return made;
}

UcxWorker::~UcxWorker() {
  if (listener_) ucp_listener_destroy(listener_);
  if (worker_) ucp_worker_destroy(worker_);
  if (context_) ucp_cleanup(context_);
}

Result<uint16_t> UcxWorker::listen(const SocketAddress& at, ucp_listener_conn_callback_t accept,
                                   void* argument) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {.addr = at.get(), .addrlen = at.length};
  params.conn_handler = {.cb = accept, .arg = argument};
  if (const auto status = ucp_listener_create(worker_, &params, &listener_); status != UCS_OK) {
    return error(ErrorCode::kIo, "--cluster-listen: cannot listen on {}: {}; choose another host or port",
                 join_address(at.host(), at.port()), ucs_status_string(status));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const auto status = ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    return ucx_error("the listener's address", status);
  }
  listening_at_.storage = attributes.sockaddr;
  return listening_at_.port();
}

void UcxWorker::stop_listening() {
  if (!listener_) return;
  stopped_ = sockets_at(listening_at_, true);
  for (const int fd : stopped_) shutdown(fd, SHUT_RD);
}

bool UcxWorker::cut_accepted() {
  if (!listener_) return true;
  std::vector<int> left = sockets_at(listening_at_, false);
  // A listener that has been stopped looks like one of them.
  std::erase_if(left,
                [&](int fd) { return std::find(stopped_.begin(), stopped_.end(), fd) != stopped_.end(); });
  for (const int fd : left) shutdown(fd, SHUT_RDWR);
  return left.empty();
}

void UcxWorker::reject(ucp_conn_request_h request) {
  ucp_listener_reject(listener_, request);
}

Status UcxWorker::set_handler(unsigned id, ucp_am_recv_callback_t handler, void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.cb = handler;
  params.arg = argument;
  const auto status = ucp_worker_set_am_recv_handler(worker_, &params);
  return status == UCS_OK ? Status() : ucx_error("a message handler", status);
}

void UcxWorker::sleep(int wake_fd, Nanos timeout) {
  if (ucp_worker_arm(worker_) != UCS_OK) return;  // there is work, or UCX cannot sleep
  std::array<pollfd, 2> files{{{event_fd_, POLLIN, 0}, {wake_fd, POLLIN, 0}}};
  poll(files.data(), files.size(), static_cast<int>((timeout + kNanosPerMilli - 1) / kNanosPerMilli));
}

std::string ucx_version() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return fmt::format("ucx {}.{}.{}", major, minor, release);
}

}  // namespace kvasir
