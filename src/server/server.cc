// The public port and the admin port.
#include "server/server.h"

#include <algorithm>
#include <utility>

#include "server/listener.h"

namespace kvasir {
namespace {

// Of the admin port. Operators are few, and have a share of the descriptors that fit_descriptors() leaves.
constexpr uint32_t kAdminConnections = 64;

bool has_metrics(const ServerOptions& options) {
  return options.public_metrics.value_or(!options.admin_port);
}

std::vector<Endpoint> public_table(const ServerOptions& options) {
  const std::span<const Endpoint> all = all_endpoints();
  std::vector<Endpoint> table(all.begin(), all.end());
  if (options.operators_only) {
    std::erase_if(table, [](const Endpoint& e) { return e.page || e.key == Endpoint::Key::kNeedsKey; });
    return table;
  }
  if (!has_metrics(options)) {
    std::erase_if(table,
                  [](const Endpoint& e) { return e.path == "/metrics" || e.path == "/cluster/status"; });
  }
  if (!options.web) {
    std::erase_if(table, [](const Endpoint& e) { return e.page; });
  }
  if (!options.records.empty()) {
    std::erase_if(table, [](const Endpoint& e) {
      return !e.path.starts_with("/assets/") && (!e.path.starts_with("/cache") || e.path == "/cache/stream");
    });
  } else {
    std::erase_if(table, [](const Endpoint& e) { return e.path == "/cache/records/*"; });
  }
  return table;
}

// What reaches the admin port is an operator's, so that no key is asked for.
ServerOptions admin_options(ServerOptions options) {
  options.host = options.admin_host;
  options.port = *options.admin_port;
  options.listening_fd = -1;
  options.api_keys.clear();
  options.named_keys.clear();
  options.browsers.cors_origins.clear();
  if (!options.admin_client_certs) options.tls.ca_certs.clear();
  options.limits.max_connections = kAdminConnections;
  options.limits.max_connections_per_address = 0;
  return options;
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(const ServerOptions& options)
      : counters_(std::make_shared<HttpCounters>()),
        keys_(std::make_shared<KeyRing>(all_keys(options), MonotonicClock().now())),
        public_(std::make_unique<Listener>(options, public_table(options), counters_, keys_)) {
    if (!options.admin_port) return;
    admin_ = std::make_unique<Listener>(admin_options(options), admin_endpoints(), counters_, keys_);
    admin_->begin_drain = [this] {
      drain();
      return public_->running();
    };
  }

  ~Impl() { stop(0); }

  Status start() {
    KV_RETURN_IF_ERROR(reload());
    KV_RETURN_IF_ERROR(public_->listen());
    if (admin_) KV_RETURN_IF_ERROR(admin_->listen());
    for_each([](Listener& port) { port.run(); });
    return {};
  }
  Status reload() {
    if (!public_->options.tls.on()) return {};
    // Neither port gets another one unless both do.
    KV_ASSIGN_OR_RETURN(const TlsContext tls, make_tls_context(public_->options.tls));
    if (admin_) {
      KV_ASSIGN_OR_RETURN(const TlsContext admin_tls, make_tls_context(admin_->options.tls));
      admin_->set_tls(admin_tls);
    }
    public_->set_tls(tls);
    return {};
  }
  void serve(ModelService service) {
    const auto ready = std::make_shared<const ModelService>(std::move(service));
    for_each([&](Listener& port) { port.serve(ready); });
  }
  void set_keys(std::vector<ApiKey> changed) {
    public_->post([keys = keys_, next = std::move(changed)] { keys->replace(next, MonotonicClock().now()); });
  }
  void announce_end() {
    for_each([](Listener& port) { port.announce_end(); });
  }
  void drain() {
    for_each([](Listener& port) { port.drain(); });
  }
  // The public port stops first: until then operators can ask the admin port.
  void stop(Nanos flush_timeout) {
    public_->stop(flush_timeout);
    if (admin_) admin_->stop(flush_timeout);
  }

  Listener& public_port() { return *public_; }
  Listener* admin_port() { return admin_.get(); }

 private:
  template <typename F>
  void for_each(F f) {
    f(*public_);
    if (admin_) f(*admin_);
  }

  const std::shared_ptr<HttpCounters> counters_;
  const std::shared_ptr<KeyRing> keys_;
  const std::unique_ptr<Listener> public_;
  std::unique_ptr<Listener> admin_;  // null: there is none
};

namespace {

std::string url_of(const Listener& port) {
  return fmt::format("{}://{}:{}", port.options.tls.on() ? "https" : "http", host_for_url(port.options.host),
                     port.port());
}

}  // namespace

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  stop(0);
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  if (options.model_names.empty()) return error(ErrorCode::kInvalidArgument, "the served model needs a name");
  KV_RETURN_IF_ERROR(check_browser_options(options.browsers));
  auto impl = std::make_unique<Impl>(options);
  KV_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::serve(ModelService service) {
  impl_->serve(std::move(service));
}
void Server::set_keys(std::vector<ApiKey> keys) {
  impl_->set_keys(std::move(keys));
}
uint16_t Server::port() const {
  return impl_->public_port().port();
}
std::string Server::url() const {
  return url_of(impl_->public_port());
}
bool Server::has_public_metrics() const {
  return has_metrics(impl_->public_port().options);
}
uint16_t Server::admin_port() const {
  return impl_->admin_port() == nullptr ? 0 : impl_->admin_port()->port();
}
std::string Server::admin_url() const {
  return impl_->admin_port() == nullptr ? "" : url_of(*impl_->admin_port());
}
Status Server::reload() {
  return impl_->reload();
}
void Server::announce_end() {
  impl_->announce_end();
}
void Server::drain() {
  impl_->drain();
}
bool Server::wait_idle(Nanos timeout) {
  return impl_->public_port().wait_idle(timeout);
}
void Server::stop(Nanos flush_timeout) {
  impl_->stop(flush_timeout);
}

}  // namespace kvasir
