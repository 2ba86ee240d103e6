// A child process with one member, which elects itself at once.
#include "support/etcd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "base/check.h"

namespace kvasir::test {
namespace {

using std::chrono::steady_clock;

constexpr auto kStartTimeout = std::chrono::seconds(15);
// Another program may take a port between our look and etcd's.
constexpr int kStartTries = 5;

std::string find_etcd() {
  const char* path = ::getenv("PATH");
  std::string folders = path ? path : "";
  folders += ":/usr/bin:/usr/local/bin";
  for (size_t at = 0; at <= folders.size();) {
    const size_t end = std::min(folders.find(':', at), folders.size());
    const std::string file = folders.substr(at, end - at) + "/etcd";
    if (end > at && ::access(file.c_str(), X_OK) == 0) return file;
    at = end + 1;
  }
  return "";
}

int loopback_socket(uint16_t port, sockaddr_in& address) {
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  KV_CHECK(fd >= 0, "no socket");
  return fd;
}

// Ports that are free now.
std::array<uint16_t, 3> free_ports() {
  std::array<uint16_t, 3> ports{};
  std::array<int, 3> sockets{};
  for (size_t i = 0; i < ports.size(); ++i) {
    sockaddr_in address{};
    sockets[i] = loopback_socket(0, address);
    socklen_t size = sizeof(address);
    KV_CHECK(::bind(sockets[i], reinterpret_cast<sockaddr*>(&address), size) == 0, "cannot bind");
    ::getsockname(sockets[i], reinterpret_cast<sockaddr*>(&address), &size);
    ports[i] = ntohs(address.sin_port);
  }
  for (int fd : sockets) ::close(fd);
  return ports;
}

std::string read_log(const std::string& folder) {
  std::ifstream in(folder + "/log");
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

bool EtcdProcess::installed() {
  return !find_etcd().empty();
}

EtcdProcess::EtcdProcess(ClusterTlsFiles tls)
    : tls_(std::move(tls)),
      folder_((std::filesystem::temp_directory_path() / "kvasir-etcd-XXXXXX").string()) {
  KV_CHECK(::mkdtemp(folder_.data()) != nullptr, "cannot create {}", folder_);
  for (int tries = 0; tries < kStartTries; ++tries) {
    const auto ports = free_ports();
    port_ = ports[0];
    peer_port_ = ports[1];
    plain_port_ = tls_.on() ? ports[2] : port_;
    if (start()) return;
    std::filesystem::remove_all(folder_ + "/data");
  }
  KV_CHECK(false, "etcd does not start; its log:\n{}", read_log(folder_));
}

EtcdProcess::~EtcdProcess() {
  kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void EtcdProcess::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdProcess::restart() {
  KV_CHECK(pid_ < 0, "it runs");
  // The port may be in use for a moment yet.
  for (int tries = 0; tries < kStartTries; ++tries) {
    if (start()) return;
  }
  KV_CHECK(false, "etcd does not start again; its log:\n{}", read_log(folder_));
}

void EtcdProcess::freeze() {
  KV_CHECK(::kill(pid_, SIGSTOP) == 0, "cannot stop etcd");
}

void EtcdProcess::thaw() {
  KV_CHECK(::kill(pid_, SIGCONT) == 0, "cannot continue etcd");
}

bool EtcdProcess::start() {
  const std::string plain = fmt::format("http://127.0.0.1:{}", plain_port_);
  const std::string client = tls_.on() ? fmt::format("https://127.0.0.1:{},{}", port_, plain) : plain;
  const std::string peer = fmt::format("http://127.0.0.1:{}", peer_port_);
  std::vector<std::string> words = {find_etcd(),
                                    "--data-dir=" + folder_ + "/data",
                                    "--listen-client-urls=" + client,
                                    "--advertise-client-urls=" + client,
                                    "--listen-peer-urls=" + peer,
                                    "--initial-advertise-peer-urls=" + peer,
                                    "--initial-cluster=default=" + peer,
                                    "--heartbeat-interval=20",
                                    "--election-timeout=200",
                                    "--logger=zap",
                                    "--log-level=error"};
  if (tls_.on()) {
    words.insert(words.end(), {"--cert-file=" + tls_.certfile, "--key-file=" + tls_.keyfile,
                               "--trusted-ca-file=" + tls_.ca_certs, "--client-cert-auth"});
  }
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int log = ::open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  KV_CHECK(log >= 0, "cannot write to {}", folder_);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  KV_CHECK(pid_ >= 0, "cannot fork");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(log);
  for (const auto until = steady_clock::now() + kStartTimeout; steady_clock::now() < until;) {
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return false;
    }
    if (answers()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  kill();
  return false;
}

// A read of the keys needs a leader, as a lease does.
bool EtcdProcess::answers() const {
  return post("/v3/kv/range", R"({"key":"YQ=="})").starts_with("HTTP/1.1 200");
}

std::string EtcdProcess::post(const std::string& path, const std::string& body) const {
  sockaddr_in address{};
  const int fd = loopback_socket(plain_port_, address);
  const timeval timeout{2, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const std::string request =
      fmt::format("POST {} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", path,
                  body.size(), body);
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    std::array<char, 4096> bytes{};
    for (ssize_t n; (n = ::recv(fd, bytes.data(), bytes.size(), 0)) > 0;) {
      answer.append(bytes.data(), static_cast<size_t>(n));
    }
  }
  ::close(fd);
  return answer;
}

std::string EtcdProcess::address() const {
  return fmt::format("etcd://127.0.0.1:{}", port_);
}

}  // namespace kvasir::test
