#include "fakes/fake_lending.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/leaf_tokens.h"
#include "fakes/shadow_model.h"

namespace kvasir::test {

FakeLending::FakeLending(const Options& options, std::span<std::byte> memory)
    : options_(options),
      memory_(memory),
      random_(options.seed),
      cells_(options.cells + options.attended, State::kFree) {}

uint32_t FakeLending::held() const {
  return static_cast<uint32_t>(std::count_if(
      cells_.begin(), cells_.end(), [](State s) { return s == State::kGranted || s == State::kRecalled; }));
}

std::vector<uint32_t> FakeLending::some(State state, double share) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i] == state && random_.unit() < share) out.push_back(i);
  }
  return out;
}

void FakeLending::lose(uint32_t cell, LendingEvents& events) {
  cells_[cell] = State::kLost;
  due_.erase(cell);
  events.lost.push_back(cell);
  ++lost_;
  const size_t bytes = memory_.size() / cells_.size();
  for (std::byte& b : memory_.subspan(cell * bytes, bytes)) b ^= std::byte{0x5A};
}

void FakeLending::lend(LendableCells& own) {
  if (!loans_.empty() && random_.unit() < 0.5) {
    own.give_back(loans_.back());
    loans_.pop_back();
    return;
  }
  const auto wanted = static_cast<uint32_t>(random_.between(1, 4));
  const uint32_t free = own.free_cells();
  std::vector<LendableCells::Frame> frames = own.take(wanted);
  KV_CHECK(frames.size() == (wanted <= free ? wanted : 0), "{} of {} cells, {} are free", frames.size(),
           wanted, free);
  lent_ += frames.size();
  if (!frames.empty()) loans_.push_back(std::move(frames));
}

void FakeLending::start_anew() {
  std::fill(cells_.begin(), cells_.end(), State::kFree);
  due_.clear();
  loans_.clear();
  asked_ = 0;
  prompt_questions_.clear();
  jobs_.clear();
  reading_.clear();
  attending_.clear();
  questions_.clear();
  while (!answers_.empty()) forget(answers_.begin()->first);
}

// ---------------------------------------------------------------- prefixes

// A peer that gets hold of blocks: it reads them of the engine, which shows them for some turns.
void FakeLending::learn(LendableCells& own) {
  if (!reading_.empty() && random_.unit() < 0.5) {
    own.hide_prefix(reading_.back());
    reading_.pop_back();
  }
  if (chains_.empty() || random_.unit() > 0.3) return;
  const std::vector<PrefixHash>& chain = chains_[random_.below(chains_.size())];
  const LendableCells::Prefix prefix = own.show_prefix(chain);
  if (prefix.frames.empty()) return;
  const auto attended = [](size_t sum, const auto& a) { return sum + a.second; };
  const size_t cells = std::accumulate(attending_.begin(), attending_.end(), prefix.frames.size(), attended);
  if (2 * cells <= own.total_cells() && random_.unit() < options_.stays) {
    own.keep_prefix(prefix.id, prefix.blocks);
    attending_[prefix.id] = prefix.frames.size();
    kept_here_ += prefix.frames.size();
  } else {
    reading_.push_back(prefix.id);
  }
  for (size_t i = 0; i < prefix.frames.size(); ++i) {
    std::vector<std::byte>& block = blocks_[chain[i / prefixes_.groups]];
    if (i % prefixes_.groups == 0) block.clear();
    const auto [tier, at] = prefix.frames[i];
    const auto bytes = prefixes_.tiers[index_of(tier)].subspan(at, prefixes_.cell_bytes);
    block.insert(block.end(), bytes.begin(), bytes.end());
  }
}

