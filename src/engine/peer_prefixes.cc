#include "engine/peer_prefixes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/prefix_fetch.h"

namespace kvasir {
namespace {

// What a new observation counts of a moving mean.
constexpr double kOfOne = 1.0 / 16;
// While the costs are unknown.
constexpr Nanos kUsualWait = 100 * kNanosPerMilli;

}  // namespace

double PeerPrefixes::seconds_to_compute(size_t blocks, size_t before) const {
  return p_.view.costs.rows_seconds(tokens(blocks), tokens(before));
}

Nanos PeerPrefixes::bound(double seconds) const {
  if (p_.options.peer_prefixes != PeerPrefixUse::kByCost) return kLongestWait;
  if (!p_.view.costs.known()) return kUsualWait;
  return std::clamp(from_seconds(seconds), kLeastWait, kLongestWait);
}

// ---------------------------------------------------------------- asking

void PeerPrefixes::arrived(SeqId id) {
  LiveRequest* const live = p_.requests.find(id);
  if (!live || live->for_peer || live->state != LiveRequest::State::kWaiting) return;
  KvCache::PromptBlocks prompt = p_.cache.prompt_blocks(id);
  const std::span<const BlockHash> missing = prompt.missing();
  if (missing.empty()) return;
  const double gain = seconds_to_compute(missing.size(), prompt.cached);
  const bool by_cost = p_.options.peer_prefixes == PeerPrefixUse::kByCost;
  if (by_cost && p_.view.costs.known() && gain <= kSlackS) return;
  const auto same = std::find_if(questions_.begin(), questions_.end(), [&](const auto& q) {
    return q.second.prompt.missing().front() == missing.front() && q.second.until > p_.clock.now();
  });
  if (same != questions_.end()) {
    // It waits for the blocks that both need.
    same->second.held.push_back(id);
  } else {
    const Nanos now = p_.clock.now();
    Question question;
    question.until = now + bound(std::max(found_, kOfOne) * gain);
    question.held.push_back(id);
    p_.metrics.prefix_queries += tokens(missing.size());
    PrefixQuestion ask{next_id_, {}, prompt.hashes.front().words, question.until};
    for (const BlockHash& hash : missing) ask.chain.push_back(hash.words);
    question.prompt = std::move(prompt);
    to_ask_.push_back(std::move(ask));
    questions_.emplace(next_id_++, std::move(question));
  }
  held_[id] = p_.clock.now();
  p_.requests.hold({&live, 1});
}

void PeerPrefixes::add_to(LendingRequest& request) {
  for (auto it = attended_.begin(); it != attended_.end();) {
    std::erase_if(it->second, [&](SeqId id) { return p_.requests.find(id) == nullptr; });
    const bool over = it->second.empty();
    if (over) p_.cache.let_go(it->first);
    it = over ? attended_.erase(it) : std::next(it);
  }
  request.prefixes_wanted = std::exchange(to_ask_, {});
  request.prefixes_done = std::exchange(done_, {});
  request.prefixes_kept = std::exchange(to_keep_, {});
}

// ---------------------------------------------------------------- what was found

void PeerPrefixes::note_found(double share) {
  found_ += (share - found_) * kOfOne;
}

void PeerPrefixes::take_in(const LendingEvents& events) {
  for (const PrefixAnswer& answer : events.prefixes_found) {
    const auto it = questions_.find(answer.id);
    if (it == questions_.end() || it->second.copy || it->second.shown) {
      done_.push_back(answer.id);
      continue;
    }
    Question& question = it->second;
    const size_t blocks = blocks_of(question, answer.cells);
    note_found(static_cast<double>(blocks) / static_cast<double>(question.prompt.missing().size()));
    if (blocks == 0 && p_.clock.now() >= question.until)
      p_.metrics.prefix_late += tokens(question.prompt.missing().size());
    if (blocks > 0 && begin(question, answer)) continue;
    release(question);
    done_.push_back(answer.id);
    questions_.erase(it);
  }
  for (const PrefixKeptAnswer& answer : events.prefixes_kept) take_kept(answer);
}

size_t PeerPrefixes::blocks_of(const Question& question, const std::vector<uint32_t>& cells) const {
  return std::min(cells.size() / p_.cache.geometry().groups(), question.prompt.missing().size());
}

bool PeerPrefixes::begin(Question& question, const PrefixAnswer& answer) {
  const PeerPrefixUse use = p_.options.peer_prefixes;
  if (use == PeerPrefixUse::kAttend) return keep(question, answer) || copy(question, answer);
  if (use == PeerPrefixUse::kFetch || !p_.view.costs.known()) return copy(question, answer);
  const size_t blocks = blocks_of(question, answer.cells);
  const double compute_s = seconds_to_compute(blocks, question.prompt.cached) + kSlackS;
  const double attend_s = seconds_to_attend(question, answer, blocks);
  const std::optional<double> copy_s = seconds_to_copy(answer.peer, blocks);
  if (copy_s && attend_s + kSlackS < std::min(*copy_s, compute_s)) return keep(question, answer);
  if (copy_s && *copy_s > compute_s) return false;
  return copy(question, answer) || (attend_s < compute_s && keep(question, answer));
}

std::optional<double> PeerPrefixes::seconds_to_copy(const std::string& peer, size_t blocks) const {
  const auto path = paths_.find(peer);
  if (path == paths_.end() || p_.clock.now() - path->second.measured > kOld) return std::nullopt;
  const uint64_t bytes = blocks * p_.cache.geometry().kv_block_bytes();
  return static_cast<double>(bytes) * path->second.seconds / path->second.bytes;
}

size_t PeerPrefixes::attendable(const Question& question, size_t blocks) const {
  const uint32_t leaf = p_.cache.geometry().blocks_per_leaf();
  if (p_.options.cache.attended_cells == 0 || question.prompt.cached % leaf != 0) return 0;
  return blocks / leaf * leaf;
}

double PeerPrefixes::seconds_to_attend(const Question& question, const PrefixAnswer& answer,
                                       size_t blocks) const {
  const size_t there = attendable(question, blocks);
  if (there == 0 || !answer.attending) return std::numeric_limits<double>::infinity();
  double seconds = seconds_to_compute(blocks - there, question.prompt.cached + there);
  for (const SeqId id : question.held) {
    LiveRequest* const live = p_.requests.find(id);
    if (!live) continue;
    const uint32_t predicted = live->predicted.output_tokens;
    const double to_come = predicted > 0 ? predicted : live->max_total_tokens - live->known_tokens();
    const auto first = static_cast<uint32_t>(tokens(question.prompt.cached + there));
    const double rows = live->known_tokens() - std::min(live->known_tokens(), first);
    const double chunks = std::ceil(rows / p_.options.limits.max_num_batched_tokens);
    seconds += (to_come + chunks) * answer.attending->step_s;
    seconds += (to_come + rows) * answer.attending->row_s;
  }
  return seconds;
}

// ---------------------------------------------------------------- attending

bool PeerPrefixes::keep(Question& question, const PrefixAnswer& answer) {
  const size_t blocks = attendable(question, blocks_of(question, answer.cells));
  if (blocks == 0) return false;
  Nanos since = INT64_MAX;
  for (const SeqId id : question.held) {
    if (const LiveRequest* live = p_.requests.find(id)) since = std::min(since, live->arrival);
  }
  if (since == INT64_MAX) return false;
  to_keep_.push_back({answer.id, static_cast<uint32_t>(blocks) * p_.cache.geometry().groups(), since});
  question.shown = answer;
  question.until = p_.clock.now() + bound(seconds_to_compute(blocks, question.prompt.cached));
  return true;
}

void PeerPrefixes::take_kept(const PrefixKeptAnswer& answer) {
  const auto it = questions_.find(answer.id);
  const bool waits = it != questions_.end() && it->second.shown;
  if (!answer.cells.empty()) {
    // If no request waits for them any more, they go back in the next turn.
    const size_t blocks = waits ? blocks_of(it->second, answer.cells) : 0;
    const std::span<const BlockHash> chain =
        waits ? it->second.prompt.missing().first(blocks) : std::span<const BlockHash>();
    const uint64_t attended = p_.cache.attend_at_peers(chain, answer.cells);
    if (attended > 0) {
      attended_[attended] = it->second.held;
      p_.metrics.prefix_attended += tokens(blocks);
    }
  }
  if (!waits) return;
  Question& question = it->second;
  const PrefixAnswer shown = *std::exchange(question.shown, std::nullopt);
  if (answer.cells.empty() && copy(question, shown)) return;
  release(question);
  done_.push_back(answer.id);
  questions_.erase(it);
}

// ---------------------------------------------------------------- copying

// False: there is no room.
bool PeerPrefixes::copy(Question& question, const PrefixAnswer& answer) {
  const CacheGeometry& g = p_.cache.geometry();
  const CacheOptions& options = p_.options.cache;
  std::vector<MemoryAddress> from;
  from.reserve(answer.cells.size());
  for (const uint32_t cell : answer.cells) {
    from.push_back({options.peers_begin() + cell * g.kv_cell_bytes(), Tier::kHost});
  }
  // Those that run go on: each needs a block soon.
  const auto reserve = static_cast<uint32_t>(p_.view.running.size()) * g.groups();
  std::optional<Transfer> transfer = p_.cache.copy_prefix(question.prompt, from, reserve);
  if (!transfer) return false;
  question.copy = transfer->id;
  question.peer = answer.peer;
  question.bytes = transfer->bytes();
  question.blocks = static_cast<size_t>(question.bytes / g.kv_block_bytes());
  question.began = p_.clock.now();
  question.until = question.began + bound(seconds_to_compute(question.blocks, question.prompt.cached));
  p_.link.start(*std::move(transfer));
  return true;
}

void PeerPrefixes::copied(Question& question, bool ok) {
  if (!ok) {
    p_.metrics.prefix_failed += tokens(question.blocks);
    return;
  }
  p_.metrics.prefix_hits += tokens(question.blocks);
  p_.metrics.prefix_bytes += question.bytes;
  Path& path = paths_[question.peer];
  path.bytes += static_cast<double>(question.bytes) - path.bytes * kOfOne;
  path.seconds += to_seconds(p_.clock.now() - question.began) - path.seconds * kOfOne;
  path.measured = p_.clock.now();
}

// ---------------------------------------------------------------- going on

void PeerPrefixes::update() {
  const Nanos now = p_.clock.now();
  const std::vector<KvCache::CopiedPrefix> copies = p_.cache.take_copied_prefixes();
  for (auto it = questions_.begin(); it != questions_.end();) {
    Question& question = it->second;
    const auto copy = std::find_if(copies.begin(), copies.end(),
                                   [&](const KvCache::CopiedPrefix& c) { return question.copy == c.id; });
    const bool ended = copy != copies.end();
    if (ended) copied(question, copy->ok);
    const bool late = !ended && now >= question.until;
    if (late && !question.held.empty()) {
      p_.metrics.prefix_late += tokens(question.copy ? question.blocks : question.prompt.missing().size());
    }
    if (ended || late) release(question);
    // Bytes that are on their way are used by others.
    const bool over = ended || (late && !question.copy);
    if (over) {
      if (!ended) note_found(0);
      done_.push_back(it->first);
    }
    it = over ? questions_.erase(it) : std::next(it);
  }
}

void PeerPrefixes::release(Question& question) {
  std::vector<LiveRequest*> back;
  for (const SeqId id : std::exchange(question.held, {})) {
    const auto held = held_.find(id);
    p_.metrics.prefix_waited_s = p_.metrics.prefix_waited_s + to_seconds(p_.clock.now() - held->second);
    held_.erase(held);
    // It may have been cancelled.
    if (LiveRequest* live = p_.requests.find(id)) back.push_back(live);
  }
  if (back.empty()) return;
  p_.requests.release(back);
  for (LiveRequest* live : back) p_.keeper.refresh(*live);
}

Nanos PeerPrefixes::next_deadline() const {
  Nanos next = INT64_MAX;
  for (const auto& [id, question] : questions_) {
    if (!question.held.empty() || !question.copy) next = std::min(next, question.until);
  }
  return next;
}

}  // namespace kvasir
