#include "cluster/protocol/prompt_loans.h"

#include <algorithm>

#include "base/leaf_tokens.h"
#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/prefix_exchange.h"

namespace kvasir::cluster {

// ---------------------------------------------------------------- the owner

void PromptLoans::ask(PromptQuestion question, Nanos now) {
  const uint64_t id = question.id;
  Asked asked;
  asked.question = std::move(question);
  if (settings_.prompt_asked > 0 && !leaving_) asked.others = post_.members();
  if (!asked.others.empty()) {
    const auto turn = static_cast<ptrdiff_t>(turn_++ % asked.others.size());
    std::rotate(asked.others.begin(), asked.others.begin() + turn, asked.others.end());
    if (asked.others.size() > settings_.prompt_asked) asked.others.resize(settings_.prompt_asked);
  }
  if (ask_next(asked, now)) {
    asked_.emplace(id, std::move(asked));
  } else {
    refused_.push_back(id);
  }
}

bool PromptLoans::ask_next(Asked& asked, Nanos now) {
  const PromptQuestion& question = asked.question;
  for (; !asked.others.empty() && question.until > now; asked.others.pop_back()) {
    wire::Envelope message;
    wire::ComputePrompt& compute = *message.mutable_compute_prompt();
    compute.set_question(question.id);
    for (const Token token : question.tokens) compute.add_tokens(static_cast<uint32_t>(token));
    compute.set_since_ns(question.since);
    compute.set_now_ns(now);
    compute.set_within_ns(question.until - now);
    if (!post_.send(asked.others.back(), message).ok()) continue;
    asked.peer = asked.others.back();
    asked.others.pop_back();
    return true;
  }
  return false;
}

void PromptLoans::refuse(uint64_t question) {
  asked_.erase(question);
  refused_.push_back(question);
}

void PromptLoans::forget(uint64_t question) {
  const auto it = asked_.find(question);
  if (it == asked_.end()) return;
  wire::Envelope message;
  message.mutable_prompt_done()->set_question(question);
  // The peer has a deadline, too.
  (void)post_.send(it->second.peer, message);
  asked_.erase(it);
}

std::optional<uint64_t> PromptLoans::take_question(const ContractRef& contract) {
  const auto it =
      std::find_if(taken_.begin(), taken_.end(), [&](const auto& t) { return t.first == contract; });
  if (it == taken_.end()) return std::nullopt;
  const uint64_t question = it->second;
  taken_.erase(it);
  return question;
}

Status PromptLoans::handle(const PeerId& from, const wire::PromptComputed& message, Nanos now) {
  Borrower& borrower = rmanager_.borrower();
  const ContractRef loan = {from, message.contract()};
  const auto it = asked_.find(message.question());
  if (it == asked_.end() || it->second.peer != from) {
    if (message.cells() > 0) borrower.decline(loan);
    return {};
  }
  Asked& asked = it->second;
  const PromptQuestion& question = asked.question;
  const auto cells = std::max<size_t>(1, leaf_blocks() * memory_.block_shape().cells);
  const bool fits = message.cells() <= question.cells && message.cells() % cells == 0 &&
                    (message.contract() & kShowsPrefix) == 0;
  // It has borrowed of us since it was asked.
  const bool debtor = !settings_.lend_to_creditors && rmanager_.lender().by_debtor().contains(from);
  if (message.cells() > 0 && fits && !debtor && borrower.take(loan, message.cells(), now)) {
    taken_.emplace_back(loan, question.id);
    asked_.erase(it);
    return {};
  }
  if (message.cells() > 0) borrower.decline(loan);
  const uint32_t asked_for = question.cells;
  if (!ask_next(asked, now)) refuse(message.question());
  if (fits) return {};
  return error(ErrorCode::kCorrupt, "it lends {} cells of a prompt that has {}, {} to a leaf",
               message.cells(), asked_for, cells);
}

// ---------------------------------------------------------------- the one that computes

Status PromptLoans::handle(const PeerId& from, const wire::ComputePrompt& message, Nanos now) {
  const LendableCells::BlockShape shape = memory_.block_shape();
  const auto tokens = static_cast<size_t>(message.tokens_size());
  const bool whole = tokens > 0 && tokens <= PromptQuestion::kMostTokens && tokens % kLeafTokens == 0;
  Job job;
  job.from = from;
  job.question = message.question();
  job.since = now - age_of(message.since_ns(), message.now_ns());
  job.since_there = message.since_ns();
  job.until = now + within_range(std::max<int64_t>(0, message.within_ns()));
  if (whole && shape.tokens > 0) {
    // The rows' request needs a block beside them: it samples a token.
    const uint32_t free = memory_.free_blocks() / shape.cells;
    job.blocks = std::min<size_t>(tokens / shape.tokens, free - std::min(free, 1u));
  }
  const size_t some = may_lend(job);
  if (!settings_.computes_prompts || leaving_ || !jobs_.empty() || some == 0 || !before_ours(job)) {
    say(from, job.question, 0, 0);
    if (whole) return {};
    return error(ErrorCode::kCorrupt, "a prompt of {} tokens", tokens);
  }
  job.blocks = some;
  job.rows.id = ++last_job_;
  const auto end = message.tokens().begin() + static_cast<ptrdiff_t>(some * shape.tokens);
  for (auto token = message.tokens().begin(); token != end; ++token) {
    job.rows.tokens.push_back(static_cast<Token>(*token));
  }
  jobs_.emplace(last_job_, std::move(job));
  return {};
}

size_t PromptLoans::leaf_blocks() const {
  const uint32_t tokens = memory_.block_shape().tokens;
  return tokens == 0 ? 0 : kLeafTokens / tokens;
}

// Where two ask each other, only one of them may compute: or each would owe the other what it has itself.
bool PromptLoans::before_ours(const Job& job) const {
  return settings_.lend_to_creditors || std::none_of(asked_.begin(), asked_.end(), [&](const auto& a) {
           const Asked& asked = a.second;
           return asked.peer == job.from &&
                  goes_first(post_.self(), asked.question.since, job.from, job.since);
         });
}

size_t PromptLoans::may_lend(const Job& job) const {
  const Lender& lender = rmanager_.lender();
  const size_t leaf = leaf_blocks();
  const bool creditor = !settings_.lend_to_creditors && rmanager_.borrower().contracts().contains(job.from);
  if (creditor || leaf == 0) return 0;
  // Older requests go first, ours and others'.
  const bool own = lender.own().blocks > 0 && lender.own().since < job.since;
  if (own || lender.awaited().since < job.since) return 0;
  const size_t blocks = std::min<size_t>(job.blocks, lender.room() / memory_.block_shape().cells);
  return blocks / leaf * leaf;
}

std::vector<PromptJob> PromptLoans::take_jobs() {
  std::vector<PromptJob> out;
  for (auto& [id, job] : jobs_) {
    if (!std::exchange(job.begun, true)) out.push_back(std::move(job.rows));
  }
  return out;
}

void PromptLoans::computed(uint64_t id, std::vector<PrefixHash> chain, Nanos now) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || !it->second.begun) return;
  Job& job = it->second;
  if (chain.size() != job.blocks) {
    say(job.from, job.question, 0, 0);
    jobs_.erase(it);
    return;
  }
  job.chain = std::move(chain);
  if (try_lend(job, now)) jobs_.erase(it);
}

