#include "cluster/membership/etcd_client.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "base/check.h"
#include "cluster/membership/etcd.grpc.pb.h"
#include "cluster/membership/etcd_stream.h"
#include "cluster/tls/grpc_credentials.h"

namespace kvasir {
namespace {

namespace wire = etcdserverpb;
using Time = std::chrono::steady_clock::time_point;
using WatchStream = EtcdStream<wire::WatchRequest, wire::WatchResponse>;
using LeaseStream = EtcdStream<wire::LeaseRequest, wire::LeaseResponse>;

constexpr int kMaxAnswerBytes = 4 << 20;
constexpr size_t kMaxReasonBytes = 200;
constexpr int kNever = 1'000'000'000;  // ms

Time in(Nanos timeout) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
}

// Whether another endpoint may do better.
bool elsewhere(const Status& status) {
  return status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kCorrupt;
}

Status not_asked() {
  return error(ErrorCode::kUnavailable, "etcd is not asked any more");
}

Status status_of(const std::string& address, const grpc::Status& status) {
  const std::string reason = status.error_message().substr(0, kMaxReasonBytes);
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return {};
    case grpc::StatusCode::NOT_FOUND:
      return error(ErrorCode::kNotFound, "etcd at {}: {}", address, reason);
    case grpc::StatusCode::UNIMPLEMENTED:
      return error(ErrorCode::kCorrupt, "what is at {} is not etcd ({}): correct --cluster", address, reason);
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return error(ErrorCode::kUnsupported,
                   "etcd at {} wants another user: {}; allow what the certificate names, or all", address,
                   reason);
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return error(ErrorCode::kUnavailable, "etcd at {} is full or overloaded: {}; see its alarms", address,
                   reason);
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::UNKNOWN:
      return error(ErrorCode::kUnavailable,
                   "etcd at {} does not answer ({}): start it, or correct --cluster and its certificates",
                   address, reason);
    default:
      return error(ErrorCode::kInvalidArgument, "etcd at {} refuses: {}", address, reason);
  }
}

EtcdKeyValue entry_of(const wire::KeyValue& kv) {
  return {kv.key(), kv.value(), kv.lease(), kv.create_revision(), kv.mod_revision()};
}

EtcdKeyRange keys_under(std::string_view prefix) {
  KV_CHECK(!prefix.empty() && static_cast<unsigned char>(prefix.back()) < 0xff, "prefix={}", prefix);
  EtcdKeyRange keys{std::string(prefix), std::string(prefix)};
  ++keys.end.back();  // the first key behind them
  return keys;
}

// Does `request` if the key was created by that revision, else reads it.
wire::TxnRequest if_created_at(std::string_view key, int64_t revision) {
  wire::TxnRequest out;
  wire::Compare& compare = *out.add_compare();
  compare.set_target(wire::Compare::CREATE);
  compare.set_key(std::string(key));
  compare.set_create_revision(revision);
  out.add_failure()->mutable_request_range()->set_key(std::string(key));
  return out;
}

}  // namespace

struct EtcdClient::Impl {
  struct Endpoint {
    explicit Endpoint(const HostPort& where) : address(where.to_string()) {}

    const std::shared_ptr<grpc::Channel>& channel(const ClusterTls* certificates) {
      if (open) return open;
      grpc::ChannelArguments arguments;
      arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
      arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
      arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
      // No pings, of which etcd wants no more than one in 5 s; but the system gives a dead connection up.
      arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kNever);
      arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
      open = grpc::CreateCustomChannel("dns:///" + address, channel_credentials(certificates), arguments);
      return open;
    }

