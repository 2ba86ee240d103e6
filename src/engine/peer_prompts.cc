#include "engine/peer_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "cache/blocks/block_hash.h"
#include "engine/prefix_fetch.h"
#include "plan/kv_placement.h"

namespace kvasir {
namespace {

// No other block is stored under it, and it cannot be guessed: what a peer says of a prompt finds no other
// prompt's blocks, and no request of this instance finds what was computed for it.
std::string private_salt() {
  std::random_device device;
  std::string salt = "peer";
  for (int i = 0; i < 4; ++i) salt += fmt::format(" {:08x}", device());
  return salt;
}

}  // namespace

// ---------------------------------------------------------------- the prompts of this instance

void PeerPrompts::arrived(SeqId id) {
  LiveRequest* const live = p_.requests.find(id);
  if (!live || live->for_peer || live->state != LiveRequest::State::kWaiting) return;
  if (p_.view.peers.most_borrowed == 0) return;
  KvCache::PromptBlocks prompt = p_.cache.prompt_blocks(id);
  uint32_t blocks = blocks_to_go(*live, prompt);
  if (blocks == 0 || prompt.cached > 0) return;
  const CacheGeometry& g = p_.options.cache.geometry;
  if (!worth_asking(blocks)) return;
  blocks = make_room(blocks);
  if (blocks == 0) return;
  const uint32_t tokens = blocks * g.block_tokens;
  Asked asked{id, {}, blocks * g.groups(), p_.clock.now(), 0};
  asked.chain.assign(prompt.hashes.begin(), prompt.hashes.begin() + blocks);
  Nanos wait = kLongestWait;
  if (p_.options.peer_prompts == PeerPromptUse::kByCost)
    wait = from_seconds(2 * p_.view.costs.rows_seconds(tokens)) + kGrace;
  asked.until = asked.began + std::min(wait, kLongestWait);
  PromptQuestion question;
  question.id = next_id_++;
  const std::span<const Token> known = p_.cache.tokens(id);
  question.tokens.assign(known.begin(), known.begin() + tokens);
  question.cells = asked.cells;
  question.since = live->arrival;
  question.until = asked.until;
  reserved_ += asked.cells;
  asked_.emplace(question.id, std::move(asked));
  to_ask_.push_back(std::move(question));
  p_.metrics.prompt_asked += tokens;
  p_.requests.hold({&live, 1});
}

uint32_t PeerPrompts::blocks_to_go(const LiveRequest& live, const KvCache::PromptBlocks& prompt) const {
  const CacheGeometry& g = p_.options.cache.geometry;
  // As View::capacity(), of which the budgets are those of the last plan.
  const CellCapacity capacity = {g.groups(),
                                 p_.cache.budget(Tier::kDevice).total_cells(),
                                 p_.cache.options().own_host_cells(),
                                 p_.view.stage_blocks,
                                 p_.view.peers.most_borrowed,
                                 g.blocks_per_leaf(),
                                 /*may_borrow=*/true,
                                 g.windowed.count(),
                                 g.window_blocks()};
  const KvPlacement where = KvPlacement::of(g.blocks_for(live.max_total_tokens), capacity);
  if (!where.streams) return 0;
  const auto full = static_cast<uint32_t>(prompt.hashes.size());
  const uint32_t most = PromptQuestion::kMostTokens / g.block_tokens;
  return std::min({where.away_blocks, full, most}) / g.blocks_per_leaf() * g.blocks_per_leaf();
}

uint32_t PeerPrompts::make_room(uint32_t blocks) {
  const CacheGeometry& g = p_.options.cache.geometry;
  const PeersView& peers = p_.view.peers;
  const uint32_t taken =
      p_.cache.borrowed_cells() + p_.cache.closed_borrowed_cells() + peers.asked + reserved_;
  // Beyond what peers lend in all, what is borrowed already would be in its way.
  const uint32_t most = std::min(peers.most_borrowed, lendable_);
  uint32_t room = most - std::min(most, taken);
  if (room < blocks * g.groups()) {
    // They go back before the question is asked.
    const auto close = [&](const std::vector<uint32_t>& cells) {
      p_.cache.close_borrowed(cells);
      room += static_cast<uint32_t>(cells.size());
    };
    close(p_.cache.empty_borrowed(blocks * g.groups() - room));
    if (room < blocks * g.groups()) close(p_.cache.longest_idle_borrowed(blocks * g.groups() - room));
  }
  const uint32_t leaf = g.blocks_per_leaf();
  return std::min(blocks, room / g.groups()) / leaf * leaf;
}

bool PeerPrompts::worth_asking(uint32_t blocks) const {
  if (p_.options.peer_prompts == PeerPromptUse::kAlways) return true;
  const double bytes_per_s = p_.link ? p_.link->stats().peer_bytes_per_s : 0;
  if (!p_.view.costs.known() || bytes_per_s <= 0) return false;
  const CacheGeometry& g = p_.options.cache.geometry;
  const double tokens = blocks * g.block_tokens;
  const double rows = p_.view.costs.rows_seconds(tokens);
  const double here = std::max(rows, static_cast<double>(blocks * g.kv_block_bytes()) / bytes_per_s);
  const double there = tokens * sizeof(Token) / bytes_per_s + rows;
  return there + kSlackS < here;
}

void PeerPrompts::release(const Asked& asked) {
  reserved_ -= asked.cells;
  p_.metrics.prompt_waited_s = p_.metrics.prompt_waited_s + to_seconds(p_.clock.now() - asked.began);
  // It may have been cancelled.
  LiveRequest* const live = p_.requests.find(asked.seq);
  if (!live) return;
  p_.requests.release({&live, 1});
  p_.keeper.refresh(*live);
}

void PeerPrompts::update() {
  const Nanos now = p_.clock.now();
  for (auto it = asked_.begin(); it != asked_.end();) {
    const bool over = now >= it->second.until || !p_.requests.find(it->second.seq);
    if (over) {
      release(it->second);
      done_.push_back(it->first);
    }
    it = over ? asked_.erase(it) : std::next(it);
  }
}

Nanos PeerPrompts::next_deadline() const {
  Nanos next = INT64_MAX;
  for (const auto& [id, asked] : asked_) next = std::min(next, asked.until);
  return next;
}

// ---------------------------------------------------------------- the prompts of peers

void PeerPrompts::begin(const PromptJob& job) {
  const CacheGeometry& g = p_.options.cache.geometry;
  const auto tokens = static_cast<uint32_t>(job.tokens.size());
  // It runs beside what runs here, and only if nothing waits.
  const int64_t cells = int64_t{g.blocks_for(tokens + 1)} * g.groups();
  const bool fits = cells <= p_.cache.budget(Tier::kDevice).available_cells();
  const bool known = std::all_of(job.tokens.begin(), job.tokens.end(),
                                 [&](Token t) { return t >= 0 && t < p_.options.vocab_size; });
  if (!fits || !known || !p_.view.waiting.empty() || !p_.options.cache.prefix_caching) {
    computed_.push_back({job.id, {}});
    return;
  }
  GenerationRequest request;
  request.prompt = job.tokens;
  request.max_tokens = 1;
  request.cache_salt = private_salt();
  request.for_peer = true;
  std::vector<PrefixHash> chain;
  BlockHash last = root_hash(p_.options.cache.numerics_id, request.cache_salt);
  for (uint32_t at = 0; at + g.block_tokens <= tokens; at += g.block_tokens) {
    last = block_hash(last, std::span(request.prompt).subspan(at, g.block_tokens));
    chain.push_back(last.words);
  }
  auto sink = std::make_shared<Ended>();
  const Result<RequestId> id = p_.inbox.submit(std::move(request), sink);
  if (id.ok()) {
    jobs_[job.id] = {*id, std::move(sink), std::move(chain)};
  } else {
    computed_.push_back({job.id, {}});
  }
}

// ---------------------------------------------------------------- peers' turn

void PeerPrompts::add_to(LendingRequest& request) {
  request.prompts_wanted = std::exchange(to_ask_, {});
  request.prompts_done = std::exchange(done_, {});
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const std::optional<FinishReason> finish = it->second.sink->finish;
    if (finish) {
      const bool ok = finish == FinishReason::kLength || finish == FinishReason::kStop;
      if (!ok) it->second.chain.clear();
      p_.metrics.prompt_for_peers += it->second.chain.size() * p_.options.cache.geometry.block_tokens;
      computed_.push_back({it->first, std::move(it->second.chain)});
    }
    it = finish ? jobs_.erase(it) : std::next(it);
  }
  request.prompts_computed = std::exchange(computed_, {});
}

void PeerPrompts::take_in(const LendingEvents& events) {
  lendable_ = events.lendable;
  for (const PromptAnswer& answer : events.prompts_found) {
    p_.cache.add_borrowed(answer.cells);
    const auto it = asked_.find(answer.id);
    if (it == asked_.end()) continue;  // they are empty cells
    const size_t blocks = answer.cells.size() / p_.options.cache.geometry.groups();
    const std::span<const BlockHash> chain(it->second.chain.data(), blocks);
    const uint32_t added = p_.cache.add_cached(chain, answer.cells);
    p_.metrics.prompt_computed += uint64_t{added} * p_.options.cache.geometry.block_tokens;
    release(it->second);
    asked_.erase(it);
  }
  for (const uint64_t id : events.prompts_dropped) {
    const auto it = jobs_.find(id);
    if (it == jobs_.end()) continue;
    p_.inbox.cancel(it->second.request, FinishReason::kAbort);
    jobs_.erase(it);
  }
  for (const PromptJob& job : events.prompts_to_compute) begin(job);
}

}  // namespace kvasir