void FakeLending::answer(const LendingRequest& request, LendingEvents& events) {
  for (const uint64_t id : request.prefixes_done) forget(id);
  for (const PrefixQuestion& question : request.prefixes_wanted) {
    questions_[question.id] = question;
    chains_.push_back(question.chain);
    if (chains_.size() > 32) chains_.erase(chains_.begin());
  }
  for (const PrefixKept& wanted : request.prefixes_kept) keep(wanted, events);
  while (!questions_.empty() && (ending_ || random_.unit() < options_.prefixes)) {
    events.prefixes_found.push_back(answer(questions_.begin()->second));
    questions_.erase(questions_.begin());
  }
  if (!answers_.empty() && random_.unit() < options_.prefixes_lost) {
    for (const uint32_t cell : answers_.begin()->second) {
      gone_.insert(cell);
      auto bytes = prefixes_.shown.subspan(cell * prefixes_.cell_bytes, prefixes_.cell_bytes);
      std::fill(bytes.begin(), bytes.end(), std::byte{0x5A});
    }
  }
}

PrefixAnswer FakeLending::answer(const PrefixQuestion& question) {
  PrefixAnswer answer{question.id, {}, "peer"};
  std::vector<uint32_t>& cells = answers_[question.id];
  const auto total = static_cast<uint32_t>(prefixes_.shown.size() / prefixes_.cell_bytes);
  for (const PrefixHash& hash : question.chain) {
    const auto found = blocks_.find(hash);
    if (found == blocks_.end() || ending_ || total - taken_.size() < prefixes_.groups) break;
    for (uint32_t g = 0; g < prefixes_.groups; ++g) {
      uint32_t cell = 0;
      while (taken_.contains(cell)) ++cell;
      taken_.insert(cell);
      cells.push_back(cell);
      answer.cells.push_back(static_cast<uint32_t>(cells_.size()) + cell);
      const auto from = std::span(found->second).subspan(g * prefixes_.cell_bytes, prefixes_.cell_bytes);
      std::copy(from.begin(), from.end(),
                prefixes_.shown.begin() + static_cast<ptrdiff_t>(cell * prefixes_.cell_bytes));
    }
  }
  shown_ += cells.size();
  return answer;
}

// It keeps blocks that it may have shown before others died: then they are lost in the next turn.
void FakeLending::keep(const PrefixKept& wanted, LendingEvents& events) {
  const auto shown = answers_.find(wanted.id);
  if (shown == answers_.end()) return;  // the question is done
  PrefixKeptAnswer answer{wanted.id, {}};
  std::vector<uint32_t> free;
  for (uint32_t i = options_.cells; i < cells_.size(); ++i) {
    if (cells_[i] == State::kFree) free.push_back(i);
  }
  const auto lost = [&](uint32_t cell) { return gone_.contains(cell); };
  const bool whole = std::none_of(shown->second.begin(), shown->second.end(), lost);
  if (!ending_ && whole && wanted.cells <= free.size() && random_.unit() < options_.keeps) {
    const size_t bytes = memory_.size() / cells_.size();
    for (uint32_t i = 0; i < wanted.cells; ++i) {
      cells_[free[i]] = State::kGranted;
      answer.cells.push_back(free[i]);
      std::memcpy(memory_.data() + free[i] * bytes, prefixes_.shown.data() + shown->second[i] * bytes, bytes);
    }
    kept_ += answer.cells.size();
    forget(wanted.id);
  }
  events.prefixes_kept.push_back(std::move(answer));
}

void FakeLending::forget(uint64_t question) {
  questions_.erase(question);
  for (const uint32_t cell : answers_[question]) {
    taken_.erase(cell);
    gone_.erase(cell);
    auto bytes = prefixes_.shown.subspan(cell * prefixes_.cell_bytes, prefixes_.cell_bytes);
    std::fill(bytes.begin(), bytes.end(), std::byte{0x5A});
  }
  answers_.erase(question);
}

// ---------------------------------------------------------------- prompts

