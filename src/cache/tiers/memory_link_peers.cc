// The link's thread for borrowed memory: hands pieces to the PeerMemory, which ends them when it has done
// them.
#include <algorithm>
#include <utility>

#include "base/affinity.h"
#include "cache/tiers/memory_link.h"

namespace kvasir {

void MemoryLink::run_peers() {
  if (!options_.cpus.empty()) keep_on_cpus(options_.cpus);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (wake_owed_) {
      tell(lock);
    } else if (stopping_ && at_peers_ == 0) {
      break;
    } else if (!stopping_ && at_peers_ < options_.peer_depth && can_move(kPeerLane)) {
      const PeerPiece piece = take_peer_piece();
      ++at_peers_;
      lock.unlock();
      begin_piece(piece);
      lock.lock();
    } else {
      peer_work_.wait(lock);
    }
  }
  end_thread(lock);
}

MemoryLink::PeerPiece MemoryLink::take_peer_piece() {
  Active& active = leave(kPeerLane);
  const PeerPiece piece{&active, active.segment++, clock_.now()};
  begin(active, piece.taken);
  ++active.in_hand;
  if (active.segment < active.transfer.segments.size()) queue(active);
  return piece;
}

// Without mutex_: an operation may end while it is begun.
void MemoryLink::begin_piece(const PeerPiece& piece) {
  const Segment& s = piece.of->transfer.segments[piece.segment];
  const auto done = [this, piece](Status status) { finish_piece(piece, std::move(status)); };
  if (is_borrowed(s.to)) {
    options_.peers->write(s.to.offset - options_.borrowed_begin, {at(s.from), s.bytes}, done);
  } else {
    options_.peers->read(s.from.offset - options_.borrowed_begin, {at(s.to), s.bytes}, done);
  }
}

void MemoryLink::finish_piece(const PeerPiece& piece, Status status) {
  std::lock_guard lock(mutex_);
  Active& active = *piece.of;
  const Segment& s = active.transfer.segments[piece.segment];
  const Nanos now = clock_.now();
  const Nanos busy = std::max<Nanos>(0, now - std::max(piece.taken, peers_busy_until_));
  peers_busy_until_ = std::max(peers_busy_until_, now);
  if (status.ok()) {
    if (is_borrowed(s.to)) peer_bytes_per_s_.add(static_cast<double>(s.bytes), to_seconds(busy));
    stats_.bytes[static_cast<size_t>(s.from.tier)][static_cast<size_t>(s.to.tier)] += s.bytes;
  } else {
    fail(active, std::move(status));
  }
  --at_peers_;
  put_down(active);
  peer_work_.notify_one();
}

}  // namespace kvasir
