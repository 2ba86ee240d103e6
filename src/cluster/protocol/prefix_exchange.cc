#include "cluster/protocol/prefix_exchange.h"

#include <algorithm>
#include <utility>

#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

// ---------------------------------------------------------------- the reader

// The same on all instances, and another order of names for each beginning.
PeerId PrefixExchange::home_of(const PrefixHash& beginning) const {
  std::vector<PeerId> members = post_.members();
  members.push_back(post_.self());
  const auto weight = [&](const PeerId& peer) {
    uint64_t hash = beginning[0] ^ 0xcbf29ce484222325u;  // FNV-1a
    for (const char c : peer.instance) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;  // the last steps of SplitMix64
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    return hash ^ (hash >> 31);
  };
  return *std::max_element(members.begin(), members.end(), [&](const PeerId& a, const PeerId& b) {
    return std::pair(weight(a), a.instance) < std::pair(weight(b), b.instance);
  });
}

PrefixExchange::Hint PrefixExchange::remember(std::span<const PrefixHash> chain, const PeerId& from) {
  Hint hint;
  for (size_t i = chain.size(); i-- > 0 && hint.blocks == 0;) {
    const auto it = asked_for_.find(chain[i]);
    if (it == asked_for_.end() || it->second == from || !post_.knows(it->second)) continue;
    hint = {it->second, static_cast<uint32_t>(i + 1)};
  }
  for (const PrefixHash& hash : chain) {
    if (!asked_for_.insert_or_assign(hash, from).second) continue;
    remembered_.push_back(hash);
    if (remembered_.size() <= kMostRemembered) continue;
    asked_for_.erase(remembered_.front());
    remembered_.pop_front();
  }
  return hint;
}

std::vector<PeerId> PrefixExchange::peers_for(const PrefixQuestion& question, const Hint& hint) {
  std::vector<PeerId> peers = post_.members();
  if (peers.empty()) return peers;
  std::rotate(peers.begin(), peers.begin() + static_cast<ptrdiff_t>(turn_++ % peers.size()), peers.end());
  const auto to_front = [&](const std::string& instance) {
    const auto it = std::find_if(peers.begin(), peers.end(),
                                 [&](const PeerId& peer) { return peer.instance == instance; });
    if (it != peers.end()) std::rotate(peers.begin(), it, it + 1);
  };
  to_front(had_some_);
  to_front(hint.peer.instance);
  to_front(home_of(question.beginning).instance);
  if (peers.size() > settings_.prefix_asked) peers.resize(settings_.prefix_asked);
  return peers;
}

void PrefixExchange::ask(const PrefixQuestion& question, Nanos now) {
  Asked& asked = asked_[question.id];
  asked.question = question;
  asked.question.chain.resize(std::min(question.chain.size(), kMostBlocks));
  asked.best.question = question.id;
  now_ = now;
  Hint hint;
  if (home_of(question.beginning) == post_.self()) hint = remember(asked.question.chain, post_.self());
  for (const PeerId& peer : peers_for(question, hint)) tell(asked, peer, now);
  answered(question.id, asked);
}

void PrefixExchange::tell(Asked& asked, const PeerId& peer, Nanos now) {
  wire::Envelope message;
  wire::FindPrefix& find = *message.mutable_find_prefix();
  find.set_question(asked.question.id);
  find.set_within_ns(std::max<Nanos>(0, asked.question.until - now));
  for (const uint64_t word : asked.question.beginning) find.add_beginning(word);
  for (const PrefixHash& hash : asked.question.chain) {
    find.add_hashes(hash[0]);
    find.add_hashes(hash[1]);
  }
  asked.told.push_back(peer);
  if (post_.send(peer, message).ok()) asked.waits_for.push_back(peer);
}

// All have answered, or one has.
void PrefixExchange::answered(uint64_t question, Asked& asked) {
  if (!asked.waits_for.empty()) return;
  answers_.push_back(std::move(asked.best));
  asked_.erase(question);
}

void PrefixExchange::forget(uint64_t question) {
  const auto it = asked_.find(question);
  if (it == asked_.end()) return;
  if (it->second.best.cells > 0) done(it->second.best.shown);
  asked_.erase(it);
}