namespace {

// K and V of these tokens, as they lie in the cells of their blocks, block by block and group by group.
std::vector<std::byte> kv_of(std::span<const Token> tokens, const CacheGeometry& g) {
  std::vector<std::byte> bytes(tokens.size() / g.block_tokens * g.groups() * g.kv_cell_bytes());
  ShadowModel model(g.layers);
  for (uint32_t p = 0; p < tokens.size(); ++p) {
    model.feed(tokens[p], [&](uint32_t layer, uint64_t k, uint64_t v) {
      const uint64_t cell = g.block_of(p) * g.groups() + g.group_of(layer);
      const uint64_t piece = cell * g.kv_cell_bytes() + g.layer_in_group(layer) * g.piece_bytes(Form::kKv);
      std::byte* const at = bytes.data() + piece + 8 * (p % g.block_tokens);
      std::memcpy(at, &k, sizeof k);
      std::memcpy(at + g.layer_plane_bytes(), &v, sizeof v);
    });
  }
  return bytes;
}

}  // namespace

void FakeLending::compute(const LendingRequest& request, LendableCells& own, LendingEvents& events) {
  for (const uint64_t id : request.prompts_done) prompt_questions_.erase(id);
  for (const PromptQuestion& question : request.prompts_wanted) prompt_questions_[question.id] = question;
  while (!prompt_questions_.empty() && (ending_ || random_.unit() < options_.prompts)) {
    events.prompts_found.push_back(compute(prompt_questions_.begin()->second));
    prompt_questions_.erase(prompt_questions_.begin());
  }
  for (const auto& [id, chain] : request.prompts_computed) {
    if (!chain.empty() && jobs_.contains(id)) {
      jobs_[id].chain = chain;
    } else {
      jobs_.erase(id);
    }
  }
  take_computed(own);
  if (!ending_ && jobs_.empty() && random_.unit() < options_.prompts) ask_to_compute(events);
  // A peer that has no use for it any more.
  if (!jobs_.empty() && (ending_ || random_.unit() < 0.01)) {
    events.prompts_dropped.push_back(jobs_.begin()->first);
    jobs_.erase(jobs_.begin());
  }
}

// As many leaves as it pleases, if there are numbers for their cells.
PromptAnswer FakeLending::compute(const PromptQuestion& question) {
  const CacheGeometry& g = prompts_.geometry;
  PromptAnswer answer{question.id, {}};
  const auto leaves = static_cast<int64_t>(question.tokens.size() / kLeafTokens);
  const auto blocks = static_cast<size_t>(random_.between(0, leaves)) * g.blocks_per_leaf();
  std::vector<uint32_t> free = some(State::kFree, 1);
  std::erase_if(free, [&](uint32_t cell) { return cell >= options_.cells; });
  if (ending_ || blocks * g.groups() > free.size()) return answer;
  answer.cells.assign(free.begin(), free.begin() + static_cast<ptrdiff_t>(blocks * g.groups()));
  const std::vector<std::byte> bytes = kv_of(std::span(question.tokens).first(blocks * g.block_tokens), g);
  for (size_t i = 0; i < answer.cells.size(); ++i) {
    cells_[answer.cells[i]] = State::kGranted;
    std::memcpy(memory_.data() + answer.cells[i] * g.kv_cell_bytes(), bytes.data() + i * g.kv_cell_bytes(),
                g.kv_cell_bytes());
  }
  computed_ += answer.cells.size();
  return answer;
}

void FakeLending::ask_to_compute(LendingEvents& events) {
  PromptJob job{++last_job_, {}};
  const auto blocks = static_cast<uint32_t>(random_.between(1, 6));
  for (uint32_t i = 0; i < blocks * prompts_.geometry.block_tokens; ++i) {
    job.tokens.push_back(static_cast<Token>(random_.below(kShadowVocab)));
  }
  jobs_[job.id] = {job.tokens, {}};
  events.prompts_to_compute.push_back(std::move(job));
}

