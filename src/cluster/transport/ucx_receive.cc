// The UCX transport's other half: links of others, and what comes along them.
#include <utility>

#include "cluster/transport/ucx_links.h"

namespace kvasir {
namespace {

constexpr size_t kMaxArrivals = 1024;

}  // namespace

void UcxTransport::on_connect(ucp_conn_request_h request, void* argument) {
  auto& transport = *static_cast<UcxTransport*>(argument);
  if (transport.leaving_ || transport.arrivals_.size() + transport.knocking_.size() >= kMaxArrivals) {
    transport.worker_->reject(request);
    transport.count_refused();
    return;
  }
  transport.knocking_.push_back(request);
}

void UcxTransport::accept_waiting() {
  for (ucp_conn_request_h request : std::exchange(knocking_, {})) {
    auto arrival = std::make_unique<Arrival>();
    arrival->transport = this;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.conn_request = request;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {.cb = &on_error, .arg = static_cast<End*>(arrival.get())};
    // On failure UCX has released the request, and the other side learns of it.
    if (ucp_ep_create(worker_->get(), &params, &arrival->endpoint) != UCS_OK) {
      count_refused();
      continue;
    }
    const ucp_ep_h endpoint = arrival->endpoint;
    arrivals_.emplace(endpoint, std::move(arrival));
  }
}

ucs_status_t UcxTransport::on_frame(void* argument, const void* header, size_t header_bytes, void* data,
                                    size_t bytes, const ucp_am_recv_param_t* how) {
  auto& transport = *static_cast<UcxTransport*>(argument);
  if ((how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    transport.count_rejected();  // no sender of ours asks us to fetch; dropped unfetched
    return UCS_OK;
  }
  transport.take_frame({static_cast<const std::byte*>(header), header_bytes},
                       {static_cast<const std::byte*>(data), bytes}, *how);
  return UCS_OK;
}

void UcxTransport::take_frame(std::span<const std::byte> header, std::span<const std::byte> part,
                              const ucp_am_recv_param_t& how) {
  const auto frame = admit(header, part.size());
  if (frame.ok() && frame->kind == FrameKind::kTaken) return take_report(*frame);
  const bool known = (how.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  const auto it = known ? arrivals_.find(how.reply_ep) : arrivals_.end();
  if (it == arrivals_.end() || it->second->broken) return;  // of a link that is being closed
  Arrival& arrival = *it->second;
  if (!frame.ok()) return refuse(arrival, frame.status().message());
  if (arrival.from.instance.empty()) {
    arrival.from = frame->from;
    arrival.life = frame->to_epoch;
  }
  if (arrival.from != frame->from || arrival.life != frame->to_epoch ||
      (frame->kind == FrameKind::kHello) != (frame->sequence == 0)) {
    count_rejected();
    return refuse(arrival, "a frame out of turn");
  }
  take_part(arrival, *frame, part);
}

void UcxTransport::take_part(Arrival& arrival, const FrameHeader& frame, std::span<const std::byte> part) {
  if (arrival.order.is_next(frame.sequence)) {
    if (!in_turn(arrival, frame.message_bytes, part)) return;
    for (const MessagePart& held : arrival.order.pass()) {
      if (!in_turn(arrival, held.message_bytes, held.bytes)) return;
    }
    return;
  }
  // An honest sender keeps one window under way; twice that has slack.
  if (arrival.order.held_bytes() + part.size() > 2 * kWindowBytes ||
      arrival.order.held_parts() >= 2 * kWindowFrames) {
    return refuse(arrival, "too much of what it sends waits for what it sent before");
  }
  if (!arrival.order.hold(frame.sequence, {frame.message_bytes, {part.begin(), part.end()}})) {
    count_rejected();
    refuse(arrival, "it repeats itself");
  }
}

// Takes a frame whose turn it is. False: the link is broken.
bool UcxTransport::in_turn(Arrival& arrival, uint64_t message_bytes, std::span<const std::byte> part) {
  arrival.reports.took();
  if (!std::exchange(arrival.greeted, true)) return true;  // the greeting
  if (!arrival.assembly.add(message_bytes, part)) {
    count_rejected();
    refuse(arrival, "parts that make no message");
    return false;
  }
  if (!arrival.assembly.whole()) return true;
  const Status taken = deliver(arrival.from, arrival.life, arrival.assembly.take());
  if (!taken.ok()) refuse(arrival, taken.message());
  return taken.ok();
}

void UcxTransport::take_report(const FrameHeader& frame) {
  for (auto& [id, link] : links_) {
    if (link->peer != frame.from || link->life != frame.to_epoch || link->broken) continue;
    if (!link->progress.taken(frame.sequence, run_now_))
      break_end(*link, "it counts frames that were not sent");
  }
}

void UcxTransport::refuse(Arrival& arrival, std::string why) {
  if (arrival.broken) return;
  count_refused();
  break_end(arrival, std::move(why));
}

}  // namespace kvasir
