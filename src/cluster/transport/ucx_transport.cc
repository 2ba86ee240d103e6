#include "cluster/transport/ucx_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/units.h"
#include "cluster/transport/ucx_links.h"

namespace kvasir {
namespace {

constexpr unsigned kFrameId = 1;  // of UCX's active messages
constexpr Nanos kShutdown = 2 * kNanosPerSecond;

}  // namespace

Result<std::unique_ptr<ClusterTransport>> make_ucx_transport(TransportOptions options) {
  KV_RETURN_IF_ERROR(check_options(options));
  auto made = std::make_unique<UcxTransport>(std::move(options));
  KV_RETURN_IF_ERROR(made->start());
  return std::unique_ptr<ClusterTransport>(std::move(made));
}

UcxTransport::UcxTransport(TransportOptions options)
    : ClusterTransport(std::move(options)), run_time_(stride()) {}

Status UcxTransport::start() {
  KV_ASSIGN_OR_RETURN(const SocketAddress at, parse_address(options().listen, Names::kLookUp));
  if (at.is_any() && options().advertise_host.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--cluster-listen {} is no address that peers can reach: give --cluster-advertise-host",
                 options().listen);
  }
  KV_ASSIGN_OR_RETURN(worker_, UcxWorker::make(options(), at));
  KV_RETURN_IF_ERROR(worker_->set_handler(kFrameId, &on_frame, this));
  KV_ASSIGN_OR_RETURN(const uint16_t port, worker_->listen(at, &on_connect, this));
  set_address(join_address(options().advertise_host.empty() ? at.host() : options().advertise_host, port));
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return error(ErrorCode::kIo, "eventfd: {}", std::strerror(errno));
  thread_ = std::thread([this] { run(); });
  return {};
}

UcxTransport::~UcxTransport() {
  if (thread_.joinable()) {
    stop_ = true;
    const uint64_t one = 1;
    KV_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one), "eventfd: {}", std::strerror(errno));
    thread_.join();
  }
  worker_.reset();  // before the bytes of operations that UCX has not ended
  if (wake_fd_ >= 0) close(wake_fd_);
}

std::string UcxTransport::wire() const {
  return fmt::format("{}, frames {}", ucx_version(), kWireVersion);
}

void UcxTransport::open_link(LinkId link, uint64_t life, const PeerId& peer, const std::string& address) {
  enqueue({Command::Kind::kOpen, link, life, peer, address, {}});
}

void UcxTransport::close_link(LinkId link) {
  enqueue({Command::Kind::kClose, link, 0, {}, {}, {}});
}

void UcxTransport::post(LinkId link, std::vector<std::byte> message) {
  enqueue({Command::Kind::kPost, link, 0, {}, {}, std::move(message)});
}

void UcxTransport::enqueue(Command command) {
  {
    std::lock_guard lock(commands_mutex_);
    commands_.push_back(std::move(command));
    if (!std::exchange(asleep_, false)) return;
  }
  const uint64_t one = 1;
  KV_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one), "eventfd: {}", std::strerror(errno));
}

// What it does, also in UCX's callbacks, cannot fail for want of memory: messages keep their order.
void UcxTransport::run() {
  const WaitsForMemory patient;
  Nanos busy_at = now();
  while (!stop_) {
    bool busy = take_commands();
    // A bound, so that commands have their turn however much arrives.
    for (int i = 0; i < 64 && worker_->progress(); ++i) busy = true;
    accept_waiting();
    bury_broken();
    reap();
    const Nanos time = now();
    if (time >= next_look_) {
      run_now_ = run_time_.at(time);
      look_after_links();
      next_look_ = time + tick();
    }
    if (busy) busy_at = time;
    if (busy) continue;
    if (time - busy_at >= options().spin) {
      sleep();
    } else {
      std::this_thread::yield();  // the receiver of what has arrived may need this core
    }
  }
  shut_down();
}

