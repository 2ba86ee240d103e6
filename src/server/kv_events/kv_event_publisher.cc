#include "server/kv_events/kv_event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/patiently.h"
#include "server/kv_events/kv_event_codec.h"

namespace kvasir {
namespace {

// How long the end waits for subscribers that are slow to take the last events.
constexpr int kLingerMs = 200;
// What others may send to us: subscriptions to topics, and requests for replays.
constexpr int64_t kMaxReceivedBytes = 4096;
constexpr uint64_t kEndOfReplay = UINT64_MAX;

bool set_option(void* socket, int option, int value) {
  return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

// A frame that shares the payload's memory.
bool send_payload(void* socket, const ReplayBuffer::Payload& payload, int flags) {
  auto owner = std::make_unique<ReplayBuffer::Payload>(payload);
  const auto release = [](void*, void* hint) { delete static_cast<ReplayBuffer::Payload*>(hint); };
  zmq_msg_t message;
  // ZeroMQ does not write to a message that it sends.
  if (zmq_msg_init_data(&message, const_cast<uint8_t*>(payload->data()), payload->size(), release,
                        owner.get()) != 0) {
    return false;
  }
  owner.release();
  if (zmq_msg_send(&message, socket, flags) >= 0) return true;
  zmq_msg_close(&message);
  return false;
}

bool send_frame(void* socket, std::string_view frame, int flags) {
  return zmq_send(socket, frame.data(), frame.size(), flags) >= 0;
}

bool send_number(void* socket, uint64_t number, int flags) {
  const std::array<uint8_t, 8> bytes = big_endian(number);
  return zmq_send(socket, bytes.data(), bytes.size(), flags) >= 0;
}

// All frames of the next message; none if there is no message.
std::vector<std::string> receive(void* socket) {
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return {};
    }
    frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
  }
  return frames;
}

bool binds(std::string_view endpoint) {
  const auto begins = [&](std::string_view with) { return endpoint.substr(0, with.size()) == with; };
  return begins("@") || begins("ipc://") || begins("inproc://") ||
         endpoint.find('*') != std::string_view::npos || endpoint.find("::") != std::string_view::npos;
}

}  // namespace

class KvEventPublisher::Sockets {
 public:
  Sockets() : context_(zmq_ctx_new()) {}
  ~Sockets() {
    if (pub_) zmq_close(pub_);
    if (router_) zmq_close(router_);
    if (context_) zmq_ctx_term(context_);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  void* pub() const { return pub_; }
  void* router() const { return router_; }  // null: there is none

  // Each returns the socket's address.
  Result<std::string> open_pub(const KvEventsConfig& config) {
    return open(pub_, ZMQ_PUB, config.endpoint_setting, config.endpoint, binds(config.endpoint), config.hwm);
  }
  // A client that does not read has room for two replays; what more it asks for is dropped.
  Result<std::string> open_router(const KvEventsConfig& config) {
    return open(router_, ZMQ_ROUTER, "--kv-events-config: 'replay_endpoint'", config.replay_endpoint, true,
                2 * (config.buffer_steps + 1));
  }

 private:
  Result<std::string> open(void*& socket, int type, std::string_view setting, std::string_view endpoint,
                           bool bind, uint32_t hwm) {
    if (endpoint.substr(0, 1) == "@") endpoint.remove_prefix(1);
    const std::string address(endpoint);
    if (context_) socket = zmq_socket(context_, type);
    const bool ok =
        socket && set_option(socket, ZMQ_LINGER, kLingerMs) &&
        set_option(socket, ZMQ_SNDHWM, static_cast<int>(hwm)) &&
        set_option(socket, ZMQ_IPV6, endpoint.find('[') != std::string_view::npos ? 1 : 0) &&
        zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &kMaxReceivedBytes, sizeof(kMaxReceivedBytes)) == 0;
    if (!ok || (bind ? zmq_bind(socket, address.c_str()) : zmq_connect(socket, address.c_str())) != 0) {
      const ErrorCode code =
          errno == EINVAL || errno == EPROTONOSUPPORT ? ErrorCode::kInvalidArgument : ErrorCode::kIo;
      return error(code, "{} {}: {}", setting, address, zmq_strerror(errno));
    }
    std::array<char, 256> last{};
    size_t size = last.size();
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, last.data(), &size) != 0) return address;
    return std::string(last.data());
  }

  void* const context_;
  void* pub_ = nullptr;
  void* router_ = nullptr;
};

