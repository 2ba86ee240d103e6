#include "cluster/membership/etcd_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "cluster/membership/etcd_http.h"
#include "cluster/membership/etcd_json.h"

namespace kvasir {
namespace {

EtcdLoop::Time in(Nanos timeout) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
}

// Whether another endpoint may do better.
bool elsewhere(const Status& status) {
  return status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kCorrupt;
}

// `half`: half a sentence about the endpoint, as EtcdConnection has it.
Status about_endpoint(const std::string& address, const Status& half) {
  if (half.code() == ErrorCode::kCorrupt) {
    return error(ErrorCode::kCorrupt,
                 "what is at {} {}: it is not etcd with its JSON gateway, correct --cluster", address,
                 half.message());
  }
  return error(half.code(), "etcd at {} does not answer ({}): start it, or correct --cluster", address,
               half.message());
}

}  // namespace

struct EtcdClient::Impl {
  Impl(std::vector<HostPort> e, Nanos t) : endpoints(std::move(e)), timeout(t), stream(loop) {
    KV_CHECK(!endpoints.empty(), "no endpoints");
    for (const HostPort& where : endpoints)
      connections.push_back(std::make_unique<EtcdConnection>(loop, where));
  }

  template <typename T>
  Result<T> at(size_t endpoint, const std::string& path, const std::string& body,
               Result<T> (*read)(std::string_view)) {
    const std::string address = endpoints[endpoint].to_string();
    Result<EtcdReply> reply = connections[endpoint]->post(path, body, deadline());
    if (!reply.ok()) return about_endpoint(address, reply.status());
    if (reply->http_status != 200) return etcd::read_refusal(address, reply->http_status, reply->body);
    Result<T> out = read(reply->body);
    if (!out.ok()) return about_endpoint(address, out.status());
    return out;
  }

  template <typename T>
  Result<T> call(const std::string& path, const std::string& body, Result<T> (*read)(std::string_view)) {
    Status last;
    for (size_t tries = 0; tries < endpoints.size() && !loop.cancelled(); ++tries) {
      Result<T> out = at(current, path, body, read);
      if (out.ok() || !elsewhere(out.status())) return out;
      last = out.status();
      current = (current + 1) % endpoints.size();
    }
    if (loop.cancelled()) return error(ErrorCode::kUnavailable, "etcd is not asked any more");
    if (endpoints.size() == 1) return last;
    return error(last.code(), "none of the {} endpoints of etcd answers; {}", endpoints.size(),
                 last.message());
  }

  // Until when a call may last that begins now.
  EtcdLoop::Time deadline() const { return std::min(in(timeout), last_deadline); }

  void take_events(std::vector<EtcdEvent>& events) {
    std::string line;
    while (watch_end.ok() && stream.next(line)) {
      Result<EtcdWatchMessage> message = etcd::read_watch(line);
      if (!message.ok()) {
        watch_end = message.status();
      } else if (message->cancelled) {
        watch_end = error(ErrorCode::kUnavailable, "ends the watch: {}", message->cancel_reason);
      } else {
        for (EtcdEvent& event : message->events) events.push_back(std::move(event));
      }
    }
  }
  Status watch_status() const {
    if (!watch_end.ok()) return watch_end;
    if (stream.is_open() && stream_endpoint != current) {
      return {ErrorCode::kUnavailable, "has not answered calls"};
    }
    return stream.status();
  }

  const std::vector<HostPort> endpoints;
  const Nanos timeout;
  EtcdLoop::Time last_deadline = EtcdLoop::Time::max();
  EtcdLoop loop;  // before all that uses it
  std::vector<std::unique_ptr<EtcdConnection>> connections;
  size_t current = 0;  // the endpoint that answered last
  EtcdStream stream;
  size_t stream_endpoint = 0;
  Status watch_end;  // what a message of the stream said of its end
};

EtcdClient::EtcdClient(std::vector<HostPort> endpoints, Nanos timeout)
    : impl_(std::make_unique<Impl>(std::move(endpoints), timeout)) {}
EtcdClient::~EtcdClient() = default;

Result<EtcdLease> EtcdClient::grant(int64_t ttl_s) {
  return impl_->call("/v3/lease/grant", etcd::grant_body(ttl_s), etcd::read_lease);
}

