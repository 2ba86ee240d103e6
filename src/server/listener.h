// One port: listening, accepting, and the connections to it, on an I/O thread of its own. Internal to
// src/server.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "server/connection.h"
#include "server/connection_quota.h"
#include "server/server_context.h"
#include "server/waiting_connections.h"

namespace kvasir {

// "[::1]" for "::1": an address as it stands in a URL.
std::string host_for_url(const std::string& host);

// Public functions are thread-safe unless they override one of ServerContext.
class Listener final : public ServerContext {
 public:
  // Of `options` this listens on host and port, and applies the limits. The endpoints are those of `table`.
  Listener(ServerOptions options, std::vector<Endpoint> table, std::shared_ptr<HttpCounters> shared_counters,
           std::shared_ptr<KeyRing> key_ring);

  // kInvalidArgument, kIo: one line that names host and port.
  Status listen();
  // Accepts connections; on a socket that was open already from serve() on. REQUIRES: listen() succeeded.
  void run();

  // Of connections that come from now on. Null: plain TCP.
  void set_tls(TlsContext tls);
  // REQUIRES: called once.
  void serve(std::shared_ptr<const ModelService> model);
  void announce_end();
  void drain();
  // See Server.
  bool wait_idle(Nanos timeout);
  // Waits for answers that are on their way, at most for `flush_timeout`, closes every connection and ends
  // the thread.
  void stop(Nanos flush_timeout);

  uint16_t port() const { return port_; }
  // The requests that wait_idle() waits for.
  size_t running() const;

  void request_started() override;
  void request_ended() override;
  void set_waiting(Connection* connection, Waits waits, uint64_t kept_bytes) override;
  void forget(Connection* connection) override;

 private:
  struct Held {
    std::shared_ptr<Connection> connection;
    std::string client;
    bool admitted;  // counted by the quota; false: it only gets a refusal
    // One empty place, for `gone_`: closing a connection needs no memory.
    std::list<std::shared_ptr<Connection>> place = std::list<std::shared_ptr<Connection>>(1);
  };

  // Clients of a socket that is open while no server runs wait until they can be served: by this server, or
  // from the drain at its end on by the next one.
  bool accepts() const;
  void accept();
  void on_accept_failure(boost::system::error_code ec);
  void welcome(boost::asio::ip::tcp::socket socket);
  ConnectionQuota::Verdict admit(const std::string& client);
  WaitingConnections& waiting(Waits waits) { return waiting_[static_cast<size_t>(waits)]; }
  // The one that makes way next, of all or of this client: it has waited for longest of those that wait for a
  // request, or whose body or reader stalls. Null: there is none.
  Connection* next_to_go(const std::string* client) const;
  bool evict(Connection* waiting);
  // Runs `f` on the I/O thread and waits for it. REQUIRES: called from another thread; the I/O thread runs.
  void run_on_io(std::function<void()> f);

  const std::vector<Endpoint> table_;
  const std::shared_ptr<boost::asio::io_context> io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_retry_;
  uint16_t port_ = 0;
  std::thread thread_;

  // Owned by the I/O thread.
  std::unordered_map<Connection*, Held> connections_;
  std::list<std::shared_ptr<Connection>> gone_;  // to be destroyed, when no handler of theirs runs
  uint64_t accept_calls_ = 0;                    // calls of accept(): only the last one counts
  ConnectionQuota quota_;
  std::array<WaitingConnections, 4> waiting_;  // by Waits; nothing is in that of kNot
  size_t refusing_ = 0;                        // those of connections_ that are not admitted
  std::function<void()> on_empty_;
  bool stopping_ = false;
  TlsContext tls_;

  mutable std::mutex active_mutex_;
  std::condition_variable active_changed_;
  size_t active_ = 0;  // guarded by active_mutex_
};

}  // namespace kvasir
