// Prefixes that instances copy from each other, or attend at each other. An instance asks a few peers for
// blocks that it lacks; one that has some shows their cells, which can then be read like lent ones, but not
// written. Showing is no loan: it takes no room, no debt is counted, and it ends when the reader says so or
// after some seconds. To attend to them the reader asks the peer to keep them: then they become a loan, which
// the lender counts, states, recalls and revokes like any other, and refuses as it refuses others.
//
// Each beginning of prompts has a home among the members (the highest hash of beginning and name), which is
// asked first. It remembers which instance asked it for which blocks, which mostly has them since, and names
// that instance to the next one that asks. So a few questions find what any instance has, however many there
// are. A home that has come or gone knows nothing at first; nothing but hits depends on it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/protocol/loan_table.h"
#include "cluster/protocol/post.h"
#include "cluster/protocol/rmanager.h"
#include "cluster/protocol/settings.h"

namespace kvasir::wire {
class FindPrefix;
class KeepPrefix;
class PrefixDone;
class PrefixFound;
class PrefixKept;
}  // namespace kvasir::wire

namespace kvasir::cluster {

// Not thread-safe.
class PrefixExchange {
 public:
  // Blocks of one question: its hashes take 64 KiB. And open questions of a peer, beyond which it is told
  // that there is nothing.
  static constexpr size_t kMostBlocks = 4096;
  static constexpr size_t kMostQuestions = 8;
  // Blocks that a home remembers.
  static constexpr size_t kMostRemembered = size_t{1} << 16;

  // The references outlive it.
  PrefixExchange(const ProtocolSettings& settings, LendableMemory& memory, Post& post, RManager& rmanager)
      : settings_(settings),
        memory_(memory),
        post_(post),
        rmanager_(rmanager),
        loans_(rmanager.lender().loans()) {}

  // ---- the reader
  // Asks up to settings.prefix_asked peers: the beginning's home, the one that had something last, and others
  // in turn; and the one that the home names. The answer comes through take_answers(), also if there is no
  // peer to ask.
  void ask(const PrefixQuestion& question, Nanos now);
  // The question's answer, if one comes, is of no use.
  void forget(uint64_t question);
  // What was shown has been read, or will not be.
  void done(const ContractRef& shown);
  struct Answer {
    uint64_t question = 0;
    ContractRef shown;
    uint32_t cells = 0;  // 0: no peer has any
  };
  std::vector<Answer> take_answers() { return std::exchange(answers_, {}); }
  // Asks the peer to lend the first cells of what it has shown, for a request that arrived at `since`. What
  // it lends is a kGranted of the borrower's events, for which take_kept() names what was shown; if it lends
  // none, that is among those of take_refused(), and can be read as before. done() ends this, too.
  void keep(const ContractRef& shown, uint32_t cells, Nanos since, Nanos now);
  std::optional<ContractRef> take_kept(const ContractRef& loan);
  std::vector<ContractRef> take_refused() { return std::exchange(refused_, {}); }

  Status handle(const PeerId& from, const wire::FindPrefix& message, Nanos now);
  Status handle(const PeerId& from, const wire::PrefixFound& message);
  Status handle(const PeerId& from, const wire::PrefixDone& message);
  Status handle(const PeerId& from, const wire::KeepPrefix& message, Nanos now);
  Status handle(const PeerId& from, const wire::PrefixKept& message, Nanos now);
  void lost(const PeerId& peer);
  // Answers what waited for the memory, ends what is due.
  void tick(Nanos now);
  Nanos next_deadline() const;
  // Nothing is shown from now on.
  void leave();

  // Contracts that show something.
  size_t shown() const { return shown_.size(); }
  uint32_t shown_cells() const;
  std::string describe() const;

 private:
  struct Asked {
    PrefixQuestion question;
    std::vector<PeerId> told;  // all that were asked
    std::vector<PeerId> waits_for;
    Answer best;
  };
  // The instance that asked for the most of some blocks, and how many of them.
  struct Hint {
    PeerId peer;
    uint32_t blocks = 0;
  };
  struct Question {
    PeerId from;
    uint64_t id = 0;
    std::vector<PrefixHash> chain;
    Nanos until = 0;
    Hint hint;
  };
  struct Shown {
    PeerId to;
    uint32_t cells = 0;
    Nanos until = 0;
  };

  std::vector<PeerId> peers_for(const PrefixQuestion& question, const Hint& hint);
  void tell(Asked& asked, const PeerId& peer, Nanos now);
  PeerId home_of(const PrefixHash& beginning) const;
  // Of the home: what it knows of the blocks, and then that `from` asks for them.
  Hint remember(std::span<const PrefixHash> chain, const PeerId& from);
  void answered(uint64_t question, Asked& asked);
  bool try_answer(const Question& question, Nanos now);
  void say(const PeerId& to, uint64_t question, uint64_t contract, uint32_t cells, const Hint& hint);
  bool may_lend(const PeerId& to, uint32_t cells, Nanos since) const;
  void end(uint64_t contract);

  const ProtocolSettings& settings_;
  LendableMemory& memory_;
  Post& post_;
  RManager& rmanager_;
  const std::shared_ptr<LoanTable> loans_;
  std::map<uint64_t, Asked> asked_;  // by question
  std::vector<Answer> answers_;
  struct Keeping {
    ContractRef shown;
    uint32_t cells = 0;
  };
  std::vector<Keeping> keeping_;  // that peers were asked to keep
  struct Kept {
    ContractRef loan;
    ContractRef shown;
  };
  std::vector<Kept> kept_;
  std::vector<ContractRef> refused_;
  std::string had_some_;  // the instance that showed something last
  uint64_t turn_ = 0;     // of the others
  Nanos now_ = 0;         // of the last call that knew

  std::deque<Question> questions_;   // of peers, not answered yet
  std::map<uint64_t, Shown> shown_;  // by contract
  uint64_t last_contract_ = 0;
  // Of a home.
  std::map<PrefixHash, PeerId> asked_for_;
  std::deque<PrefixHash> remembered_;  // the same, the oldest first
  bool leaving_ = false;
};

}  // namespace kvasir::cluster