    const std::string address;
    std::shared_ptr<grpc::Channel> open;
  };

  Impl(std::vector<HostPort> e, Nanos t, std::shared_ptr<const ClusterTls> its_tls)
      : timeout(t), tls(std::move(its_tls)) {
    KV_CHECK(!e.empty(), "no endpoints");
    for (const HostPort& where : e) endpoints.emplace_back(where);
  }
  ~Impl() {
    end(watch);
    end(leases);
    std::unique_lock lock(signal->mutex);
    signal->changed.wait(lock, [&] {
      return std::all_of(ending.begin(), ending.end(), [](const auto& e) { return e->status().has_value(); });
    });
  }

  // Until when a call may last that begins now.
  Time deadline() const { return std::min(in(timeout), last_deadline); }

  template <typename Done>
  void wait_until(Time until, const Done& done) {
    std::unique_lock lock(signal->mutex);
    signal->changed.wait_until(lock, until, done);
  }

  // One unary call at one endpoint.
  template <typename Service, typename Request, typename Response>
  Status ask(Endpoint& endpoint,
             grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             const Request& request, Response* response) {
    grpc::ClientContext context;
    const auto left = std::max<Time::duration>(deadline() - std::chrono::steady_clock::now(), {});
    context.set_deadline(std::chrono::system_clock::now() + left);
    {
      const std::lock_guard lock(signal->mutex);
      if (signal->cancelled) return not_asked();
      signal->call = &context;
    }
    const auto stub = Service::NewStub(endpoint.channel(tls.get()));
    const grpc::Status status = (stub.get()->*method)(&context, request, response);
    const std::lock_guard lock(signal->mutex);
    signal->call = nullptr;
    return status_of(endpoint.address, status);
  }

  // `attempt` at each endpoint in turn, the current one first.
  template <typename Attempt>
  Status at_any(const Attempt& attempt) {
    clean();
    Status last;
    for (size_t tries = 0; tries < endpoints.size() && !cancelled(); ++tries) {
      Status status = attempt(endpoints[current]);
      if (status.ok() || !elsewhere(status)) return status;
      last = std::move(status);
      give_up_current();
    }
    if (cancelled()) return not_asked();
    if (endpoints.size() == 1) return last;
    return error(last.code(), "none of the {} endpoints of etcd answers; {}", endpoints.size(),
                 last.message());
  }
  // Another connection is made when it is asked again, by the certificates of then.
  void give_up_current() {
    endpoints[current].open.reset();
    current = (current + 1) % endpoints.size();
  }

  template <typename Service, typename Request, typename Response>
  Result<Response> call(grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                        const Request& request) {
    Response response;
    KV_RETURN_IF_ERROR(at_any([&](Endpoint& e) { return ask<Service>(e, method, request, &response); }));
    return response;
  }

  Result<EtcdTxn> txn(const wire::TxnRequest& request) {
    KV_ASSIGN_OR_RETURN(const wire::TxnResponse answer, call<wire::KV>(&wire::KV::Stub::Txn, request));
    EtcdTxn out{answer.succeeded(), answer.header().revision(), {}};
    if (!out.done && answer.responses_size() == 1) {
      const auto& found = answer.responses(0).response_range().kvs();
      if (!found.empty()) out.found = entry_of(found[0]);
    }
    return out;
  }

  Status renew(Endpoint& endpoint, int64_t lease, EtcdLease& out) {
    if (leases && (lease_endpoint != current || status(leases))) end(leases);
    if (!leases) {
      leases = std::make_shared<LeaseStream>(signal, endpoint.channel(tls.get()));
      lease_endpoint = current;
      const auto stub = wire::Lease::NewStub(endpoint.channel(tls.get()));
      leases->begin([&](auto* context, auto* stream) { stub->async()->LeaseKeepAlive(context, stream); });
    }
    wire::LeaseRequest request;
    request.set_id(lease);
    const Time until = deadline();
    leases->write(request);
    for (;;) {
      wait_until(until, [&] { return leases->has_next() || leases->status() || signal->cancelled; });
      const std::optional<wire::LeaseResponse> answer = next(leases);
      if (!answer) break;
      if (answer->id() != lease) continue;  // of an earlier question
      out = {lease, answer->ttl()};
      return {};
    }
    const std::optional<grpc::Status> ended = status(leases);
    end(leases);
    if (ended && !ended->ok()) return status_of(endpoint.address, *ended);
    return status_of(endpoint.address, {grpc::StatusCode::DEADLINE_EXCEEDED, "it renews no lease in time"});
  }

  bool cancelled() const {
    const std::lock_guard lock(signal->mutex);
    return signal->cancelled;
  }
  template <typename Stream>
  std::optional<grpc::Status> status(const std::shared_ptr<Stream>& stream) const {
    const std::lock_guard lock(signal->mutex);
    return stream->status();
  }
  template <typename Stream>
  decltype(std::declval<Stream>().next()) next(const std::shared_ptr<Stream>& stream) {
    const std::lock_guard lock(signal->mutex);
    return stream->next();
  }

  template <typename Stream>
  void end(std::shared_ptr<Stream>& stream) {
    if (!stream) return;
    stream->end();
    ending.push_back(std::exchange(stream, nullptr));
  }
  // Releases the streams that have ended.
  void clean() {
    std::vector<std::shared_ptr<EtcdStreamEnd>> gone;
    const std::lock_guard lock(signal->mutex);
    for (auto it = ending.begin(); it != ending.end();) {
      if ((*it)->status()) gone.push_back(std::move(*it));
      it = gone.empty() || *it ? std::next(it) : ending.erase(it);
    }
  }

  // Waits for the message that says that the watch is there.
  Status open_watch(Endpoint& endpoint, const EtcdKeyRange& keys, int64_t from_revision) {
    watch_end = {};
    watch = std::make_shared<WatchStream>(signal, endpoint.channel(tls.get()));
    watch_endpoint = current;
    const auto stub = wire::Watch::NewStub(endpoint.channel(tls.get()));
    watch->begin([&](auto* context, auto* stream) { stub->async()->Watch(context, stream); });
    wire::WatchRequest request;
    wire::WatchCreateRequest& create = *request.mutable_create_request();
    create.set_key(keys.begin);
    create.set_range_end(keys.end);
    create.set_start_revision(from_revision);
    watch->write(request);
    wait_until(deadline(), [&] { return watch->has_next() || watch->status() || signal->cancelled; });
    const std::optional<wire::WatchResponse> first = next(watch);
    if (first && first->created() && !first->canceled()) return {};
    const std::optional<grpc::Status> ended = status(watch);
    end(watch);
    if (first) return error(ErrorCode::kUnavailable, "etcd at {} begins no watch", endpoint.address);
    if (ended && !ended->ok()) return status_of(endpoint.address, *ended);
    return status_of(endpoint.address, {grpc::StatusCode::DEADLINE_EXCEEDED, "it begins no watch in time"});
  }

  // Appends what the watch has brought.
  void take_events(std::vector<EtcdEvent>& events) {
    while (watch_end.ok()) {
      const std::optional<wire::WatchResponse> message = next(watch);
      if (!message) return;
      if (message->compact_revision() > 0) {
        watch_end = watch_ends("the revisions it asked for are compacted");
      } else if (message->canceled()) {
        watch_end = watch_ends(message->cancel_reason());
      }
      for (const wire::Event& event : message->events()) {
        events.push_back({event.type() == wire::Event::DELETE, entry_of(event.kv())});
      }
    }
  }
  // An error: it has ended.
  Status watch_status() const {
    if (!watch_end.ok()) return watch_end;
    if (const std::optional<grpc::Status> ended = status(watch)) return watch_ends(ended->error_message());
    return watch_endpoint == current ? Status() : watch_ends("it has not answered calls");
  }
  Status watch_ends(std::string_view why) const {
    return error(ErrorCode::kUnavailable, "etcd at {} ends the watch: {}", endpoints[watch_endpoint].address,
                 why);
  }

  const Nanos timeout;
  const std::shared_ptr<const ClusterTls> tls;
  const std::shared_ptr<EtcdSignal> signal = std::make_shared<EtcdSignal>();
  std::vector<Endpoint> endpoints;
  Time last_deadline = Time::max();
  size_t current = 0;  // the endpoint that answered last
  std::shared_ptr<WatchStream> watch;
  std::shared_ptr<LeaseStream> leases;
  size_t watch_endpoint = 0;
  size_t lease_endpoint = 0;
  Status watch_end;  // what a message of the watch said of its end
  std::vector<std::shared_ptr<EtcdStreamEnd>> ending;
};