bool PromptLoans::try_lend(Job& job, Nanos now) {
  const std::span<const PrefixHash> chain(job.chain.data(), may_lend(job));
  std::vector<uint32_t> cells;
  if (!chain.empty()) {
    std::optional<std::vector<uint32_t>> taken = memory_.take_blocks(chain);
    if (!taken) {
      job.again = now + kAgain;
      return false;
    }
    cells = *std::move(taken);
  }
  // Of a leaf that is not whole the owner would have to fetch what there is.
  const size_t leaf = std::max<size_t>(1, leaf_blocks() * memory_.block_shape().cells);
  const size_t whole = cells.size() / leaf * leaf;
  if (whole < cells.size()) rmanager_.lender().return_blocks(std::span(cells).subspan(whole));
  cells.resize(whole);
  if (mutant(Mutant::kRowsOfOthers)) std::reverse(cells.begin(), cells.end());
  uint64_t contract = 0;
  if (!cells.empty()) {
    contract = rmanager_.lender().lend(job.from, std::move(cells), job.since, job.since_there, now);
  }
  say(job.from, job.question, contract, whole);
  return true;
}

void PromptLoans::say(const PeerId& to, uint64_t question, uint64_t contract, size_t cells) {
  wire::Envelope message;
  message.mutable_prompt_computed()->set_question(question);
  message.mutable_prompt_computed()->set_contract(contract);
  message.mutable_prompt_computed()->set_cells(static_cast<uint32_t>(cells));
  // One that misses it has a deadline, and learns of the loan by the next statement.
  (void)post_.send(to, message);
}