void PrefixExchange::done(const ContractRef& shown) {
  std::erase_if(keeping_, [&](const Keeping& k) { return k.shown == shown; });
  wire::Envelope message;
  message.mutable_prefix_done()->set_contract(shown.id);
  // It ends by itself, too.
  (void)post_.send(shown.creditor, message);
}

Status PrefixExchange::handle(const PeerId& from, const wire::PrefixFound& message) {
  if (message.cells() > 0 && (message.contract() & kShowsPrefix) == 0) {
    return error(ErrorCode::kCorrupt, "contract {} shows no prefix", message.contract());
  }
  const ContractRef shown = {from, message.contract()};
  const auto it = asked_.find(message.question());
  if (it != asked_.end()) {
    const size_t most = it->second.question.chain.size() * memory_.block_shape().cells;
    if (message.cells() > most) {
      return error(ErrorCode::kCorrupt, "it shows {} cells where {} were asked for", message.cells(), most);
    }
  }
  const bool waits = it != asked_.end() && std::erase(it->second.waits_for, from) > 0;
  if (!waits) {
    if (message.cells() > 0) done(shown);
    return {};
  }
  Asked& asked = it->second;
  if (message.cells() > 0) had_some_ = from.instance;
  if (message.cells() > asked.best.cells) {
    if (asked.best.cells > 0) done(asked.best.shown);
    asked.best.shown = shown;
    asked.best.cells = message.cells();
  } else if (message.cells() > 0) {
    done(shown);
  }
  if (message.has_hint() && from == home_of(asked.question.beginning)) {
    const PeerId hint = get(message.hint());
    const bool told = std::find(asked.told.begin(), asked.told.end(), hint) != asked.told.end();
    if (!told && hint != post_.self() && post_.knows(hint)) tell(asked, hint, now_);
  }
  answered(message.question(), asked);
  return {};
}

void PrefixExchange::keep(const ContractRef& shown, uint32_t cells, Nanos since, Nanos now) {
  wire::Envelope message;
  wire::KeepPrefix& keep = *message.mutable_keep_prefix();
  keep.set_contract(shown.id);
  keep.set_cells(cells);
  keep.set_since_ns(since);
  keep.set_now_ns(now);
  if (!leaving_ && post_.send(shown.creditor, message).ok()) {
    keeping_.push_back({shown, cells});
  } else {
    refused_.push_back(shown);
  }
}

std::optional<ContractRef> PrefixExchange::take_kept(const ContractRef& loan) {
  const auto it = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& k) { return k.loan == loan; });
  if (it == kept_.end()) return std::nullopt;
  const ContractRef shown = it->shown;
  kept_.erase(it);
  return shown;
}

Status PrefixExchange::handle(const PeerId& from, const wire::PrefixKept& message, Nanos now) {
  Borrower& borrower = rmanager_.borrower();
  const ContractRef loan = {from, message.contract()};
  const ContractRef shown = {from, message.shown()};
  const auto it =
      std::find_if(keeping_.begin(), keeping_.end(), [&](const Keeping& k) { return k.shown == shown; });
  if (it == keeping_.end()) {
    if (message.cells() > 0) borrower.decline(loan);
    return {};
  }
  const uint32_t asked_for = it->cells;
  keeping_.erase(it);
  const bool lends = (message.contract() & kShowsPrefix) != 0 && (message.contract() & kLendsPrefix) != 0;
  const bool fits = message.cells() == 0 || (lends && message.cells() == asked_for);
  // It has borrowed of us since it was asked.
  const bool debtor = !settings_.lend_to_creditors && rmanager_.lender().by_debtor().contains(from);
  if (message.cells() > 0 && fits && !debtor && borrower.take(loan, message.cells(), now)) {
    kept_.push_back({loan, shown});
    return {};
  }
  if (message.cells() > 0) borrower.decline(loan);
  refused_.push_back(shown);
  if (fits) return {};
  return error(ErrorCode::kCorrupt, "it lends {} cells of a prefix where {} were asked for", message.cells(),
               asked_for);
}

// ---------------------------------------------------------------- the one that shows