EtcdClient::EtcdClient(std::vector<HostPort> endpoints, Nanos timeout, std::shared_ptr<const ClusterTls> tls)
    : impl_(std::make_unique<Impl>(std::move(endpoints), timeout, std::move(tls))) {}
EtcdClient::~EtcdClient() = default;

Result<EtcdLease> EtcdClient::grant(int64_t ttl_s) {
  wire::LeaseGrantRequest request;
  request.set_ttl(ttl_s);
  KV_ASSIGN_OR_RETURN(const wire::LeaseResponse answer,
                      impl_->call<wire::Lease>(&wire::Lease::Stub::LeaseGrant, request));
  if (answer.id() <= 0) return error(ErrorCode::kCorrupt, "etcd grants a lease without a number");
  return EtcdLease{answer.id(), answer.ttl()};
}

Result<EtcdLease> EtcdClient::keep_alive(int64_t lease) {
  EtcdLease out;
  KV_RETURN_IF_ERROR(impl_->at_any([&](Impl::Endpoint& e) { return impl_->renew(e, lease, out); }));
  return out;
}

Result<EtcdLease> EtcdClient::time_to_live(int64_t lease) {
  wire::LeaseRequest request;
  request.set_id(lease);
  KV_ASSIGN_OR_RETURN(const wire::LeaseResponse answer,
                      impl_->call<wire::Lease>(&wire::Lease::Stub::LeaseTimeToLive, request));
  return EtcdLease{answer.id(), answer.ttl()};
}

