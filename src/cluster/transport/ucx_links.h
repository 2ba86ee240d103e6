// The UCX transport's insides: its links, and the one thread that drives UCX. Users include ucx_transport.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cluster/transport/cluster_transport.h"
#include "cluster/transport/link_state.h"
#include "cluster/transport/ucx_worker.h"

namespace kvasir {

// Messages go in parts that UCX sends whole, by copying. Its other ways (rendezvous, and sending from the
// message's own memory) abort the process in UCX 1.13.1 when the peer dies in the middle.
constexpr size_t kPartBytes = size_t{60} << 10;

// The most that a sender hands to UCX beyond the oldest frame that has not left: while that frame is under
// way, the far end must hold the frames that overtake it. Both ends rely on this bound. A longer message
// goes alone.
constexpr size_t kWindowFrames = 1024;
constexpr size_t kWindowBytes = size_t{16} << 20;

class UcxTransport final : public ClusterTransport {
 public:
  // REQUIRES: check_options(options).ok()
  explicit UcxTransport(TransportOptions options);
  ~UcxTransport() override;
  // Listens and starts the thread. Call once, before anything else.
  Status start();
  std::string wire() const override;

 protected:
  void open_link(LinkId link, uint64_t life, const PeerId& peer, const std::string& address) override;
  void close_link(LinkId link) override;
  void post(LinkId link, std::vector<std::byte> message) override;

 private:
  // UCX's end of a connection. It outlives its operations, which end after the connection does.
  struct End {
    virtual ~End() = default;
    UcxTransport* transport = nullptr;
    ucp_ep_h endpoint = nullptr;
    void* closing = nullptr;  // UCX's request, while it closes
    uint32_t operations = 0;
    bool broken = false;  // in broken_, or past that
    std::string why;
  };
  // A link of ours: to a peer.
  struct Link final : End {
    LinkId id = 0;
    uint64_t life = 0;  // of ours
    PeerId peer;
    // The greeting has left, so UCX has connected. UCX 1.13 aborts if anything but a short message is sent
    // before.
    bool greeted = false;
    std::deque<std::shared_ptr<const std::vector<std::byte>>> queue;  // not yet with UCX
    size_t queue_offset = 0;  // of the first: where its next part begins
    // Frames with UCX, from the oldest that has not left. Its span is bounded: while the oldest is under
    // way, the far end holds the frames that overtake it.
    struct Slot {
      size_t bytes;
      bool left;
    };
    std::deque<Slot> window;
    uint64_t window_begin = 0;  // sequence of the first
    size_t window_bytes = 0;
    SendProgress progress;
  };
  // An incoming link: from a peer, or from an unknown sender.
  struct Arrival final : End {
    PeerId from;        // no instance: nothing has arrived yet
    uint64_t life = 0;  // of ours, to which it sends
    Reorder order;
    Assembly assembly;
    TakenReports reports;
    bool greeted = false;  // the first frame, the greeting, has been handled
  };
  // One send that UCX has not ended. Its bytes stay where they are until then.
  struct Sending {
    UcxTransport* transport;
    End* end;
    Link* link;  // null: an acknowledgement
    uint64_t sequence;
    std::vector<std::byte> header;
    std::shared_ptr<const std::vector<std::byte>> message;  // null: the header is all
    std::span<const std::byte> part;
    std::list<Sending>::iterator self;
  };
  struct Command {
    enum class Kind { kOpen, kClose, kPost } kind;
    LinkId link;
    uint64_t life;  // of kOpen
    PeerId peer;
    std::string address;
    std::vector<std::byte> message;
  };

  void enqueue(Command command);

  // Only the thread uses what follows.
  void run();
  bool take_commands();
  void sleep();
  void look_after_links();
  void shut_down();

  // ucx_transport.cc: links of ours
  void open(const Command& command);
  void feed(Link& link);
  bool transmit(End& end, Link* link, uint64_t sequence, std::vector<std::byte> header,
                std::shared_ptr<const std::vector<std::byte>> message = nullptr,
                std::span<const std::byte> part = {});
  void sent(Sending& sending, ucs_status_t status);
  void left(Link& link, uint64_t sequence);
  void break_end(End& end, std::string why);
  void bury_broken();
  void bury(std::unique_ptr<End> end);
  bool reap();
  static void on_sent(void* request, ucs_status_t status, void* argument);
  static void on_error(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  // ucx_receive.cc: links of others
  void accept_waiting();
  void take_frame(std::span<const std::byte> header, std::span<const std::byte> part,
                  const ucp_am_recv_param_t& how);
  void take_part(Arrival& arrival, const FrameHeader& frame, std::span<const std::byte> part);
  bool in_turn(Arrival& arrival, uint64_t message_bytes, std::span<const std::byte> part);
  void take_report(const FrameHeader& frame);
  void refuse(Arrival& arrival, std::string why);
  static void on_connect(ucp_conn_request_h request, void* argument);
  static ucs_status_t on_frame(void* argument, const void* header, size_t header_bytes, void* data,
                               size_t bytes, const ucp_am_recv_param_t* how);

  std::unique_ptr<UcxWorker> worker_;
  std::vector<ucp_conn_request_h> knocking_;
  std::map<LinkId, std::unique_ptr<Link>> links_;
  std::unordered_map<ucp_ep_h, std::unique_ptr<Arrival>> arrivals_;
  std::vector<End*> broken_;
  std::vector<std::unique_ptr<End>> graves_;  // closing, or with operations that have not ended
  std::list<Sending> sending_;
  RunTime run_time_;
  Nanos run_now_ = 0;
  Nanos next_look_ = 0;
  bool leaving_ = false;

  int wake_fd_ = -1;  // constant after start()
  std::atomic<bool> stop_{false};
  std::mutex commands_mutex_;  // guards what follows
  std::vector<Command> commands_;
  bool asleep_ = false;

  std::thread thread_;
};

}  // namespace kvasir