// As any loan, but that the memory need not be free.
bool PrefixExchange::may_lend(const PeerId& to, uint32_t cells, Nanos since) const {
  const Lender& lender = rmanager_.lender();
  if (!settings_.lend_to_creditors && rmanager_.borrower().contracts().contains(to)) return false;
  // Older requests go first, ours and others'.
  const bool own = lender.own().blocks > 0 && lender.own().since < since;
  return !leaving_ && !own && lender.awaited().since >= since && cells <= lender.room_for_prefixes();
}

Status PrefixExchange::handle(const PeerId& from, const wire::KeepPrefix& message, Nanos now) {
  const auto it = shown_.find(message.contract());
  const bool theirs = it != shown_.end() && it->second.to == from;
  const bool whole = message.cells() % memory_.block_shape().cells == 0;
  if (message.cells() == 0 || !whole || (theirs && message.cells() > it->second.cells)) {
    return error(ErrorCode::kCorrupt, "it wants {} cells of a prefix to be kept", message.cells());
  }
  wire::Envelope answer;
  wire::PrefixKept& kept = *answer.mutable_prefix_kept();
  kept.set_shown(message.contract());
  const Nanos since = now - age_of(message.since_ns(), message.now_ns());
  if (theirs && may_lend(from, message.cells(), since)) {
    std::vector<uint32_t> free;
    std::vector<uint32_t> blocks = loans_->hand_over(message.contract(), message.cells(), free);
    if (!free.empty()) memory_.give_back(free);
    memory_.keep_prefix(blocks);
    if (mutant(Mutant::kKeptPrefixFreed)) memory_.give_back(blocks);
    shown_.erase(it);
    kept.set_contract(
        rmanager_.lender().lend_prefix(from, std::move(blocks), since, message.since_ns(), now));
    kept.set_cells(message.cells());
  }
  // One that misses it has a deadline, and learns of the loan by the next statement.
  (void)post_.send(from, answer);
  return {};
}

Status PrefixExchange::handle(const PeerId& from, const wire::FindPrefix& message, Nanos now) {
  const auto hashes = static_cast<size_t>(message.hashes_size());
  if (hashes == 0 || hashes % 2 != 0 || hashes > 2 * kMostBlocks) {
    return error(ErrorCode::kCorrupt, "it asks for a prefix by {} words", hashes);
  }
  if (message.beginning_size() != 2) return error(ErrorCode::kCorrupt, "it asks without a beginning");
  Question question{
      from, message.question(), {}, now + within_range(std::max<int64_t>(0, message.within_ns())), {}};
  for (int i = 0; i < message.hashes_size(); i += 2) {
    question.chain.push_back({message.hashes(i), message.hashes(i + 1)});
  }
  // Also one that shows nothing may be a home.
  if (home_of({message.beginning(0), message.beginning(1)}) == post_.self()) {
    question.hint = remember(question.chain, from);
  }
  const auto open = static_cast<size_t>(
      std::count_if(questions_.begin(), questions_.end(), [&](const Question& q) { return q.from == from; }));
  if (leaving_ || settings_.prefix_asked == 0 || open >= kMostQuestions) {
    say(from, question.id, 0, 0, question.hint);
  } else if (!try_answer(question, now)) {
    questions_.push_back(std::move(question));
  }
  return {};
}

bool PrefixExchange::try_answer(const Question& question, Nanos now) {
  std::optional<LendableMemory::Shown> shown = memory_.show_prefix(question.chain);
  if (!shown) return false;
  const auto count = static_cast<uint32_t>(shown->cells.size());
  uint64_t contract = 0;
  if (count > 0) {
    contract = kShowsPrefix | ++last_contract_;
    loans_->lend(contract, question.from, std::move(shown->cells));
    shown_[contract] = {question.from, count, now + settings_.prefix_shown};
  }
  say(question.from, question.id, contract, count,
      question.hint.blocks > shown->blocks ? question.hint : Hint());
  return true;
}

void PrefixExchange::say(const PeerId& to, uint64_t question, uint64_t contract, uint32_t cells,
                         const Hint& hint) {
  wire::Envelope message;
  wire::PrefixFound& found = *message.mutable_prefix_found();
  found.set_question(question);
  found.set_contract(contract);
  found.set_cells(cells);
  if (hint.blocks > 0) put(hint.peer, found.mutable_hint());
  // One that misses it has a deadline.
  (void)post_.send(to, message);
}

