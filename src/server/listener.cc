// Accepting within the limits, and shutdown.
#include "server/listener.h"

#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/post.hpp>
#include <ctime>
#include <future>
#include <latch>
#include <new>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/patiently.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAcceptRetry = std::chrono::milliseconds(100);
constexpr auto kPause = std::chrono::milliseconds(10);  // before the next try to get memory
// The connections over the limit that get an answer. Further ones are only closed.
constexpr size_t kMaxRefusing = 64;

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

std::string host_for_url(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

Listener::Listener(ServerOptions server_options, std::vector<Endpoint> table,
                   std::shared_ptr<HttpCounters> shared_counters, std::shared_ptr<KeyRing> key_ring)
    : ServerContext(std::move(server_options), std::move(shared_counters), std::move(key_ring)),
      table_(std::move(table)),
      io_(std::make_shared<asio::io_context>(1)),
      work_(io_->get_executor()),
      acceptor_(*io_),
      accept_retry_(*io_),
      quota_(options.limits.max_connections, options.limits.max_connections_per_address) {
  endpoints = table_;
  created = static_cast<int64_t>(std::time(nullptr));
  // Sinks may call this after the server has been destroyed. They share the queue, which then does not run.
  post = [io = io_](std::function<void()> f) { asio::post(*io, std::move(f)); };
}

Status Listener::listen() {
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
  if (options.listening_fd >= 0) {
    acceptor_.assign(endpoint.protocol(), options.listening_fd, ec);
  } else {
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(asio::socket_base::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
  }
  if (ec) {
    return error(ErrorCode::kIo, "cannot listen on {}:{}: {}; choose another host or port",
                 host_for_url(options.host), options.port, ec.message());
  }
  const tcp::endpoint bound = acceptor_.local_endpoint(ec);
  port_ = bound.port();
  browsers = BrowserRules(options.browsers, needs_key(options),
                          {host_for_url(options.host), asio::ip::host_name(ec)});
  return {};
}

void Listener::run() {
  thread_ = std::thread([this] {
    // A connection catches what its own request throws. This is for the rest, such as no memory to take the
    // next connection: whether one is being waited for is then not known.
    for (;;) {
      try {
        error_code ignored;
        acceptor_.cancel(ignored);
        if (accepts()) accept();
        io_->run();
        return;
      } catch (const std::exception& e) {
        log_error("the I/O thread goes on after: {}", e.what());
        std::this_thread::sleep_for(kPause);
      }
    }
  });
}

void Listener::set_tls(TlsContext tls) {
  patiently([&] { post([this, tls] { tls_ = tls; }); });
}

void Listener::serve(std::shared_ptr<const ModelService> model) {
  patiently([&] {
    post([this, model] {
      service = model;
      if (options.listening_fd >= 0 && accepts()) accept();
    });
  });
}

void Listener::announce_end() {
  patiently([this] { post([this] { leaving = true; }); });
}

void Listener::drain() {
  patiently([this] {
    post([this] {
      draining = true;
      error_code ignored;
      if (!accepts()) acceptor_.cancel(ignored);
      const auto all = patiently([this] { return connections_; });  // those that end leave the table
      for (const auto& [connection, held] : all) connection->end_endless();
    });
  });
}

bool Listener::accepts() const {
  if (stopping_) return false;
  return options.listening_fd < 0 || (service && !(leaving && draining));
}

bool Listener::wait_idle(Nanos timeout) {
  if (!thread_.joinable()) return true;
  // Waits for what was posted before, such as a drain().
  run_on_io([] {});
  std::unique_lock lock(active_mutex_);
  return active_changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [this] { return active_ == 0; });
}

size_t Listener::running() const {
  const std::lock_guard lock(active_mutex_);
  return active_;
}

void Listener::request_started() {
  const std::lock_guard lock(active_mutex_);
  ++active_;
}

void Listener::request_ended() {
  {
    const std::lock_guard lock(active_mutex_);
    --active_;
  }
  active_changed_.notify_all();
}

void Listener::set_waiting(Connection* connection, Waits waits, uint64_t kept_bytes) {
  for (WaitingConnections& list : waiting_) {
    // One that waits for a request keeps its place.
    if (waits != Waits::kForRequest || &list != &waiting(waits)) list.remove(connection);
  }
  const auto it = connections_.find(connection);
  if (waits == Waits::kNot || it == connections_.end() || !it->second.admitted) return;
  waiting(waits).add(connection, it->second.client, clock.now(), kept_bytes);
  const WaitingConnections& readers = waiting(Waits::kForReader);
  // Those that go on taking their answers keep them, however large these are.
  while (readers.bytes() > options.limits.max_answers_bytes && readers.oldest() != connection &&
         clock.now() - readers.since(readers.oldest()) >= options.limits.stall_time) {
    evict(readers.oldest());
  }
}

void Listener::forget(Connection* connection) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  for (WaitingConnections& list : waiting_) list.remove(connection);
  if (it->second.admitted) {
    quota_.release(it->second.client);
  } else {
    --refusing_;
  }
  // Destroyed later, because one of its completion handlers may be running.
  it->second.place.front() = std::move(it->second.connection);
  gone_.splice(gone_.end(), it->second.place);
  connections_.erase(it);
  try {
    asio::post(*io_, [this] { gone_.clear(); });
  } catch (const std::bad_alloc&) {
    // With the next one that goes.
  }
  if (connections_.empty() && on_empty_) std::exchange(on_empty_, nullptr)();
}