Result<EtcdLease> EtcdClient::keep_alive(int64_t lease) {
  return impl_->call("/v3/lease/keepalive", etcd::lease_body(lease), etcd::read_keep_alive);
}

Result<EtcdLease> EtcdClient::time_to_live(int64_t lease) {
  return impl_->call("/v3/lease/timetolive", etcd::lease_body(lease), etcd::read_lease);
}

Status EtcdClient::revoke(int64_t lease) {
  const Status status =
      impl_->call("/v3/lease/revoke", etcd::lease_body(lease), etcd::read_revision).status();
  return !status.ok() && status.code() == ErrorCode::kNotFound ? Status() : status;
}

Result<int64_t> EtcdClient::put(std::string_view key, std::string_view value, int64_t lease) {
  return impl_->call("/v3/kv/put", etcd::put_body(key, value, lease), etcd::read_revision);
}

Result<EtcdSnapshot> EtcdClient::range(const EtcdKeyRange& keys) {
  return impl_->call("/v3/kv/range", etcd::range_body(keys), etcd::read_range);
}

Result<EtcdSnapshot> EtcdClient::range(std::string_view prefix) {
  return range(etcd::keys_under(prefix));
}

Result<EtcdTxn> EtcdClient::create(std::string_view key, std::string_view value, int64_t lease) {
  return impl_->call("/v3/kv/txn", etcd::create_body(key, value, lease), etcd::read_txn);
}

Result<EtcdTxn> EtcdClient::remove(std::string_view key, int64_t create_revision) {
  return impl_->call("/v3/kv/txn", etcd::remove_body(key, create_revision), etcd::read_txn);
}

Status EtcdClient::watch(std::string_view prefix, int64_t from_revision) {
  return watch(etcd::keys_under(prefix), from_revision);
}

Status EtcdClient::watch(const EtcdKeyRange& keys, int64_t from_revision) {
  Impl& it = *impl_;
  it.stream.close();
  it.stream_endpoint = it.current;
  const std::string address = it.endpoints[it.current].to_string();
  const EtcdLoop::Time deadline = it.deadline();
  it.watch_end = {};
  Status status =
      it.stream.open(it.endpoints[it.current], "/v3/watch", etcd::watch_body(keys, from_revision), deadline);
  // The first line says that the watch is there.
  std::string line;
  while (status.ok() && !it.stream.next(line)) {
    status = it.stream.status();
    if (status.ok() && (std::chrono::steady_clock::now() >= deadline || it.loop.cancelled())) {
      status = {ErrorCode::kUnavailable, "does not answer in time"};
    }
    if (status.ok()) it.loop.run_one(deadline);
  }
  if (status.ok()) {
    const Result<EtcdWatchMessage> first = etcd::read_watch(line);
    status = first.status();
    if (first.ok() && (!first->created || first->cancelled || !first->events.empty())) {
      status = {ErrorCode::kCorrupt, "does not begin a watch"};
    }
  }
  if (status.ok()) return {};
  it.stream.close();
  it.current = (it.current + 1) % it.endpoints.size();
  return about_endpoint(address, status);
}

void EtcdClient::unwatch() {
  impl_->stream.close();
}

Result<std::vector<EtcdEvent>> EtcdClient::wait(Nanos timeout) {
  Impl& it = *impl_;
  std::vector<EtcdEvent> events;
  it.take_events(events);
  if (events.empty() && it.watch_status().ok()) {
    it.loop.run_one(in(timeout));
    it.take_events(events);
  }
  // What came before the end is whole and in order, and is told first.
  const Status status = it.watch_status();
  if (!events.empty() || status.ok()) return events;
  it.stream.close();
  return about_endpoint(it.endpoints[it.stream_endpoint].to_string(), status);
}

void EtcdClient::pause(Nanos timeout) {
  impl_->loop.run_one(in(timeout));
}

void EtcdClient::wake() {
  impl_->loop.wake();
}
void EtcdClient::cancel() {
  impl_->loop.cancel();
}
void EtcdClient::resume() {
  impl_->loop.resume();
}
void EtcdClient::hurry(std::optional<Nanos> time) {
  impl_->last_deadline = time ? in(*time) : EtcdLoop::Time::max();
}

}  // namespace kvasir