void UcxTransport::sleep() {
  {
    std::lock_guard lock(commands_mutex_);
    if (!commands_.empty()) return;
    asleep_ = true;
  }
  worker_->sleep(wake_fd_, graves_.empty() ? tick() : kNanosPerMilli);
  uint64_t count = 0;
  // Nothing to read where UCX, not a command, ended the sleep.
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
  std::lock_guard lock(commands_mutex_);
  asleep_ = false;
}

bool UcxTransport::take_commands() {
  std::vector<Command> commands;
  {
    std::lock_guard lock(commands_mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (command.kind == Command::Kind::kOpen) {
      open(command);
      continue;
    }
    const auto it = links_.find(command.link);
    if (it == links_.end()) continue;  // lost meanwhile
    if (command.kind == Command::Kind::kPost) {
      it->second->queue.push_back(std::make_shared<const std::vector<std::byte>>(std::move(command.message)));
      feed(*it->second);
    } else {
      break_end(*it->second, "forgotten");
    }
  }
  bury_broken();
  return !commands.empty();
}

// Deadlines, lives that are over, and word of what was taken.
void UcxTransport::look_after_links() {
  for (auto& [id, link] : links_) {
    if (link->progress.overdue(run_now_, options().send_deadline)) {
      break_end(*link, fmt::format("it took nothing for {:.0f} ms", to_millis(options().send_deadline)));
    }
  }
  for (auto& [endpoint, arrival] : arrivals_) {
    const bool silent = arrival->from.instance.empty();
    if (!silent && arrival->life != life()) break_end(*arrival, "the life that it knows is over");
    const uint64_t taken = arrival->broken ? 0 : arrival->reports.due();
    if (taken != 0) {
      transmit(*arrival, nullptr, 0, header(FrameKind::kTaken, arrival->life, arrival->from, taken));
    }
  }
  bury_broken();
}

void UcxTransport::shut_down() {
  leaving_ = true;
  worker_->stop_listening();
  for (ucp_conn_request_h request : std::exchange(knocking_, {})) worker_->reject(request);
  for (auto& [id, link] : links_) break_end(*link, "leaving");
  for (auto& [endpoint, arrival] : arrivals_) break_end(*arrival, "leaving");
  bury_broken();
  const Nanos until = now() + kShutdown;
  while ((!reap() || !worker_->cut_accepted()) && now() < until) {
    if (!worker_->progress()) worker_->sleep(-1, kNanosPerMilli);
  }
  if (!graves_.empty())
    log_warning("cluster: UCX has not closed {} in time", count_of(graves_.size(), "connection"));
}

void UcxTransport::open(const Command& command) {
  const auto at = parse_address(command.address, Names::kNumeric);
  if (!at.ok()) return link_lost(command.link, at.status().message());
  auto link = std::make_unique<Link>();
  link->id = command.link;
  link->life = command.life;
  link->peer = command.peer;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {.addr = at->get(), .addrlen = at->length};
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &on_error, .arg = static_cast<End*>(link.get())};
  link->transport = this;
  if (const auto status = ucp_ep_create(worker_->get(), &params, &link->endpoint); status != UCS_OK) {
    return link_lost(command.link,
                     fmt::format("connecting to {}: {}", command.address, ucs_status_string(status)));
  }
  Link& opened = *link;
  links_.emplace(command.link, std::move(link));
  opened.progress.sent(run_now_);
  opened.window.push_back({0, false});
  transmit(opened, &opened, 0, header(FrameKind::kHello, opened.life, opened.peer, 0));
}

// Hands UCX what the window takes.
void UcxTransport::feed(Link& link) {
  if (!link.greeted) return;
  while (!link.broken && !link.queue.empty()) {
    const auto message = link.queue.front();
    const auto rest = std::span(*message).subspan(link.queue_offset);
    const auto part = rest.first(std::min(rest.size(), kPartBytes));
    if (link.window.size() >= kWindowFrames || link.window_bytes + part.size() > kWindowBytes) return;
    link.queue_offset += part.size();
    if (part.size() == rest.size()) {
      link.queue.pop_front();
      link.queue_offset = 0;
    }
    const uint64_t sequence = link.progress.frames_sent();
    link.progress.sent(run_now_);
    link.window.push_back({part.size(), false});
    link.window_bytes += part.size();
    std::vector<std::byte> head =
        header(FrameKind::kMessage, link.life, link.peer, sequence, part.size(), message->size());
    if (!transmit(link, &link, sequence, std::move(head), message, part)) return;
  }
}

