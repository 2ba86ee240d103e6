// The first rows of a prompt that a peer computes: it lends the memory in which their K and V then lie, so
// that these need not cross the network. What has been computed is a loan like any other; until then nothing
// is lent, and the rows are a request of the peer's own engine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/protocol/post.h"
#include "cluster/protocol/rmanager.h"
#include "cluster/protocol/settings.h"
#include "contract/lending.h"

namespace kvasir::wire {
class ComputePrompt;
class PromptComputed;
class PromptDone;
}  // namespace kvasir::wire

namespace kvasir::cluster {

// Not thread-safe.
class PromptLoans {
 public:
  // While blocks are in use that are to be lent.
  static constexpr Nanos kAgain = 5 * kNanosPerMilli;

  // The references outlive it.
  PromptLoans(const ProtocolSettings& settings, LendableMemory& memory, Post& post, RManager& rmanager)
      : settings_(settings), memory_(memory), post_(post), rmanager_(rmanager) {}

  // ---- the owner of the prompt
  // Asks peers one after the other, settings.prompt_asked at most, until one has computed rows. What that
  // lends is a kGranted of the borrower's events, for which take_question() names the question; if none does,
  // the question is among those of take_refused().
  void ask(PromptQuestion question, Nanos now);
  // The question's answer, if one comes, is of no use.
  void forget(uint64_t question);
  std::optional<uint64_t> take_question(const ContractRef& contract);
  std::vector<uint64_t> take_refused() { return std::exchange(refused_, {}); }

  // ---- the one that computes
  // Jobs for the engine, and those that it may stop.
  std::vector<PromptJob> take_jobs();
  std::vector<uint64_t> take_dropped() { return std::exchange(dropped_, {}); }
  // The engine has computed a job, of which these are the blocks; none: it cannot.
  void computed(uint64_t job, std::vector<PrefixHash> chain, Nanos now);

  Status handle(const PeerId& from, const wire::ComputePrompt& message, Nanos now);
  Status handle(const PeerId& from, const wire::PromptComputed& message, Nanos now);
  Status handle(const PeerId& from, const wire::PromptDone& message);
  void lost(const PeerId& peer, Nanos now);
  void tick(Nanos now);
  Nanos next_deadline() const;
  // Computes nothing and asks for nothing from now on.
  void leave();

  std::string describe() const;

 private:
  struct Asked {
    PromptQuestion question;
    std::vector<PeerId> others;  // that may be asked, the next one last
    PeerId peer;                 // that was asked
  };
  struct Job {
    PeerId from;
    uint64_t question = 0;
    PromptJob rows;
    size_t blocks = 0;              // of the rows, in whole leaves
    std::vector<PrefixHash> chain;  // the same, once they are computed
    Nanos since = 0;                // when the request arrived, by our clock
    int64_t since_there = 0;        // by its instance's
    Nanos until = 0;
    bool begun = false;       // the engine knows of it
    Nanos again = INT64_MAX;  // then, if that could not be said: when to try again
  };

  // Asks the next peer. False: there is none.
  bool ask_next(Asked& asked, Nanos now);
  void refuse(uint64_t question);
  // Blocks to a leaf of attention; 0: this instance computes nothing.
  size_t leaf_blocks() const;
  // Whether a peer's request goes before the one for which we have asked the same peer.
  bool before_ours(const Job& job) const;
  // Blocks of the job that may be lent now, in whole leaves.
  size_t may_lend(const Job& job) const;
  // False: it cannot be said now.
  bool try_lend(Job& job, Nanos now);
  void say(const PeerId& to, uint64_t question, uint64_t contract, size_t cells);
  void drop(std::map<uint64_t, Job>::iterator job);

  const ProtocolSettings& settings_;
  LendableMemory& memory_;
  Post& post_;
  RManager& rmanager_;
  uint64_t turn_ = 0;                // in which the peers are asked
  std::map<uint64_t, Asked> asked_;  // by question
  std::vector<std::pair<ContractRef, uint64_t>> taken_;
  std::vector<uint64_t> refused_;
  uint64_t last_job_ = 0;
  std::map<uint64_t, Job> jobs_;
  std::vector<uint64_t> dropped_;
  bool leaving_ = false;
};

}  // namespace kvasir::cluster
