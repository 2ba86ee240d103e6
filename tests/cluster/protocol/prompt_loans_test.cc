// Rows of prompts that instances compute for each other: which peer is asked, what is lent, and every way in
// which it comes to nothing. Blocks have 64 tokens, four to a leaf of attention, and two cells.
#include "cluster/protocol/prompt_loans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/instances.h"

namespace kvasir::cluster::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Event = BorrowEvent::Kind;

constexpr uint32_t kBlock = 64, kLeaf = 4, kCells = 2;
constexpr Nanos kLong = 10 * kNanosPerSecond;

class Prompts : public testing::Test {
 protected:
  PromptLoans& at(size_t which) { return all.at(which).prompts(); }
  PromptQuestion question(uint64_t id, uint32_t blocks, Nanos within = kLong) {
    PromptQuestion q;
    q.id = id;
    for (uint32_t i = 0; i < blocks * kBlock; ++i) q.tokens.push_back(static_cast<Token>(i));
    q.cells = blocks * kCells;
    q.since = all.now();
    q.until = all.now() + within;
    return q;
  }
  void ask(size_t which, PromptQuestion q) {
    at(which).ask(std::move(q), all.now());
    all.deliver();
  }
  // The one job of an instance.
  PromptJob job(size_t which) {
    const std::vector<PromptJob> jobs = at(which).take_jobs();
    KV_CHECK(jobs.size() == 1, "{} jobs", jobs.size());
    return jobs[0];
  }
  // Its engine has computed the job, of which it has so many blocks.
  void compute(size_t which, uint32_t blocks) {
    const PromptJob its = job(which);
    all.memory(which).has = blocks;
    at(which).computed(its.id, chain_of(its), all.now());
    all.deliver();
  }
  static std::vector<PrefixHash> chain_of(const PromptJob& job) {
    return std::vector<PrefixHash>(job.tokens.size() / kBlock);
  }
  uint32_t lent(size_t which) { return all.lender(which).lent_blocks(); }
  void expect_nothing_lent() {
    all.run(2 * kNanosPerSecond);
    for (const size_t i : {0, 1}) {
      EXPECT_EQ(lent(i), 0u) << i;
      EXPECT_EQ(all.memory(i).free_blocks(), 100u) << i;
      EXPECT_THAT(all.borrower(i).contracts(), IsEmpty()) << i;
    }
  }

  Instances all{{100, 100}, false};
};

TEST_F(Prompts, WhatAPeerHasComputedIsALoan) {
  ask(0, question(7, 2 * kLeaf));
  const std::vector<PromptJob> jobs = at(1).take_jobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].tokens, question(7, 2 * kLeaf).tokens);
  EXPECT_THAT(at(1).take_jobs(), IsEmpty());
  EXPECT_EQ(lent(1), 0u) << "nothing is lent before";
  all.memory(1).has = 2 * kLeaf;
  at(1).computed(jobs[0].id, chain_of(jobs[0]), all.now());
  all.deliver();
  const auto events = all.events(0);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Event::kGranted);
  EXPECT_EQ(events[0].blocks, 2 * kLeaf * kCells);
  EXPECT_EQ(at(0).take_question(events[0].contract), 7u);
  EXPECT_EQ(at(0).take_question(events[0].contract), std::nullopt);
  EXPECT_THAT(at(0).take_refused(), IsEmpty());
  EXPECT_EQ(lent(1), 2 * kLeaf * kCells);
  // As any other: it is stated, and goes back.
  all.run(3 * kNanosPerSecond);
  EXPECT_THAT(all.events(0), IsEmpty());
  std::vector<uint32_t> slots(events[0].blocks);
  std::iota(slots.begin(), slots.end(), 0u);
  all.at(0).give_back(events[0].contract, slots, all.now());
  expect_nothing_lent();
}

TEST_F(Prompts, ItIsRecalledForAnOlderRequest) {
  ask(0, question(7, kLeaf));
  compute(1, kLeaf);
  const auto granted = all.events(0);
  ASSERT_EQ(granted.size(), 1u);
  all.at(1).recall(3, all.now());
  all.deliver();
  const auto recalled = all.events(0, Event::kRecalled);
  ASSERT_EQ(recalled.size(), 1u);
  EXPECT_EQ(recalled[0].blocks, 3u);
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kLost).size(), 1u) << "it was not given back in time";
  expect_nothing_lent();
}