Status PrefixExchange::handle(const PeerId& from, const wire::PrefixDone& message) {
  const auto it = shown_.find(message.contract());
  if (it != shown_.end() && it->second.to == from) end(message.contract());
  return {};
}

void PrefixExchange::end(uint64_t contract) {
  std::vector<uint32_t> free;
  loans_->end(contract, free);
  if (!free.empty()) memory_.give_back(free);
  shown_.erase(contract);
}

// ---------------------------------------------------------------- both

void PrefixExchange::lost(const PeerId& peer) {
  std::erase_if(questions_, [&](const Question& q) { return q.from == peer; });
  std::vector<uint64_t> theirs, open;
  for (const auto& [contract, shown] : shown_) {
    if (shown.to == peer) theirs.push_back(contract);
  }
  for (const uint64_t contract : theirs) end(contract);
  std::erase_if(keeping_, [&](const Keeping& k) {
    if (k.shown.creditor == peer) refused_.push_back(k.shown);
    return k.shown.creditor == peer;
  });
  for (Answer& answer : answers_) {
    if (answer.shown.creditor == peer) answer.cells = 0;
  }
  for (auto& [question, asked] : asked_) {
    if (asked.best.cells > 0 && asked.best.shown.creditor == peer) asked.best.cells = 0;
    if (std::erase(asked.waits_for, peer) > 0) open.push_back(question);
  }
  for (const uint64_t question : open) answered(question, asked_.at(question));
}

void PrefixExchange::tick(Nanos now) {
  now_ = now;
  while (!questions_.empty()) {
    if (questions_.front().until > now && !try_answer(questions_.front(), now)) break;
    questions_.pop_front();
  }
  std::vector<uint64_t> due, late;
  for (const auto& [contract, shown] : shown_) {
    if (shown.until <= now) due.push_back(contract);
  }
  for (const uint64_t contract : due) end(contract);
  for (const auto& [question, asked] : asked_) {
    if (asked.question.until <= now) late.push_back(question);
  }
  for (const uint64_t question : late) {
    Asked& asked = asked_.at(question);
    asked.waits_for.clear();
    answered(question, asked);
  }
}

uint32_t PrefixExchange::shown_cells() const {
  uint32_t cells = 0;
  for (const auto& [contract, shown] : shown_) cells += shown.cells;
  return cells;
}

Nanos PrefixExchange::next_deadline() const {
  Nanos next = INT64_MAX;
  for (const auto& [contract, shown] : shown_) next = std::min(next, shown.until);
  for (const auto& [question, asked] : asked_) next = std::min(next, asked.question.until);
  return next;
}

void PrefixExchange::leave() {
  leaving_ = true;
  for (const Question& question : questions_) say(question.from, question.id, 0, 0, {});
  questions_.clear();
  while (!shown_.empty()) end(shown_.begin()->first);
  for (const Keeping& k : std::exchange(keeping_, {})) refused_.push_back(k.shown);
}

std::string PrefixExchange::describe() const {
  std::string out;
  for (const auto& [contract, shown] : shown_) {
    out += fmt::format("  shows {} cells as {} to {} until {}\n", shown.cells, contract & ~kShowsPrefix,
                       name_of(shown.to), shown.until);
  }
  for (const auto& [question, asked] : asked_) {
    out += fmt::format("  asked {}, {} answers to come, {} cells until {}\n", question,
                       asked.waits_for.size(), asked.best.cells, asked.question.until);
  }
  for (const Keeping& k : keeping_) {
    out += fmt::format("  wants {} cells of {} kept by {}\n", k.cells, k.shown.id & ~kShowsPrefix,
                       name_of(k.shown.creditor));
  }
  for (const Kept& k : kept_) {
    out += fmt::format("  {} of {} is kept as {}\n", k.shown.id & ~kShowsPrefix, name_of(k.loan.creditor),
                       k.loan.id);
  }
  for (const Question& q : questions_) out += fmt::format("  {} asks {}\n", name_of(q.from), q.id);
  return out;
}

}  // namespace kvasir::cluster
