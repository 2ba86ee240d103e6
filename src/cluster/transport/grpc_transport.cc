#include "cluster/transport/grpc_transport.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/heap.h"
#include "cluster/tls/grpc_credentials.h"
#include "cluster/transport/grpc_links.h"
#include "cluster/transport/grpc_streams.h"
#include "cluster/transport/socket_address.h"

namespace kvasir {
namespace {

constexpr int kFrameSlack = 4096;   // what a frame is longer than its message, at most
constexpr int kReportBytes = 4096;  // more than any report takes
// How much longer than by the deadline the system may take to give a connection up.
constexpr Nanos kGoodbye = 10 * kNanosPerSecond;
constexpr int kNever = 1'000'000'000;  // ms

// A call that ends as it begins.
class RefusedStream final : public grpc::ServerBidiReactor<cluster::PeerFrame, cluster::PeerFrame> {
 public:
  RefusedStream() { Finish({grpc::StatusCode::UNAVAILABLE, "it leaves"}); }
  void OnDone() override { delete this; }
};

}  // namespace

class GrpcTransport::Service final : public cluster::PeerStream::CallbackService {
 public:
  explicit Service(GrpcTransport& transport) : transport_(transport) {}
  grpc::ServerBidiReactor<Frame, Frame>* Carry(grpc::CallbackServerContext* context) override {
    return transport_.make_arrival(*context);
  }

 private:
  GrpcTransport& transport_;
};

Result<std::unique_ptr<ClusterTransport>> make_grpc_transport(TransportOptions options) {
  KV_RETURN_IF_ERROR(check_options(options));
  auto made = std::make_unique<GrpcTransport>(std::move(options));
  KV_RETURN_IF_ERROR(made->start());
  return std::unique_ptr<ClusterTransport>(std::move(made));
}

GrpcTransport::GrpcTransport(TransportOptions options)
    : ClusterTransport(std::move(options)), run_time_(stride()) {}

Status GrpcTransport::start() {
  KV_ASSIGN_OR_RETURN(const SocketAddress at, parse_address(this->options().listen, Names::kLookUp));
  if (at.is_any() && options().advertise_host.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-listen {} is no address that peers can reach: give --cluster-advertise-host",
                 options().listen);
  }
  if (!options().tls && !at.is_loopback()) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-listen {} is not of this machine alone, which takes TLS: give "
                 "--cluster-ssl-certfile, --cluster-ssl-keyfile and --cluster-ssl-ca-certs",
                 options().listen);
  }
  credentials_ = server_credentials(options().tls);
  service_ = std::make_unique<Service>(*this);
  grpc::ServerBuilder builder;
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_);
  builder.RegisterService(service_.get());
  builder.SetMaxReceiveMessageSize(static_cast<int>(options().max_message_bytes) + kFrameSlack);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
  server_ = builder.BuildAndStart();
  if (!server_) return error(ErrorCode::kIo, "gRPC does not start for the cluster's peers");
  const auto take = [acceptor = acceptor_.get()](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  };
  gate_ = std::make_unique<ConnectionGate>(options().gate, take, [this] { count_refused(); });
  if (const Status listens = gate_->listen(at); !listens.ok()) {
    return error(ErrorCode::kIo, "--cluster-listen: cannot listen on {}: {}; choose another host or port",
                 options().listen, listens.message());
  }
  const std::string host = options().advertise_host.empty() ? at.host() : options().advertise_host;
  set_address(join_address(host, gate_->port()));
  thread_ = std::thread([this] { run(); });
  return {};
}

GrpcTransport::~GrpcTransport() {
  std::vector<std::shared_ptr<Link>> links;
  {
    std::lock_guard lock(links_mutex_);
    stop_ = true;
    for (auto& [id, link] : std::exchange(links_, {})) links.push_back(std::move(link));
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& link : links) link->end("leaving");
  links.clear();
  // The gate's thread, but not the gate, which arrivals know.
  if (gate_) gate_->stop();
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
  std::unique_lock lock(links_mutex_);
  const auto patience = std::chrono::nanoseconds(2 * options().send_deadline + kGoodbye);
  const bool ended =
      changed_.wait_for(lock, patience, [&] { return living_links_ == 0 && arrivals_.empty(); });
  KV_CHECK(ended, "links={} arrivals={}", living_links_, arrivals_.size());
  const auto done = std::exchange(done_, {});
  lock.unlock();  // as in run()
}

std::string GrpcTransport::wire() const {
  return fmt::format("grpc, frames {}{}", kFramesVersion, options().tls ? ", TLS" : "");
}