TEST_F(Prompts, ItTakesNoMoreThanItMayLendInWholeLeaves) {
  Instances few({100, 2 * kLeaf * kCells + 7}, false);
  few.at(0).prompts().ask(question(7, 4 * kLeaf), few.now());
  few.deliver();
  const auto jobs = few.at(1).prompts().take_jobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].tokens.size(), 2 * kLeaf * kBlock);
}

// The engine would refuse all of it.
TEST_F(Prompts, ItLeavesRoomForTheBlockBehindTheRows) {
  Instances few({100, 2 * kLeaf * kCells + kCells - 1}, false);
  few.at(0).prompts().ask(question(7, 2 * kLeaf), few.now());
  few.deliver();
  const auto jobs = few.at(1).prompts().take_jobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].tokens.size(), kLeaf * kBlock);
}

TEST_F(Prompts, OfALeafThatIsNotWholeNothingIsLent) {
  ask(0, question(7, 2 * kLeaf));
  compute(1, kLeaf + 3);
  const auto events = all.events(0);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].blocks, kLeaf * kCells);
  EXPECT_EQ(all.memory(1).free_blocks(), 100 - kLeaf * kCells);
}

TEST_F(Prompts, ItRefusesWhatItHasNoRoomFor) {
  ask(0, question(7, kLeaf - 1));
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7)) << "it is no leaf";
  EXPECT_EQ(all.at(1).post().counts().malformed, 1u);
  all.borrow(0, 100 - 1);
  ask(0, question(8, kLeaf));
  EXPECT_THAT(at(0).take_refused(), ElementsAre(8));
  EXPECT_THAT(at(1).take_jobs(), IsEmpty());
}

TEST_F(Prompts, ItRefusesItsCreditor) {
  all.borrow(1, 10);
  ask(0, question(7, kLeaf));
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
  EXPECT_THAT(at(1).take_jobs(), IsEmpty());
}

TEST_F(Prompts, ItRefusesWhileAnOlderRequestOfItsOwnWaits) {
  all.lender(1).keep_for_own(5, all.now() - kNanosPerSecond);
  ask(0, question(7, kLeaf));
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
  all.lender(1).keep_for_own(5, all.now() + kNanosPerSecond);
  ask(0, question(8, kLeaf));
  EXPECT_THAT(at(0).take_refused(), IsEmpty()) << "a later one waits behind it";
}

TEST_F(Prompts, AnOlderRequestThatHasComeMeanwhileKeepsTheMemory) {
  ask(0, question(7, kLeaf));
  all.lender(1).keep_for_own(5, all.now() - kNanosPerSecond);
  compute(1, kLeaf);
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
  expect_nothing_lent();
}

TEST_F(Prompts, OneJobAtATime) {
  Instances three({100, 100, 100}, false);
  three.at(0).prompts().ask(question(7, kLeaf), three.now());
  three.at(0).prompts().ask(question(8, kLeaf), three.now());
  three.at(0).prompts().ask(question(9, kLeaf), three.now());
  three.deliver();
  EXPECT_EQ(three.at(1).prompts().take_jobs().size(), 1u);
  EXPECT_EQ(three.at(2).prompts().take_jobs().size(), 1u);
  EXPECT_THAT(three.at(0).prompts().take_refused(), ElementsAre(9)) << "it has asked both";
}

TEST_F(Prompts, TheNextOneIsAskedWhereTheFirstRefusesOrDies) {
  Instances four({100, 100, 100, 100}, false);
  four.at(0).prompts().ask(question(7, kLeaf), four.now());
  four.deliver();
  std::vector<size_t> asked;
  for (int turn = 0; turn < 3; ++turn) {
    for (const size_t which : {1, 2, 3}) {
      for (const PromptJob& job : four.at(which).prompts().take_jobs()) {
        asked.push_back(which);
        if (turn == 0) four.at(which).prompts().computed(job.id, {}, four.now());
      }
    }
    four.deliver();
    if (turn == 1) four.kill(asked.back());
    four.deliver();
  }
  std::sort(asked.begin(), asked.end());
  EXPECT_THAT(asked, ElementsAre(1, 2, 3));
}

TEST_F(Prompts, WithoutPeersItIsRefusedAtOnce) {
  Instances one({100});
  one.at(0).prompts().ask(question(7, kLeaf), one.now());
  EXPECT_THAT(one.at(0).prompts().take_refused(), ElementsAre(7));
}