void Listener::accept() {
  acceptor_.async_accept([this, number = ++accept_calls_](error_code ec, tcp::socket socket) {
    if (stopping_ || number != accept_calls_ || ec == asio::error::operation_aborted) return;
    if (ec) return on_accept_failure(ec);
    try {
      welcome(std::move(socket));
    } catch (const std::exception& e) {
      log_error("a connection could not be taken: {}", e.what());
    }
    if (accepts()) accept();
  });
}

void Listener::on_accept_failure(error_code ec) {
  if (ec == asio::error::no_descriptors && evict(next_to_go(nullptr))) return accept();
  accept_retry_.expires_after(kAcceptRetry);
  accept_retry_.async_wait([this](error_code aborted) {
    if (!aborted && accepts()) accept();
  });
}

void Listener::welcome(tcp::socket socket) {
  error_code ec;
  const tcp::endpoint remote = socket.remote_endpoint(ec);
  if (ec) return;  // it has disconnected already
  std::string client = client_key(remote.address());
  const ConnectionQuota::Verdict verdict = admit(client);
  const bool admitted = verdict == ConnectionQuota::Verdict::kAdmitted;
  if (!admitted) {
    counters->connections_refused.fetch_add(1, std::memory_order_relaxed);
    if (refusing_ >= kMaxRefusing) return;  // the socket closes here
    ++refusing_;
  }
  std::shared_ptr<Connection> connection;
  try {
    connection = std::make_shared<Connection>(std::move(socket), this, tls_);
    connections_.emplace(connection.get(),
                         Held{.connection = connection, .client = client, .admitted = admitted});
  } catch (...) {
    if (admitted) quota_.release(client);
    if (!admitted) --refusing_;
    if (connection) counters->connections.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
  if (admitted) {
    connection->start();
  } else {
    connection->refuse(refusal(verdict));
  }
}

// Connections that wait for their clients make way: those of this client if it has as many as it may, else
// those of all.
ConnectionQuota::Verdict Listener::admit(const std::string& client) {
  for (;;) {
    const ConnectionQuota::Verdict verdict = quota_.admit(client);
    if (verdict == ConnectionQuota::Verdict::kAdmitted) return verdict;
    if (!evict(next_to_go(quota_.client_full(client) ? &client : nullptr))) return verdict;
  }
}

Connection* Listener::next_to_go(const std::string* client) const {
  Connection* next = nullptr;
  const Nanos now = clock.now();
  Nanos longest = -1;
  for (const Waits waits : {Waits::kForRequest, Waits::kForBody, Waits::kForReader}) {
    const WaitingConnections& list = waiting_[static_cast<size_t>(waits)];
    Connection* const oldest = client ? list.oldest_of(*client) : list.oldest();
    if (oldest == nullptr) continue;
    const Nanos time = now - list.since(oldest);
    if (time <= longest || (waits != Waits::kForRequest && time < options.limits.stall_time)) continue;
    next = oldest;
    longest = time;
  }
  return next;
}

// False if there is none.
bool Listener::evict(Connection* waiting) {
  if (waiting == nullptr) return false;
  counters->connections_evicted.fetch_add(1, std::memory_order_relaxed);
  waiting->make_way();
  return true;
}

void Listener::run_on_io(std::function<void()> f) {
  std::latch done(1);
  patiently([&] {
    asio::post(*io_, [&] {
      patiently(f);
      done.count_down();
    });
  });
  done.wait();
}

void Listener::stop(Nanos flush_timeout) {
  if (!thread_.joinable()) return;
  auto empty = patiently([] { return std::promise<void>(); });
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

}  // namespace kvasir
