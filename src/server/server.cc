// Listening, accepting, shutdown.
#include "server/server.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <ctime>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "server/connection.h"
#include "server/connection_quota.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAcceptRetry = std::chrono::milliseconds(100);
// The connections over the limit that get an answer. Further ones are only closed.
constexpr size_t kMaxRefusing = 64;

std::string host_for_url(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

// The key by which connections are counted. An IPv6 client usually has a whole /64 network, whose addresses
// count as one.
std::string client_key(asio::ip::address address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  }
  if (address.is_v4()) {
    const auto bytes = address.to_v4().to_bytes();
    return {bytes.begin(), bytes.end()};
  }
  const auto bytes = address.to_v6().to_bytes();
  return {bytes.begin(), bytes.begin() + 8};
}

ApiError refusal(ConnectionQuota::Verdict verdict) {
  if (verdict == ConnectionQuota::Verdict::kFull) {
    return unavailable("too many connections are open; try again", "overloaded", 1);
  }
  ApiError e = unavailable("too many connections are open from this address; close some and try again",
                           "too_many_connections", 1);
  e.status = 429;
  return e;
}

}  // namespace

class Server::Impl final : public ServerContext {
 public:
  explicit Impl(ServerOptions server_options)
      : ServerContext(std::move(server_options)),
        io_(std::make_shared<asio::io_context>(1)),
        work_(io_->get_executor()),
        acceptor_(*io_),
        accept_retry_(*io_),
        quota_(options.limits.max_connections, options.limits.max_connections_per_address) {
    created = static_cast<int64_t>(std::time(nullptr));
    // Sinks may call this after the server has been destroyed. They share the queue, which then does not run.
    post = [io = io_](std::function<void()> f) { asio::post(*io, std::move(f)); };
  }

  Status listen() {
    error_code ec;
    tcp::resolver resolver(*io_);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) {
      return error(ErrorCode::kInvalidArgument,
                   "cannot resolve the host '{}': {}; give an address of this machine", options.host,
                   ec.message());
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(asio::socket_base::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) {
      return error(ErrorCode::kIo, "cannot listen on {}:{}: {}; choose another host or port",
                   host_for_url(options.host), options.port, ec.message());
    }
    port_ = acceptor_.local_endpoint(ec).port();
    return {};
  }

  void run() {
    accept();
    thread_ = std::thread([this] {
      // A connection catches what its own request throws. This is for the rest, such as no memory for a
      // timer.
      for (;;) {
        try {
          io_->run();
          return;
        } catch (const std::exception& e) {
          log_error("the I/O thread goes on after: {}", e.what());
        }
      }
    });
  }