bool UcxTransport::transmit(End& end, Link* link, uint64_t sequence, std::vector<std::byte> header,
                            std::shared_ptr<const std::vector<std::byte>> message,
                            std::span<const std::byte> part) {
  sending_.push_back({this, &end, link, sequence, std::move(header), std::move(message), part, {}});
  Sending& sending = sending_.back();
  sending.self = std::prev(sending_.end());
  ++end.operations;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &on_sent;
  param.user_data = &sending;
  param.flags = link ? UCP_AM_SEND_FLAG_REPLY : 0;  // by which the far end knows the link
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(end.endpoint, kFrameId, sending.header.data(), sending.header.size(),
                      sending.part.data(), sending.part.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return true;
  const ucs_status_t status = UCS_PTR_STATUS(request);
  sent(sending, status);
  return status == UCS_OK;
}

void UcxTransport::on_sent(void* request, ucs_status_t status, void* argument) {
  ucp_request_free(request);
  auto& sending = *static_cast<Sending*>(argument);
  UcxTransport& transport = *sending.transport;
  Link* const link = sending.link;
  transport.sent(sending, status);
  if (link && !link->broken) transport.feed(*link);
}

// Ends `sending`.
void UcxTransport::sent(Sending& sending, ucs_status_t status) {
  End& end = *sending.end;
  --end.operations;
  if (sending.link && !end.broken) left(*sending.link, sending.sequence);
  if (sending.link && !end.broken) settled(sending.link->id, sending.part.size());
  sending_.erase(sending.self);
  if (status != UCS_OK) break_end(end, ucs_status_string(status));
}

void UcxTransport::left(Link& link, uint64_t sequence) {
  if (sequence == 0) link.greeted = true;
  link.window[sequence - link.window_begin].left = true;
  while (!link.window.empty() && link.window.front().left) {
    link.window_bytes -= link.window.front().bytes;
    link.window.pop_front();
    ++link.window_begin;
  }
}

void UcxTransport::on_error(void* argument, ucp_ep_h, ucs_status_t status) {
  auto& end = *static_cast<End*>(argument);
  end.transport->break_end(end, ucs_status_string(status));
}

// From inside UCX's callbacks, where nothing may be closed.
void UcxTransport::break_end(End& end, std::string why) {
  if (std::exchange(end.broken, true)) return;
  end.why = std::move(why);
  broken_.push_back(&end);
}

void UcxTransport::bury_broken() {
  for (End* end : std::exchange(broken_, {})) {
    if (auto* link = dynamic_cast<Link*>(end)) {
      if (!leaving_) link_lost(link->id, link->why);
      const auto it = links_.find(link->id);
      std::unique_ptr<End> grave = std::move(it->second);
      links_.erase(it);
      bury(std::move(grave));
    } else {
      const auto it = arrivals_.find(end->endpoint);
      std::unique_ptr<End> grave = std::move(it->second);
      arrivals_.erase(it);
      bury(std::move(grave));
    }
  }
}

void UcxTransport::bury(std::unique_ptr<End> end) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(end->endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) end->closing = request;
  graves_.push_back(std::move(end));
}

// True when nothing is left of what was closed.
bool UcxTransport::reap() {
  std::erase_if(graves_, [](const std::unique_ptr<End>& end) {
    if (end->closing && ucp_request_check_status(end->closing) != UCS_INPROGRESS) {
      ucp_request_free(std::exchange(end->closing, nullptr));
    }
    return !end->closing && end->operations == 0;
  });
  return graves_.empty();
}

}  // namespace kvasir