void GrpcTransport::open_link(LinkId id, uint64_t life, const PeerId& peer, const std::string& address) {
  const auto channel = channel_to(peer, address);
  std::lock_guard lock(links_mutex_);
  if (!channel.ok()) {  // told by the thread: ClusterTransport's lock is held here
    ended_.emplace_back(id, channel.status().message());
    changed_.notify_all();
    return;
  }
  const auto link = std::make_shared<Link>(*this, id, *channel);
  links_[id] = link;
  ++living_links_;
  Frame frame;
  cluster::Hello& hello = *frame.mutable_hello();
  hello.set_version(kFramesVersion);
  hello.set_instance(options().self.instance);
  hello.set_epoch(life);
  hello.set_to_epoch(peer.epoch);
  link->begin(link, std::move(frame));
}

Result<std::shared_ptr<grpc::Channel>> GrpcTransport::channel_to(const PeerId& peer,
                                                                 const std::string& address) const {
  KV_ASSIGN_OR_RETURN(const SocketAddress at, parse_address(address, Names::kNumeric));
  if (!options().tls && !at.is_loopback()) {
    return error(ErrorCode::kInvalidArgument, "{} is not on this machine, which takes TLS", address);
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReportBytes);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection for each link
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // No pings; but the system gives up a connection whose far end takes nothing for so long
  // (TCP_USER_TIMEOUT), and so ends a write that gRPC could not cancel.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kNever);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   static_cast<int>(std::max<Nanos>(options().send_deadline / kNanosPerMilli, 1)));
  // Who answers must have the certificate of the peer that the directory names.
  if (options().tls) arguments.SetSslTargetNameOverride(peer.instance);
  const std::string target =
      fmt::format("{}:{}", at.storage.ss_family == AF_INET6 ? "ipv6" : "ipv4", address);
  return grpc::CreateCustomChannel(target, channel_credentials(options().tls.get()), arguments);
}

void GrpcTransport::close_link(LinkId id) {
  std::lock_guard lock(links_mutex_);
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  it->second->end("forgotten");
  links_.erase(it);
}

void GrpcTransport::post(LinkId id, std::vector<std::byte> message) {
  std::lock_guard lock(links_mutex_);
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  Frame frame;
  frame.set_message(message.data(), message.size());
  it->second->push(std::move(frame));
}

void GrpcTransport::link_done(LinkId id, std::shared_ptr<Link> link, const std::string& why) {
  bool told = false;
  {
    std::lock_guard lock(links_mutex_);
    told = links_.erase(id) != 0 && !stop_;
  }
  if (told) link_lost(id, why);
  std::lock_guard lock(links_mutex_);
  done_.push_back(std::move(link));
  --living_links_;
  changed_.notify_all();
}

grpc::ServerBidiReactor<cluster::PeerFrame, cluster::PeerFrame>* GrpcTransport::make_arrival(
    grpc::CallbackServerContext& context) {
  const WaitsForMemory patient;
  std::unique_lock lock(links_mutex_);
  if (stop_) return new RefusedStream;
  auto arrival = std::make_unique<Arrival>(*this, context);
  arrivals_.insert(arrival.get());
  arrival->begin();
  return arrival.release();  // gRPC's, until arrival_done()
}

void GrpcTransport::arrival_done(Arrival* arrival) {
  {
    std::lock_guard lock(links_mutex_);
    arrivals_.erase(arrival);
    changed_.notify_all();
  }
  delete arrival;
}

// Deadlines, lives that are over, and word of what was taken.
void GrpcTransport::run() {
  const WaitsForMemory patient;
  std::unique_lock lock(links_mutex_);
  while (!stop_) {
    lock.unlock();
    const std::map<std::string, uint64_t> introduced = this->introduced();
    lock.lock();
    run_now_ = run_time_.at(now());
    for (auto it = links_.begin(); it != links_.end();) {
      const auto [id, link] = *it;
      const bool overdue = link->overdue(run_now_);
      it = overdue ? links_.erase(it) : std::next(it);
      if (!overdue) continue;
      ended_.emplace_back(id,
                          fmt::format("it took nothing for {:.0f} ms", to_millis(options().send_deadline)));
      link->end(ended_.back().second);
    }
    std::vector<std::string> unknown;
    for (Arrival* arrival : arrivals_) {
      if (!arrival->look_after(introduced)) unknown.push_back(arrival->address());
    }
    const auto ended = std::exchange(ended_, {});
    auto done = std::exchange(done_, {});
    lock.unlock();
    for (const auto& [id, why] : ended) link_lost(id, why);
    for (const std::string& address : unknown) gate_->cut_off(address);
    done.clear();
    lock.lock();
    changed_.wait_for(lock, std::chrono::nanoseconds(tick()),
                      [&] { return stop_ || !ended_.empty() || !done_.empty(); });
  }
}

}  // namespace kvasir