TEST_F(Prompts, ABusyEngineLendsLater) {
  ask(0, question(7, kLeaf));
  all.memory(1).busy = true;
  compute(1, kLeaf);
  EXPECT_THAT(all.events(0), IsEmpty());
  all.memory(1).busy = false;
  all.run(PromptLoans::kAgain);
  EXPECT_EQ(all.events(0).size(), 1u);
}

TEST_F(Prompts, WhatComesTooLateGoesBack) {
  ask(0, question(7, kLeaf, kNanosPerSecond));
  const PromptJob its = job(1);
  const uint64_t id = its.id;
  all.run(kNanosPerSecond);
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
  EXPECT_THAT(at(1).take_dropped(), ElementsAre(id)) << "its engine may stop";
  all.memory(1).has = kLeaf;
  at(1).computed(id, chain_of(its), all.now());
  all.deliver();
  EXPECT_THAT(all.events(0), IsEmpty());
  expect_nothing_lent();
}

TEST_F(Prompts, AQuestionThatIsForgottenEndsTheJob) {
  ask(0, question(7, kLeaf));
  const uint64_t id = job(1).id;
  at(0).forget(7);
  all.deliver();
  EXPECT_THAT(at(1).take_dropped(), ElementsAre(id));
  EXPECT_THAT(at(0).take_refused(), IsEmpty());
  ask(0, question(8, kLeaf));
  EXPECT_EQ(at(1).take_jobs().size(), 1u) << "it is free for another one";
}

TEST_F(Prompts, WhatCrossesAForgottenQuestionGoesBack) {
  ask(0, question(7, kLeaf));
  const PromptJob its = job(1);
  all.memory(1).has = kLeaf;
  at(1).computed(its.id, chain_of(its), all.now());
  at(0).forget(7);
  all.deliver();
  EXPECT_THAT(all.events(0), IsEmpty());
  expect_nothing_lent();
}

TEST_F(Prompts, ADeadOwnerEndsTheJob) {
  ask(0, question(7, kLeaf));
  const uint64_t id = job(1).id;
  all.kill(0);
  EXPECT_THAT(at(1).take_dropped(), ElementsAre(id));
}

TEST_F(Prompts, ADeadLenderTakesWhatItLentWithIt) {
  ask(0, question(7, kLeaf));
  compute(1, kLeaf);
  all.kill(1);
  const auto events = all.events(0);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, Event::kLost);
  ask(0, question(8, kLeaf));
  EXPECT_THAT(at(0).take_refused(), ElementsAre(8));
}

TEST_F(Prompts, OneThatLeavesComputesNothing) {
  ask(0, question(7, kLeaf));
  const uint64_t id = job(1).id;
  all.at(1).leave(all.now());
  all.deliver();
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
  EXPECT_THAT(at(1).take_dropped(), ElementsAre(id));
  ask(0, question(8, kLeaf));
  EXPECT_THAT(at(0).take_refused(), ElementsAre(8));
}

TEST_F(Prompts, MalformedMessagesChangeNothing) {
  const auto send = [&](size_t from, size_t to, const std::function<void(wire::Envelope&)>& fill) {
    wire::Envelope message;
    fill(message);
    const uint64_t before = all.at(to).post().counts().malformed;
    ASSERT_TRUE(all.at(from).post().send(all.id(to), message).ok());
    all.deliver();
    EXPECT_EQ(all.at(to).post().counts().malformed, before + 1);
  };
  const auto compute = [&](uint32_t tokens) {
    send(0, 1, [&](wire::Envelope& message) {
      wire::ComputePrompt& body = *message.mutable_compute_prompt();
      for (uint32_t i = 0; i < tokens; ++i) body.add_tokens(1);
      body.set_within_ns(kLong);
    });
  };
  compute(0);
  compute(255);
  compute(256 + 64);
  EXPECT_THAT(at(1).take_jobs(), IsEmpty());
  ask(0, question(7, kLeaf));
  send(1, 0, [&](wire::Envelope& message) {
    message.mutable_prompt_computed()->set_question(7);
    message.mutable_prompt_computed()->set_contract(5);
    message.mutable_prompt_computed()->set_cells(kLeaf * kCells + 1);
  });
  EXPECT_THAT(all.events(0), IsEmpty());
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
}