Status EtcdClient::revoke(int64_t lease) {
  wire::LeaseRequest request;
  request.set_id(lease);
  const Status status = impl_->call<wire::Lease>(&wire::Lease::Stub::LeaseRevoke, request).status();
  return !status.ok() && status.code() == ErrorCode::kNotFound ? Status() : status;
}

Result<int64_t> EtcdClient::put(std::string_view key, std::string_view value, int64_t lease) {
  wire::PutRequest request;
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  request.set_lease(lease);
  KV_ASSIGN_OR_RETURN(const wire::PutResponse answer, impl_->call<wire::KV>(&wire::KV::Stub::Put, request));
  return answer.header().revision();
}

Result<EtcdSnapshot> EtcdClient::range(const EtcdKeyRange& keys) {
  wire::RangeRequest request;
  request.set_key(keys.begin);
  request.set_range_end(keys.end);
  KV_ASSIGN_OR_RETURN(const wire::RangeResponse answer,
                      impl_->call<wire::KV>(&wire::KV::Stub::Range, request));
  EtcdSnapshot out{answer.header().revision(), {}};
  for (const wire::KeyValue& kv : answer.kvs()) out.entries.push_back(entry_of(kv));
  return out;
}

Result<EtcdSnapshot> EtcdClient::range(std::string_view prefix) {
  return range(keys_under(prefix));
}

Result<EtcdTxn> EtcdClient::create(std::string_view key, std::string_view value, int64_t lease) {
  wire::TxnRequest request = if_created_at(key, 0);
  wire::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(std::string(key));
  put.set_value(std::string(value));
  put.set_lease(lease);
  return impl_->txn(request);
}

Result<EtcdTxn> EtcdClient::remove(std::string_view key, int64_t create_revision) {
  wire::TxnRequest request = if_created_at(key, create_revision);
  request.add_success()->mutable_request_delete_range()->set_key(std::string(key));
  return impl_->txn(request);
}

Status EtcdClient::watch(std::string_view prefix, int64_t from_revision) {
  return watch(keys_under(prefix), from_revision);
}

Status EtcdClient::watch(const EtcdKeyRange& keys, int64_t from_revision) {
  unwatch();
  impl_->clean();
  Status status = impl_->open_watch(impl_->endpoints[impl_->current], keys, from_revision);
  if (!status.ok() && elsewhere(status)) impl_->give_up_current();
  return status;
}

void EtcdClient::unwatch() {
  impl_->end(impl_->watch);
}

Result<std::vector<EtcdEvent>> EtcdClient::wait(Nanos timeout) {
  Impl& it = *impl_;
  if (!it.watch) return error(ErrorCode::kUnavailable, "nothing of etcd is watched");
  std::vector<EtcdEvent> events;
  it.take_events(events);
  if (events.empty() && it.watch_status().ok()) {
    it.wait_until(in(timeout), [&] {
      return it.watch->has_next() || it.watch->status() || it.signal->woken || it.signal->cancelled;
    });
    {
      const std::lock_guard lock(it.signal->mutex);
      it.signal->woken = false;
    }
    it.take_events(events);
  }
  // What came before the end is whole and in order, and is told first.
  const Status status = it.watch_status();
  if (!events.empty() || status.ok()) return events;
  unwatch();
  return status;
}

void EtcdClient::pause(Nanos timeout) {
  impl_->wait_until(in(timeout), [&] { return impl_->signal->woken || impl_->signal->cancelled; });
  const std::lock_guard lock(impl_->signal->mutex);
  impl_->signal->woken = false;
}

void EtcdClient::wake() {
  const std::lock_guard lock(impl_->signal->mutex);
  impl_->signal->woken = true;
  impl_->signal->changed.notify_all();
}

void EtcdClient::cancel() {
  const std::lock_guard lock(impl_->signal->mutex);
  impl_->signal->cancelled = true;
  if (impl_->signal->call != nullptr) impl_->signal->call->TryCancel();
  impl_->signal->changed.notify_all();
}

void EtcdClient::resume() {
  const std::lock_guard lock(impl_->signal->mutex);
  impl_->signal->cancelled = false;
}

void EtcdClient::hurry(std::optional<Nanos> time) {
  impl_->last_deadline = time ? in(*time) : Time::max();
}

}  // namespace kvasir
