#include "cluster/transport/grpc_transport.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/heap.h"
#include "cluster/transport/grpc_links.h"
#include "cluster/transport/grpc_streams.h"
#include "cluster/transport/socket_address.h"

namespace kvasir {
namespace {

constexpr size_t kMaxStreams = 1024;
constexpr int kFrameSlack = 4096;  // what a frame is longer than its message, at most
constexpr auto kGoodbye = std::chrono::seconds(10);

// A call that ends as it begins.
class RefusedStream final : public grpc::ServerBidiReactor<cluster::PeerFrame, cluster::PeerFrame> {
 public:
  RefusedStream() { Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many connections"}); }
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
  service_ = std::make_unique<Service>(*this);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(join_address(at.host(), at.port()), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  builder.SetMaxReceiveMessageSize(static_cast<int>(options().max_message_bytes) + kFrameSlack);
  // Else two instances could listen on one port, and each get half of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  server_ = builder.BuildAndStart();
  if (!server_ || port == 0)
    return error(ErrorCode::kIo, "--cluster-listen: cannot listen on {}; choose another host or port",
                 options().listen);
  const std::string host = options().advertise_host.empty() ? at.host() : options().advertise_host;
  set_address(join_address(host, static_cast<uint16_t>(port)));
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
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
  std::unique_lock lock(links_mutex_);
  const bool ended =
      changed_.wait_for(lock, kGoodbye, [&] { return living_links_ == 0 && arrivals_.empty(); });
  KV_CHECK(ended, "links={} arrivals={}", living_links_, arrivals_.size());
  const auto done = std::exchange(done_, {});
  lock.unlock();  // as in run()
}

std::string GrpcTransport::wire() const {
  return fmt::format("grpc, frames {}", kWireVersion);
}

void GrpcTransport::open_link(LinkId id, uint64_t life, const PeerId& peer, const std::string& address) {
  const auto link = make_link(id, life, peer, address);
  std::lock_guard lock(links_mutex_);
  if (!link.ok()) {  // told by the thread: ClusterTransport's lock is held here
    unreachable_.emplace_back(id, link.status().message());
    changed_.notify_all();
    return;
  }
  links_[id] = *link;
  ++living_links_;
  (*link)->begin(*link);
}

Result<std::shared_ptr<GrpcTransport::Link>> GrpcTransport::make_link(LinkId id, uint64_t life,
                                                                      const PeerId& peer,
                                                                      const std::string& address) {
  KV_ASSIGN_OR_RETURN(const SocketAddress at, parse_address(address, Names::kNumeric));
  KV_ASSIGN_OR_RETURN(const int socket_fd, connecting_socket(at));
  auto channel = channel_over(socket_fd);
  if (!channel.ok()) {
    close(socket_fd);
    return channel.status();
  }
  return std::make_shared<Link>(*this, id, life, peer, socket_fd, *channel);
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
  if (it != links_.end()) it->second->push(FrameKind::kMessage, std::move(message));
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
  if (stop_ || arrivals_.size() >= kMaxStreams) {
    lock.unlock();
    count_refused();
    return new RefusedStream;
  }
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

GrpcTransport::Frame GrpcTransport::frame(FrameKind kind, uint64_t life, const PeerId& to, uint64_t sequence,
                                          const std::vector<std::byte>& message) const {
  const std::vector<std::byte> head = header(kind, life, to, sequence, message.size(), message.size());
  Frame made;
  made.set_header(head.data(), head.size());
  made.set_payload(message.data(), message.size());
  return made;
}

// Deadlines, lives that are over, and word of what was taken.
void GrpcTransport::run() {
  const WaitsForMemory patient;
  std::unique_lock lock(links_mutex_);
  while (!stop_) {
    run_now_ = run_time_.at(now());
    for (auto& [id, link] : links_) link->check(run_now_);
    for (Arrival* arrival : arrivals_) arrival->look_after();
    auto failed = std::exchange(unreachable_, {});
    auto done = std::exchange(done_, {});
    lock.unlock();
    for (const auto& [id, why] : failed) link_lost(id, why);
    done.clear();
    lock.lock();
    changed_.wait_for(lock, std::chrono::nanoseconds(tick()),
                      [&] { return stop_ || !unreachable_.empty() || !done_.empty(); });
  }
}

}  // namespace kvasir