Status PromptLoans::handle(const PeerId& from, const wire::PromptDone& message) {
  const auto it = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& j) {
    return j.second.from == from && j.second.question == message.question();
  });
  if (it != jobs_.end()) drop(it);
  return {};
}

void PromptLoans::drop(std::map<uint64_t, Job>::iterator job) {
  if (job->second.begun && job->second.chain.empty()) dropped_.push_back(job->first);
  jobs_.erase(job);
}

// ---------------------------------------------------------------- both

void PromptLoans::lost(const PeerId& peer, Nanos now) {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto job = it++;
    if (job->second.from == peer && !mutant(Mutant::kRowsForTheDead)) drop(job);
  }
  std::vector<uint64_t> open;
  for (auto& [question, asked] : asked_) {
    std::erase(asked.others, peer);
    if (asked.peer == peer) open.push_back(question);
  }
  for (const uint64_t question : open) {
    if (!ask_next(asked_.at(question), now)) refuse(question);
  }
}

void PromptLoans::tick(Nanos now) {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto job = it++;
    const bool lent = !job->second.chain.empty() && try_lend(job->second, now);
    if (!lent && job->second.until > now) continue;
    if (!lent) say(job->second.from, job->second.question, 0, 0);
    drop(job);
  }
  std::vector<uint64_t> late;
  for (const auto& [question, asked] : asked_) {
    if (asked.question.until <= now) late.push_back(question);
  }
  for (const uint64_t question : late) {
    forget(question);
    refused_.push_back(question);
  }
}

Nanos PromptLoans::next_deadline() const {
  Nanos next = INT64_MAX;
  for (const auto& [id, job] : jobs_) next = std::min({next, job.until, job.again});
  for (const auto& [question, asked] : asked_) next = std::min(next, asked.question.until);
  return next;
}

void PromptLoans::leave() {
  leaving_ = true;
  while (!jobs_.empty()) {
    say(jobs_.begin()->second.from, jobs_.begin()->second.question, 0, 0);
    drop(jobs_.begin());
  }
  while (!asked_.empty()) {
    const uint64_t question = asked_.begin()->first;
    forget(question);
    refused_.push_back(question);
  }
}

std::string PromptLoans::describe() const {
  std::string out;
  for (const auto& [question, asked] : asked_) {
    out += fmt::format("asks {} to compute {} until {}, {} others\n", name_of(asked.peer), question,
                       asked.question.until, asked.others.size());
  }
  for (const auto& [id, job] : jobs_) {
    out += fmt::format("computes {} for {}: {} blocks until {}{}{}\n", id, name_of(job.from), job.blocks,
                       job.until, job.begun ? " begun" : "", job.chain.empty() ? "" : " done");
  }
  return out;
}

}  // namespace kvasir::cluster