  void serve(ModelService model) {
    post([this, ready = std::make_shared<const ModelService>(std::move(model))] { service = ready; });
  }
  void drain() {
    post([this] { draining = true; });
  }
  bool wait_idle(Nanos timeout) {
    if (!thread_.joinable()) return true;
    // Waits for what was posted before, such as a drain().
    run_on_io([] {});
    std::unique_lock lock(active_mutex_);
    return active_changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [this] { return active_ == 0; });
  }
  void stop(Nanos flush_timeout);

  uint16_t port() const { return port_; }

  void request_started() override {
    const std::lock_guard lock(active_mutex_);
    ++active_;
  }
  void request_ended() override {
    {
      const std::lock_guard lock(active_mutex_);
      --active_;
    }
    active_changed_.notify_all();
  }
  void forget(Connection* connection) override {
    const auto it = connections_.find(connection);
    if (it == connections_.end()) return;
    if (it->second.admitted) {
      quota_.release(it->second.client);
    } else {
      --refusing_;
    }
    // Destroyed later, because one of its completion handlers may be running.
    asio::post(*io_, [gone = std::move(it->second.connection)] {});
    connections_.erase(it);
    if (connections_.empty() && on_empty_) std::exchange(on_empty_, nullptr)();
  }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code ec, tcp::socket socket) {
      if (stopping_ || ec == asio::error::operation_aborted) return;
      if (ec) {
        // Most likely there are no descriptors left, until a connection closes.
        accept_retry_.expires_after(kAcceptRetry);
        accept_retry_.async_wait([this](error_code aborted) {
          if (!aborted) accept();
        });
        return;
      }
      welcome(std::move(socket));
      accept();
    });
  }

  void welcome(tcp::socket socket) {
    error_code ec;
    const tcp::endpoint remote = socket.remote_endpoint(ec);
    if (ec) return;  // it has disconnected already
    std::string client = client_key(remote.address());
    const ConnectionQuota::Verdict verdict = quota_.admit(client);
    const bool admitted = verdict == ConnectionQuota::Verdict::kAdmitted;
    if (!admitted) {
      counters->connections_refused.fetch_add(1, std::memory_order_relaxed);
      if (refusing_ >= kMaxRefusing) return;  // the socket closes here
      ++refusing_;
    }
    auto connection = std::make_shared<Connection>(std::move(socket), this);
    connections_.emplace(connection.get(), Held{connection, std::move(client), admitted});
    if (admitted) {
      connection->start();
    } else {
      connection->refuse(refusal(verdict));
    }
  }

  // Runs `f` on the I/O thread and waits for it. REQUIRES: called from another thread; the I/O thread runs.
  void run_on_io(std::function<void()> f) {
    std::promise<void> done;
    asio::post(*io_, [&] {
      f();
      done.set_value();
    });
    done.get_future().wait();
  }

  struct Held {
    std::shared_ptr<Connection> connection;
    std::string client;
    bool admitted;  // counted by the quota; false: it only gets a refusal
  };

  const std::shared_ptr<asio::io_context> io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_retry_;
  uint16_t port_ = 0;
  std::thread thread_;

  // Owned by the I/O thread.
  std::unordered_map<Connection*, Held> connections_;
  ConnectionQuota quota_;
  size_t refusing_ = 0;  // those of connections_ that are not admitted
  std::function<void()> on_empty_;
  bool stopping_ = false;

  std::mutex active_mutex_;
  std::condition_variable active_changed_;
  size_t active_ = 0;  // guarded by active_mutex_
};

void Server::Impl::stop(Nanos flush_timeout) {
  if (!thread_.joinable()) return;
  std::promise<void> empty;
  run_on_io([&] {
    stopping_ = true;
    draining = true;
    error_code ignored;
    acceptor_.close(ignored);
    accept_retry_.cancel();
    on_empty_ = [&] { empty.set_value(); };
    auto all = connections_;
    for (auto& [connection, held] : all) connection->close_when_done();
    if (connections_.empty() && on_empty_) std::exchange(on_empty_, nullptr)();
  });
  empty.get_future().wait_for(std::chrono::nanoseconds(flush_timeout));
  run_on_io([&] {
    on_empty_ = nullptr;
    auto all = connections_;
    for (auto& [connection, held] : all) connection->close();
  });
  stop_workers();
  // The I/O thread ends after what the workers and the closed connections have posted.
  work_.reset();
  thread_.join();
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  stop(0);
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  if (options.model_names.empty()) return error(ErrorCode::kInvalidArgument, "the served model needs a name");
  auto impl = std::make_unique<Impl>(std::move(options));
  KV_RETURN_IF_ERROR(impl->listen());
  impl->run();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::serve(ModelService service) {
  impl_->serve(std::move(service));
}
uint16_t Server::port() const {
  return impl_->port();
}
std::string Server::url() const {
  return fmt::format("http://{}:{}", host_for_url(impl_->options.host), impl_->port());
}
void Server::drain() {
  impl_->drain();
}
bool Server::wait_idle(Nanos timeout) {
  return impl_->wait_idle(timeout);
}
void Server::stop(Nanos flush_timeout) {
  impl_->stop(flush_timeout);
}

}  // namespace kvasir