void FakeLending::take_computed(LendableCells& own) {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto job = it++;
    if (job->second.chain.empty()) continue;
    std::optional<std::vector<LendableCells::Frame>> frames = own.take_blocks(job->second.chain);
    if (!frames) continue;
    const CacheGeometry& g = prompts_.geometry;
    const std::vector<std::byte> bytes = kv_of(job->second.tokens, g);
    for (size_t i = 0; i < frames->size(); ++i) {
      // The last group may have fewer layers.
      const uint32_t first = static_cast<uint32_t>(i % g.groups()) * g.layers_per_group;
      const uint32_t layers = std::min(g.layers_per_group, g.layers - first);
      const auto [tier, at] = (*frames)[i];
      const auto there = prompts_.tiers[index_of(tier)].subspan(at, layers * g.piece_bytes(Form::kKv));
      KV_CHECK(std::equal(there.begin(), there.end(),
                          bytes.begin() + static_cast<ptrdiff_t>(i * g.kv_cell_bytes())),
               "cell {} of a prompt that was computed for a peer", i);
    }
    computed_here_ += frames->size();
    if (!frames->empty()) loans_.push_back(*std::move(frames));
    jobs_.erase(job);
  }
}

// ---------------------------------------------------------------- a turn

LendingEvents FakeLending::turn(const LendingRequest& request, LendableCells& own) {
  ++turn_;
  LendingEvents events;
  for (uint32_t cell : request.returned) {
    KV_CHECK(cells_[cell] != State::kFree, "cell {} is returned, and was not lent", cell);
    cells_[cell] = State::kFree;
    due_.erase(cell);
    if (cell < options_.cells) continue;
    // They are the peer's own, and it may write there now.
    const size_t bytes = memory_.size() / cells_.size();
    for (std::byte& b : memory_.subspan(cell * bytes, bytes)) b ^= std::byte{0x5A};
  }
  asked_ += request.borrow;
  if (options_.prefixes > 0) {
    learn(own);
    for (size_t back = ending_ ? SIZE_MAX : request.recall; back > 0 && !attending_.empty();) {
      const auto oldest = attending_.begin();
      back -= std::min(back, oldest->second);
      own.hide_prefix(oldest->first);
      attending_.erase(oldest);
    }
    answer(request, events);
  }
  if (options_.prompts > 0) compute(request, own, events);
  if (ending_) {
    for (const uint64_t id : std::exchange(reading_, {})) own.hide_prefix(id);
    while (!loans_.empty()) {
      own.give_back(loans_.back());
      loans_.pop_back();
    }
    events.refused = std::exchange(asked_, 0);
    return events;
  }
  if (asked_ > 0 && random_.unit() < options_.refusals) {
    events.refused = static_cast<uint32_t>(random_.between(1, asked_));
    asked_ -= events.refused;
  }
  if (asked_ > 0 && random_.unit() < options_.grants) {
    for (uint32_t cell : some(State::kFree, 0.7)) {
      if (asked_ == 0 || cell >= options_.cells) break;
      cells_[cell] = State::kGranted;
      events.granted.push_back(cell);
      --asked_;
      ++granted_;
    }
  }
  if (random_.unit() < options_.recalls) {
    for (uint32_t cell : some(State::kGranted, 0.3)) {
      cells_[cell] = State::kRecalled;
      due_[cell] = turn_ + options_.patience;
      events.recalled.push_back(cell);
      ++recalled_;
    }
  }
  if (random_.unit() < options_.recalls) {
    for (uint32_t cell : some(State::kRecalled, 0.5)) {
      cells_[cell] = State::kGranted;
      due_.erase(cell);
      events.kept.push_back(cell);
      std::erase(events.recalled, cell);
    }
  }
  std::vector<uint32_t> overdue;
  for (const auto& [cell, turn] : due_) {
    if (turn <= turn_) overdue.push_back(cell);
  }
  for (uint32_t cell : overdue) lose(cell, events);
  if (random_.unit() < options_.losses) {
    for (uint32_t cell : some(State::kGranted, 0.3)) lose(cell, events);
  }
  wanted_back_ |= request.recall > 0;
  if (wanted_back_ && !loans_.empty() && random_.unit() < 0.3) {
    own.give_back(loans_.back());
    loans_.pop_back();
  } else if (!wanted_back_ && random_.unit() < options_.own) {
    lend(own);
  }
  wanted_back_ = wanted_back_ && !loans_.empty();
  return events;
}

}  // namespace kvasir::test