KvEventPublisher::KvEventPublisher(const KvEventsConfig& config, uint32_t block_tokens)
    : block_tokens_(block_tokens),
      topic_(config.topic),
      sockets_(std::make_unique<Sockets>()),
      queue_(config.max_queue_size, [this] { wake(); }),
      kept_(config.buffer_steps, kMaxReplayBytes) {}

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(const KvEventsConfig& config,
                                                                  uint32_t block_tokens) {
  std::unique_ptr<KvEventPublisher> out(new KvEventPublisher(config, block_tokens));
  out->wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (out->wake_fd_ < 0) {
    return error(ErrorCode::kExhausted, "KV events: no eventfd: raise the limit of open files");
  }
  KV_ASSIGN_OR_RETURN(out->endpoint_, out->sockets_->open_pub(config));
  if (!config.replay_endpoint.empty()) {
    KV_ASSIGN_OR_RETURN(out->replay_endpoint_, out->sockets_->open_router(config));
  }
  out->thread_ = std::thread([publisher = out.get()] { publisher->run(); });
  return out;
}

KvEventPublisher::~KvEventPublisher() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  sockets_.reset();
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void KvEventPublisher::wake() {
  if (wake_fd_ >= 0) eventfd_write(wake_fd_, 1);
}

void KvEventPublisher::run() {
  void* const router = sockets_->router();
  std::array<zmq_pollitem_t, 2> items = {{{nullptr, wake_fd_, ZMQ_POLLIN, 0}, {router, 0, ZMQ_POLLIN, 0}}};
  for (;;) {
    if (zmq_poll(items.data(), router ? 2 : 1, -1) < 0 && errno != EINTR) {
      log_error("KV events: no further ones are published: {}", zmq_strerror(errno));
      return;
    }
    eventfd_t calls = 0;
    eventfd_read(wake_fd_, &calls);
    const bool last = stopping_;
    while (const auto batch = patiently([this] { return queue_.pop(); })) send(*batch);
    try {
      if (router) answer_replay();
    } catch (const std::bad_alloc&) {
      log_warning("KV events: no memory to replay them to a client, which has to ask again");
    }
    if (last) return;
  }
}

void KvEventPublisher::send(const KvEventQueue::Batch& batch) {
  const auto payload = patiently([&] {
    return std::make_shared<const std::vector<uint8_t>>(
        encode_kv_events(batch.unix_seconds, batch.events, block_tokens_));
  });
  // A PUB socket never waits: a subscriber for which too much waits already misses the message.
  void* const pub = sockets_->pub();
  const bool sent = send_frame(pub, topic_, ZMQ_SNDMORE) && send_number(pub, batch.sequence, ZMQ_SNDMORE) &&
                    send_payload(pub, payload, 0);
  if (!sent) log_warning("KV events: message {} was not sent: {}", batch.sequence, zmq_strerror(errno));
  ++batches_;
  if (!sockets_->router()) return;
  patiently([&] { kept_.add(batch.sequence, payload); });
  kept_bytes_ = kept_.bytes();
}

// Answers one request, so that many of them do not hold up new events. A request is [client, "", sequence];
// anything else gets no answer.
void KvEventPublisher::answer_replay() {
  void* const router = sockets_->router();
  const std::vector<std::string> frames = receive(router);
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return;
  uint64_t first = 0;
  for (char byte : frames[2]) first = first << 8 | static_cast<uint8_t>(byte);
  const auto answer = [&](uint64_t sequence, const ReplayBuffer::Payload& payload) {
    // A client that is gone, or for which too much waits, gets none of the frames.
    (void)(send_frame(router, frames[0], ZMQ_SNDMORE) && send_frame(router, "", ZMQ_SNDMORE) &&
           send_number(router, sequence, ZMQ_SNDMORE) && send_payload(router, payload, 0));
  };
  kept_.for_each_from(first, answer);
  answer(kEndOfReplay, std::make_shared<const std::vector<uint8_t>>());
  ++replays_;
}

std::vector<OutsideMetric> KvEventPublisher::metrics() const {
  const KvEventQueue::Stats stats = queue_.stats();
  const auto count = [](uint64_t n) { return static_cast<double>(n); };
  return {{"kv_events_total", "counter", count(stats.events),
           "Blocks told to subscribers as stored or removed, and clearings."},
          {"kv_events_dropped_total", "counter", count(stats.dropped),
           "Of blocks that changed, those that were not told one by one because the queue was full."},
          {"kv_events_queued", "gauge", count(stats.queued), "Events that wait to be published."},
          {"kv_event_messages_total", "counter", count(batches_), "Messages published."},
          {"kv_event_replays_total", "counter", count(replays_), "Requests for missed messages."},
          {"kv_event_replay_bytes", "gauge", count(kept_bytes_), "Messages kept for such requests."}};
}

}  // namespace kvasir
