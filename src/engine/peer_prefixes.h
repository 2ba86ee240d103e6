// Blocks of prompts that this instance lacks and a peer has, under every policy: a request that arrives is
// held back while peers are asked and blocks are copied to the device, or while a peer is asked to keep them
// where they lie, to be attended there; then it waits as any other, and finds them cached. The other requests
// go on meanwhile.
//
//   symbol  unit  what
//   T(n)    s     the rows of n missing blocks, computed here (CostModel::prefill_seconds)
//   p       -     share of the blocks asked for that peers had, of late
//   b       B/s   the speed of recent copies from that peer
//   s, r    s     attending to n blocks there: for each step, and for each row (PrefixAnswer::Attending)
//   D, R    -     tokens to come (predicted; or at most), and rows of the prompt behind the n blocks
//   C       -     steps that these rows take
//
//   asks                if T(missing) is more than kSlack
//   waits for an answer at most max(p, 1/16) T(missing), but kLeastWait at least and kLongestWait at most
//   copies n blocks     if bytes(n) / b <= T(n) + kSlack, or if b is unknown or older than kOld
//   attends n blocks    if b is known and (D + C) s + (D + R) r + T of those that are not attended is kSlack
//                       less than the time of a copy and than T(n) + kSlack; or, where it would copy and has
//                       no room, if it is less than T(n) + kSlack
//   waits for the bytes at most T(n), but kLeastWait at least and kLongestWait at most
//
// So a request waits about as long as it hopes to gain. What comes later serves requests that come later.
// Whole leaves of attention are attended, and only if what is cached of the prompt ends with a leaf. The peer
// keeps them until the requests have ended for which they were found.
// With PeerPrefixUse::kFetch it asks for everything, waits for kLongestWait and copies whatever there is;
// with kAttend it attends what can be.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/sequences/kv_cache.h"
#include "contract/lending.h"
#include "contract/link.h"
#include "contract/view.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"
#include "engine/options.h"
#include "engine/view_keeper.h"

namespace kvasir {

// Used by the engine's thread.
class PeerPrefixes {
 public:
  static constexpr Nanos kLeastWait = 5 * kNanosPerMilli;
  static constexpr Nanos kLongestWait = 2 * kNanosPerSecond;
  static constexpr Nanos kOld = 10 * kNanosPerSecond;

  // The arguments outlive it.
  struct Parts {
    const EngineOptions& options;
    const Clock& clock;
    KvCache& cache;
    View& view;
    LiveRequests& requests;
    ViewKeeper& keeper;
    Link& link;
    EngineMetrics::Peers& metrics;
  };
  explicit PeerPrefixes(const Parts& parts) : p_(parts) {}

  // A request has arrived and waits: it may be held back from now on.
  void arrived(SeqId id);
  // Peers' turn.
  void add_to(LendingRequest& request);
  void take_in(const LendingEvents& events);
  // Before a plan, when ended transfers are known: shows requests again that have what they waited for, or
  // have waited for too long.
  void update();

  bool holds() const { return !held_.empty(); }
  // When update() is due even if nothing happens; INT64_MAX: never.
  Nanos next_deadline() const;

 private:
  struct Question {
    KvCache::PromptBlocks prompt;
    Nanos until = 0;  // no request is held for it any longer
    std::vector<SeqId> held;
    // While a peer is asked to keep what it has shown.
    std::optional<PrefixAnswer> shown;
    // While blocks are copied.
    std::optional<TransferId> copy;
    std::string peer;
    size_t blocks = 0;
    uint64_t bytes = 0;
    Nanos began = 0;
  };
  struct Path {
    double bytes = 0, seconds = 0;  // sums in which older copies weigh less
    Nanos measured = 0;
  };

  double seconds_to_compute(size_t blocks, size_t before) const;
  Nanos bound(double seconds) const;
  // True: it waits for something now.
  bool begin(Question& question, const PrefixAnswer& answer);
  bool copy(Question& question, const PrefixAnswer& answer);
  bool keep(Question& question, const PrefixAnswer& answer);
  // How many of the blocks asked for lie in these cells.
  size_t blocks_of(const Question& question, const std::vector<uint32_t>& cells) const;
  // The blocks that can be attended, of those that a peer has.
  size_t attendable(const Question& question, size_t blocks) const;
  // Nothing: unknown, so that it is to be measured.
  std::optional<double> seconds_to_copy(const std::string& peer, size_t blocks) const;
  double seconds_to_attend(const Question& question, const PrefixAnswer& answer, size_t blocks) const;
  void take_kept(const PrefixKeptAnswer& answer);
  void note_found(double share);
  void copied(Question& question, bool ok);
  void release(Question& question);
  uint32_t tokens(size_t blocks) const {
    return static_cast<uint32_t>(blocks) * p_.options.cache.geometry.block_tokens;
  }

  const Parts p_;
  std::map<uint64_t, Question> questions_;  // by id
  uint64_t next_id_ = 1;
  std::map<SeqId, Nanos> held_;  // since when
  std::vector<PrefixQuestion> to_ask_;
  std::vector<uint64_t> done_;
  std::vector<PrefixKept> to_keep_;
  std::map<uint64_t, std::vector<SeqId>> attended_;  // by KvCache::attend_at_peers(): for which requests
  double found_ = 1;                                 // p above
  std::map<std::string, Path> paths_;                // by peer
};

}  // namespace kvasir
