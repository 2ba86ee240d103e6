// How operations on borrowed memory end: by replies, deadlines and deaths.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "cluster/memory/borrowed_memory.h"

namespace kvasir {
namespace {

// When to ask a creditor again that had no room for a copy. Its next answer says so earlier.
constexpr Nanos kNoRoomPause = 2 * kNanosPerMilli;

Status refusal(const PeerId& peer, DataCode code, Nanos deadline) {
  switch (code) {
    case DataCode::kTooLate:
      return error(ErrorCode::kUnavailable, "peer {} did not come to it within {:.0f} ms", peer.instance,
                   to_millis(deadline));
    case DataCode::kStaleEpoch:
      return error(ErrorCode::kUnavailable, "peer {} is in another life; recompute what lay there",
                   peer.instance);
    case DataCode::kNoCell:
      return error(ErrorCode::kUnavailable, "peer {} has taken its memory back; recompute what lay there",
                   peer.instance);
    case DataCode::kOk:
    case DataCode::kBusy:
    case DataCode::kMalformed:
    case DataCode::kNoTable:
      break;
  }
  return error(ErrorCode::kUnavailable, "peer {} takes us for malformed; are its build and model ours?",
               peer.instance);
}

}  // namespace

void BorrowedMemory::handle(const PeerId& from, std::span<const std::byte> bytes) {
  const auto header = parse_header(bytes);
  const auto payload = bytes.subspan(std::min(bytes.size(), kDataHeaderBytes));
  After after;
  MessagePtr message;
  bool taken = false;
  {
    std::lock_guard lock(mutex_);
    if (!header || header->kind != DataKind::kReply || header->debtor_epoch != self_.epoch ||
        header->creditor_epoch != from.epoch) {
      ++stats_.wrong_replies;
      return;
    }
    message = match(from, *header, payload.size());
    if (!message) {
      ++stats_.late_replies;
      return;
    }
    if (message->to != from) {
      ++stats_.wrong_replies;
      return;
    }
    const OperationPtr& operation = message->operation;
    if (header->code == DataCode::kBusy) {
      refused(message, after);
    } else if (header->code == DataCode::kNoTable && message->body.known > 0) {
      tell_again(message, after);
    } else if (header->code != DataCode::kOk) {
      fail(operation, refusal(from, header->code, options_.deadline), after);
    } else if (payload.size() != message->reply_payload) {
      ++stats_.wrong_replies;
      fail(operation,
           error(ErrorCode::kUnavailable, "peer {} sent {} bytes instead of {}", from.instance,
                 payload.size(), message->reply_payload),
           after);
    } else {
      learn(*message, *header);
      remove(*message, after);
      creditors_[message->creditor].resume_at = 0;
      ++operation->in_use;
      taken = true;
    }
  }
  if (taken) {
    take_in(*message, payload);
    std::lock_guard lock(mutex_);
    --message->operation->in_use;
    if (message->operation->status.ok()) answered(*message, after);
    settle(message->operation, after);
  }
  drive(std::move(after));
}

void BorrowedMemory::refused(const MessagePtr& message, After& after) {
  const OperationPtr& operation = message->operation;
  ++stats_.busy;
  remove(*message, after);
  if (!message->is_query()) {
    creditors_[message->creditor].resume_at = clock_.now() + kNoRoomPause;
    enqueue(std::make_shared<Message>(*message), after);
    return;
  }
  // What has not been sent yet of the share would be refused as well.
  ShareState& state = operation->states[message->share];
  std::vector<MessagePtr> those{message};
  for (const uint64_t sequence : operation->sequences) {
    const auto found = messages_.find(sequence);
    if (found == messages_.end() || found->second->sent || !found->second->is_query()) continue;
    if (found->second->share == message->share) those.push_back(found->second);
  }
  for (const MessagePtr& that : those) {
    if (!that->sent) remove(*that, after);
    const Interval rows{that->first_row, that->first_row + that->rows};
    state.refused = state.refused.empty() ? rows
                                          : Interval{std::min(state.refused.begin, rows.begin),
                                                     std::max(state.refused.end, rows.end)};
    --state.open;
  }
  query_answered(operation, message->share, after);
}

void BorrowedMemory::tell_again(const MessagePtr& message, After& after) {
  ++stats_.retold;
  creditors_[message->creditor].tables.forget(message->body.table);
  remove(*message, after);
  const auto again = std::make_shared<Message>(*message);
  name_all_cells(*again);
  enqueue(again, after);
}

void BorrowedMemory::answered(const Message& message, After& after) {
  const OperationPtr& operation = message.operation;
  if (message.is_query()) {
    --operation->states[message.share].open;
    query_answered(operation, message.share, after);
  } else if (operation->kind == DataKind::kAttend) {
    window_read({operation, message.share, message.window});
  } else {
    --operation->open;
  }
}

void BorrowedMemory::query_answered(const OperationPtr& operation, uint32_t share, After& after) {
  ShareState& state = operation->states[share];
  if (state.open > 0) return;
  if (state.refused.empty()) {
    state.done = true;
    --operation->open;
  } else {
    ++stats_.fetched_busy;
    fetch(operation, share, state.refused, after);
  }
}

BorrowedMemory::MessagePtr BorrowedMemory::match(const PeerId& from, const DataHeader& header,
                                                 uint64_t payload_bytes) const {
  const auto found = messages_.find(header.sequence);
  if (found != messages_.end() && found->second->sent) return found->second;
  if (mutant(Mutant::kStaleReplyMerged)) {
    for (const auto& [sequence, message] : messages_) {
      if (message->sent && message->to == from && message->reply_payload == payload_bytes) return message;
    }
  }
  return nullptr;
}

void BorrowedMemory::learn(const Message& message, const DataHeader& reply) {
  const Nanos took = std::max<Nanos>(clock_.now() - message.sent_at, 0);
  // What a peer says of itself is no more than we have seen pass.
  const auto worked = static_cast<Nanos>(std::min(reply.span_ns, static_cast<uint64_t>(took)));
  const auto waited = static_cast<Nanos>(std::min(reply.waited_ns, static_cast<uint64_t>(took - worked)));
  PeerCostEstimate& estimate = creditors_[message.creditor].estimate;
  if (message.alone) estimate.moved(message.flight_bytes(), to_seconds(took - worked - waited));
  if (!message.is_query()) return;
  const uint32_t leaves = message.operation->shares.shares[message.share].leaves();
  estimate.attended(static_cast<double>(leaves) * message.rows, to_seconds(worked), to_seconds(waited));
  stats_.partial_bytes += message.reply_payload;
  stats_.partial_extra_bytes += kDataHeaderBytes;
}

void BorrowedMemory::take_in(const Message& message, std::span<const std::byte> payload) {
  if (payload.empty()) return;
  Operation& operation = *message.operation;
  std::byte* to = message.into.data();
  if (message.is_query()) {
    const uint64_t row_bytes = shape_.partial_bytes(1, operation.shares.shares[message.share].peaks);
    to = reinterpret_cast<std::byte*>(operation.states[message.share].records.data()) +
         message.first_row * row_bytes;
  }
  std::memcpy(to, payload.data(), payload.size());
}

void BorrowedMemory::merge(Operation& operation) {
  std::vector<const float*> records;
  for (const ShareState& state : operation.states) records.push_back(state.records.data());
  merge_shares(shape_, kernels_, operation.shares, operation.rows, records, operation.partials.data());
}

// ---------------------------------------------------------------- ends

void BorrowedMemory::remove(const Message& message, After& after) {
  if (message.sent) {
    creditors_[message.creditor].in_flight_bytes -= message.flight_bytes();
    stats_.in_flight_bytes -= message.flight_bytes();
  } else {
    --stats_.queued;
  }
  after.creditors.push_back(message.creditor);
  messages_.erase(message.sequence);
}

void BorrowedMemory::fail(const OperationPtr& operation, Status status, After& after) {
  if (operation->settled || !operation->status.ok()) return;
  operation->status = std::move(status);
  operation->failed = true;
  ++stats_.failed;
  operations_.erase(operation->age);
  for (const uint64_t sequence : operation->sequences) {
    const auto found = messages_.find(sequence);
    if (found != messages_.end()) remove(*MessagePtr(found->second), after);
  }
  settle(operation, after);
}

void BorrowedMemory::settle(const OperationPtr& operation, After& after) {
  const bool over = !operation->status.ok() || operation->open == 0;
  if (!over || operation->in_use > 0 || operation->settled) return;
  operation->settled = true;
  after.ended.push_back(operation);
  if (!operation->status.ok()) {
    release_all(operation, after);
    return;
  }
  operations_.erase(operation->age);
  switch (operation->kind) {
    case DataKind::kWrite:
      stats_.written_bytes += operation->from.size();
      break;
    case DataKind::kRead:
      stats_.read_bytes += operation->to.size();
      break;
    default:
      ++stats_.queries;
      stats_.leaf_rows += uint64_t{operation->shares.run.leaves()} * operation->rows;
  }
}

Nanos BorrowedMemory::tick() {
  After after;
  Nanos next = INT64_MAX;
  {
    std::lock_guard lock(mutex_);
    const Nanos now = clock_.now();
    while (!operations_.empty() && operations_.begin()->second->deadline <= now) {
      const OperationPtr operation = operations_.begin()->second;
      ++stats_.deadlines;
      fail(operation, too_late(*operation), after);
    }
    if (!operations_.empty()) next = operations_.begin()->second->deadline;
    for (uint32_t c = 0; c < creditors_.size(); ++c) {
      Creditor& creditor = creditors_[c];
      if (creditor.resume_at == 0 || !first_queued(creditor)) continue;
      if (creditor.resume_at > now) {
        next = std::min(next, creditor.resume_at);
      } else {
        creditor.resume_at = 0;
        after.creditors.push_back(c);
      }
    }
  }
  drive(std::move(after));
  return next;
}

Status BorrowedMemory::too_late(const Operation& operation) const {
  const double ms = to_millis(options_.deadline);
  for (const uint64_t sequence : operation.sequences) {
    const auto found = messages_.find(sequence);
    if (found == messages_.end()) continue;
    return error(ErrorCode::kUnavailable, "peer {} did not answer within {:.0f} ms",
                 found->second->to.instance, ms);
  }
  return error(ErrorCode::kUnavailable, "what lies at peers was not attended to within {:.0f} ms", ms);
}

BorrowedMemoryStats BorrowedMemory::stats() const {
  std::lock_guard lock(mutex_);
  BorrowedMemoryStats stats = stats_;
  stats.creditors = creditors_.size();
  return stats;
}

std::optional<PeerCost> BorrowedMemory::cost(const PeerId& creditor) const {
  std::lock_guard lock(mutex_);
  const auto c = find(creditor);
  return c ? creditors_[*c].estimate.cost() : std::nullopt;
}

std::optional<PeerCost> BorrowedMemory::believed_cost(const PeerId& creditor) const {
  std::lock_guard lock(mutex_);
  const auto c = find(creditor);
  return c ? creditors_[*c].estimate.believed() : std::nullopt;
}

}  // namespace kvasir
