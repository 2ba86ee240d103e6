// Prompts of which a peer computes the first rows. A request whose oldest blocks have to go to peers is held
// back when it arrives, while one of them computes these rows and lends the memory in which their K and V
// then lie; then it finds them cached, and adopts them where they are. And the rows that this instance
// computes for peers: a request of its own queue, without a client.
//
//   symbol  unit  what
//   T       s     the rows, computed here (CostModel::rows_seconds), or, as is believed, at a peer
//   b       B/s   the speed of recent copies to peers (LinkStats::peer_bytes_per_s)
//   k, t    B     K and V of the rows, which stream out while these run; their token ids
//
//   here   = max(T, k / b)
//   there  = t / b + T
//
//   asks   if there + kSlackS < here. While T or b is unknown it does not: streaming measures b
//   waits  for 2 T + kGrace at most; what is not computed by then is computed here
//
// It asks no sooner when other requests wait here: while its prompt waits, the peer's memory is taken.
// With PeerPromptUse::kAlways it asks for all that has to go, and waits for kLongestWait.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/lending.h"
#include "contract/link.h"
#include "contract/view.h"
#include "engine/inbox.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/view_keeper.h"

namespace kvasir {

// Used by the engine's thread.
class PeerPrompts {
 public:
  static constexpr Nanos kGrace = kNanosPerSecond;
  static constexpr Nanos kLongestWait = 120 * kNanosPerSecond;

  // The arguments outlive it.
  struct Parts {
    const EngineOptions& options;
    const Clock& clock;
    KvCache& cache;
    View& view;
    LiveRequests& requests;
    ViewKeeper& keeper;
    Inbox& inbox;
    const Link* link;  // null: nothing is borrowed
    EngineMetrics::Peers& metrics;
  };
  explicit PeerPrompts(const Parts& parts) : p_(parts) {}

  // A request has arrived and waits: it may be held back from now on.
  void arrived(SeqId id);
  // Peers' turn. Adds the cells of answers to the cache.
  void add_to(LendingRequest& request);
  void take_in(const LendingEvents& events);
  // Before a plan: shows requests again that have waited for too long, and forgets those that have ended.
  void update();

  bool holds() const { return !asked_.empty(); }
  // Cells that may be borrowed and are kept for answers.
  uint32_t reserved() const { return reserved_; }
  // Whether it computes rows for a peer, or has to say in a turn that it has.
  bool computes() const { return !jobs_.empty() || !computed_.empty(); }
  // When update() is due even if nothing happens; INT64_MAX: never.
  Nanos next_deadline() const;

 private:
  struct Asked {
    SeqId seq{};
    std::vector<BlockHash> chain;
    uint32_t cells = 0;
    Nanos began = 0;
    Nanos until = 0;
  };
  // The client of a job's rows.
  struct Ended final : OutputSink {
    void on_output(OutputEvent event) override {
      if (event.finish) finish = event.finish;
    }
    std::optional<FinishReason> finish;
  };
  struct Job {
    RequestId request{};
    std::shared_ptr<Ended> sink;
    std::vector<PrefixHash> chain;
  };

  // The first blocks of its prompt that have to go to peers, in whole leaves.
  uint32_t blocks_to_go(const LiveRequest& live, const KvCache::PromptBlocks& prompt) const;
  bool worth_asking(uint32_t blocks) const;
  // Of so many blocks those for which cells can be borrowed, in whole leaves, if those that no sequence needs
  // go back.
  uint32_t make_room(uint32_t blocks);
  void release(const Asked& asked);
  void begin(const PromptJob& job);

  const Parts p_;
  std::map<uint64_t, Asked> asked_;  // by question
  uint32_t reserved_ = 0;            // their cells
  uint32_t lendable_ = UINT32_MAX;   // LendingEvents::lendable
  uint64_t next_id_ = 1;
  std::vector<PromptQuestion> to_ask_;
  std::vector<uint64_t> done_;
  std::map<uint64_t, Job> jobs_;
  std::vector<LendingRequest::Computed> computed_;
};

}  // namespace kvasir