TEST_F(Prompts, TheLongestQuestionIsComputedAndALeafMoreIsRefusedAtOnce) {
  constexpr uint32_t kMost = PromptQuestion::kMostTokens / kBlock;
  Instances large({0, kMost * kCells + 100}, false);
  large.at(0).prompts().ask(question(7, kMost), large.now());
  large.deliver();
  EXPECT_EQ(large.at(1).prompts().take_jobs().size(), 1u);
  large.at(0).prompts().forget(7);
  large.at(0).prompts().ask(question(8, kMost + kLeaf), large.now());
  large.deliver();
  EXPECT_EQ(large.at(1).post().counts().malformed, 1u);
  EXPECT_THAT(large.at(0).prompts().take_refused(), ElementsAre(8)) << "the owner does not wait for it";
}

TEST_F(Prompts, HowManyCellsABlockHasTheLenderKnows) {
  // Of ten cells to a block two leaves are 80 cells, and three are more than it lends.
  all.memory(1).shape.cells = 10;
  PromptQuestion three = question(7, 3 * kLeaf);
  three.cells = 3 * kLeaf;  // as if a block had one
  ask(0, std::move(three));
  const PromptJob its = job(1);
  EXPECT_EQ(its.tokens.size(), 2 * kLeaf * kBlock);
  all.memory(1).has = 2 * kLeaf;
  at(1).computed(its.id, chain_of(its), all.now());
  EXPECT_EQ(lent(1), 80u);
}

TEST_F(Prompts, OneThatComputesNothingAsksAllTheSame) {
  Instances one_way({100, 100}, false, /*computing=*/1);
  one_way.at(1).prompts().ask(question(7, kLeaf), one_way.now());
  one_way.deliver();
  EXPECT_THAT(one_way.at(1).prompts().take_refused(), ElementsAre(7));
  one_way.at(0).prompts().ask(question(8, kLeaf), one_way.now());
  one_way.deliver();
  EXPECT_EQ(one_way.at(1).prompts().take_jobs().size(), 1u);
}

TEST_F(Prompts, AChainOfAnotherLengthIsARefusal) {
  ask(0, question(7, kLeaf));
  const uint64_t id = job(1).id;
  all.memory(1).has = kLeaf;
  at(1).computed(id, std::vector<PrefixHash>(kLeaf - 1), all.now());
  all.deliver();
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
  expect_nothing_lent();
}

// ---------------------------------------------------------------- debts of two in each other's direction

TEST_F(Prompts, OfTwoThatAskEachOtherTheOlderRequestIsComputed) {
  PromptQuestion older = question(7, kLeaf);
  PromptQuestion later = question(8, kLeaf);
  older.since -= kNanosPerSecond;
  at(0).ask(std::move(later), all.now());
  at(1).ask(std::move(older), all.now());
  all.deliver();
  EXPECT_THAT(at(1).take_jobs(), IsEmpty());
  EXPECT_THAT(at(0).take_refused(), ElementsAre(8));
  compute(0, kLeaf);
  EXPECT_EQ(lent(0), kLeaf * kCells);
  EXPECT_EQ(lent(1), 0u);
  // The one that came first refuses the other, too, and names decide between two of the same age.
  PromptQuestion one = question(9, kLeaf), two = question(10, kLeaf);
  Instances again({100, 100}, false);
  one.since = two.since = again.now();
  one.until = two.until = again.now() + kLong;
  again.at(0).prompts().ask(std::move(one), again.now());
  again.at(1).prompts().ask(std::move(two), again.now());
  again.deliver();
  EXPECT_EQ(again.at(0).prompts().take_jobs().size() + again.at(1).prompts().take_jobs().size(), 1u);
  EXPECT_THAT(again.at(1).prompts().take_refused(), ElementsAre(10));
}

TEST_F(Prompts, OneThatHasBorrowedOfTheOwnerMeanwhileLendsNothing) {
  ask(0, question(7, kLeaf));
  all.borrow(1, 10);
  compute(1, kLeaf);
  EXPECT_EQ(lent(1), 0u);
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
}

TEST_F(Prompts, WhatADebtorLendsGoesBack) {
  ask(0, question(7, kLeaf));
  const PromptJob its = job(1);
  // Its question for memory and its answer cross.
  wire::Envelope message;
  message.mutable_ask()->set_ask(99);
  message.mutable_ask()->set_blocks(5);
  ASSERT_TRUE(all.at(1).post().send(all.id(0), message).ok());
  all.memory(1).has = kLeaf;
  at(1).computed(its.id, chain_of(its), all.now());
  all.deliver();
  EXPECT_THAT(all.events(0), IsEmpty());
  EXPECT_THAT(at(0).take_refused(), ElementsAre(7));
  expect_nothing_lent();
}

}  // namespace
}  // namespace kvasir::cluster::test
