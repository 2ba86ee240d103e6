// Prefixes that instances show each other: questions, answers, and every way in which showing ends.
#include "cluster/protocol/prefix_exchange.h"

#include <gtest/gtest.h>

#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/instances.h"

namespace kvasir::cluster::test {
namespace {

constexpr Nanos kSoon = 100 * kNanosPerMilli;

// All prompts have one beginning.
PrefixQuestion question(uint64_t id, uint64_t blocks, Nanos until, uint64_t first = 0) {
  PrefixQuestion q{id, {}, {0, ~uint64_t{0}}, until};
  for (uint64_t i = first; i < first + blocks; ++i) q.chain.push_back({i, ~i});
  return q;
}

class Prefixes : public testing::Test {
 protected:
  PrefixExchange& at(size_t which) { return all.at(which).prefixes(); }
  std::vector<PrefixExchange::Answer> ask(size_t which, uint64_t id, uint64_t blocks) {
    at(which).ask(question(id, blocks, all.now() + kSoon), all.now());
    all.deliver();
    return at(which).take_answers();
  }
  // The blocks that can be read as the first slots of what is shown.
  size_t readable(size_t holder, const PeerId& reader, uint64_t contract, uint32_t slots) {
    const LoanTable::Slots of{contract, 0, slots, 1};
    std::vector<uint32_t> blocks;
    if (!all.lender(holder).loans()->pin(reader, {&of, 1}, blocks).ok()) return 0;
    all.lender(holder).loans()->unpin(blocks);
    return blocks.size();
  }

  uint32_t asked() {
    uint32_t sum = 0;
    for (size_t i = 0; i < 5; ++i) sum += all.memory(i).asked;
    return sum;
  }

  Instances all{{10, 10, 10, 10, 10}};
};

TEST_F(Prefixes, TheLongestOfThreeAnswersIsTaken) {
  all.memory(1).has = 2;
  all.memory(2).has = 3;
  all.memory(3).has = 1;
  const auto answers = ask(0, 7, 5);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].question, 7u);
  EXPECT_EQ(answers[0].cells, 6u);  // two of each block
  EXPECT_EQ(answers[0].shown.creditor, all.id(2));
  EXPECT_EQ(readable(2, all.id(0), answers[0].shown.id, 6), 6u);
  EXPECT_EQ(readable(2, all.id(1), answers[0].shown.id, 6), 0u) << "it is shown to the reader alone";
  // Those that are not read end at once.
  EXPECT_EQ(at(1).shown() + at(3).shown(), 0u);
  EXPECT_EQ(at(2).shown(), 1u);
  at(0).done(answers[0].shown);
  all.deliver();
  EXPECT_EQ(at(2).shown(), 0u);
  EXPECT_EQ(readable(2, all.id(0), answers[0].shown.id, 6), 0u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(all.memory(i).free_blocks(), 10u) << i;
}

TEST_F(Prefixes, NoMoreThanThreeAreAsked) {
  all.memory(4).has = 1;
  uint32_t found = 0;
  for (uint64_t id = 1; id <= 8; ++id) {
    const uint32_t before = asked();
    const auto answers = ask(0, id, 3);
    EXPECT_EQ(asked() - before, 3u);
    ASSERT_EQ(answers.size(), 1u);
    if (answers[0].cells > 0) at(0).done(answers[0].shown);
    found += answers[0].cells > 0 ? 1 : 0;
  }
  EXPECT_GE(found, 7u)
      << "of four others three are asked, and the one that had some is one of them next time";
}

// Of twenty instances one computes a prompt, for which it asked. Any other finds it there by one more
// question.
TEST(ManyPrefixes, TheHomeKnowsWhoHasIt) {
  Instances all(std::vector<uint32_t>(20, 10));
  const auto ask = [&](size_t which, uint64_t id, uint64_t blocks) {
    all.at(which).prefixes().ask(question(id, blocks, all.now() + kSoon), all.now());
    all.deliver();
    auto answers = all.at(which).prefixes().take_answers();
    EXPECT_EQ(answers.size(), 1u);
    return answers[0];
  };
  const auto asked = [&] {
    uint32_t sum = 0;
    for (size_t i = 0; i < 20; ++i) sum += all.memory(i).asked;
    return sum;
  };
  EXPECT_EQ(ask(7, 1, 4).cells, 0u);
  all.memory(7).has = 4;
  for (size_t which = 0; which < 20; ++which) {
    if (which == 7) continue;
    const uint32_t before = asked();
    const auto answer = ask(which, 2, which % 2 == 0 ? 4 : 3);
    EXPECT_LE(asked() - before, 4u);
    EXPECT_EQ(answer.cells, which % 2 == 0 ? 8u : 6u) << which;
    if (answer.cells > 0) all.at(which).prefixes().done(answer.shown);
    all.deliver();
    EXPECT_EQ(ask(7, 3, 4).cells, 0u)
        << "the last one to ask is named, and has none; then this one is named again";
  }
}

TEST(ManyPrefixes, ADeadInstanceIsNotNamed) {
  Instances all(std::vector<uint32_t>(8, 10));
  all.at(5).prefixes().ask(question(1, 4, all.now() + kSoon), all.now());
  all.deliver();
  all.memory(5).has = 4;
  all.kill(5);
  for (size_t which : {0u, 1u, 2u}) {
    all.at(which).prefixes().ask(question(1, 4, all.now() + kSoon), all.now());
    all.deliver();
    const auto answers = all.at(which).prefixes().take_answers();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].cells, 0u);
  }
}

TEST_F(Prefixes, NobodyHasAny) {
  const auto answers = ask(0, 1, 3);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].cells, 0u);
}

TEST(PrefixesAlone, WithoutPeersTheAnswerIsThereAtOnce) {
  Instances one({10});
  one.at(0).prefixes().ask(question(3, 2, one.now() + kSoon), one.now());
  const auto answers = one.at(0).prefixes().take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].cells, 0u);
}

// One whose engine is in a step answers in its next turn; the reader waits as long as it said.
TEST_F(Prefixes, AnAnswerMayWaitForATurn) {
  all.memory(1).has = 2;
  all.memory(1).busy = true;
  EXPECT_TRUE(ask(0, 1, 3).empty());
  all.run(kSoon / 2);
  EXPECT_TRUE(at(0).take_answers().empty());
  all.memory(1).busy = false;
  all.at(1).tick(all.now());
  all.deliver();
  const auto answers = at(0).take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].cells, 4u);
}

TEST_F(Prefixes, WhatComesTooLateIsGivenBack) {
  all.memory(1).has = 2;
  all.memory(2).has = 1;
  all.memory(1).busy = true;
  EXPECT_TRUE(ask(0, 1, 3).empty());
  all.run(kSoon);
  const auto answers = at(0).take_answers();
  ASSERT_EQ(answers.size(), 1u) << "the best of those that came";
  EXPECT_EQ(answers[0].shown.creditor, all.id(2));
  all.memory(1).busy = false;
  all.at(1).tick(all.now());
  all.deliver();
  EXPECT_TRUE(at(0).take_answers().empty());
  EXPECT_EQ(at(1).shown(), 0u) << "nor does it show what no question waits for";
  EXPECT_EQ(all.memory(1).free_blocks(), 10u);
}

TEST_F(Prefixes, AQuestionThatIsForgottenLeavesNothing) {
  all.memory(1).has = 2;
  all.memory(2).busy = true;
  EXPECT_TRUE(ask(0, 1, 3).empty());
  EXPECT_EQ(at(1).shown(), 1u);
  at(0).forget(1);
  all.deliver();
  EXPECT_EQ(at(1).shown(), 0u);
  all.memory(2).has = 3;
  all.memory(2).busy = false;
  all.at(2).tick(all.now());
  all.deliver();
  EXPECT_EQ(at(2).shown(), 0u);
  EXPECT_TRUE(at(0).take_answers().empty());
}

TEST_F(Prefixes, ShowingEndsByItselfAndWhatIsReadThenStays) {
  all.memory(1).has = 2;
  const auto answers = ask(0, 1, 3);
  ASSERT_EQ(answers.size(), 1u);
  const LoanTable::Slots of{answers[0].shown.id, 0, 4, 1};
  std::vector<uint32_t> read;
  ASSERT_TRUE(all.lender(1).loans()->pin(all.id(0), {&of, 1}, read).ok());
  all.run(4 * kNanosPerSecond);
  EXPECT_EQ(at(1).shown(), 0u);
  EXPECT_EQ(readable(1, all.id(0), answers[0].shown.id, 4), 0u);
  EXPECT_EQ(all.memory(1).free_blocks(), 6u);
  all.lender(1).loans()->unpin(read);
  all.at(1).tick(all.now());
  EXPECT_EQ(all.memory(1).free_blocks(), 10u);
}

TEST_F(Prefixes, ADeadPeerIsWaitedForNoLonger) {
  all.memory(1).has = 2;
  all.memory(2).busy = true;
  EXPECT_TRUE(ask(0, 1, 3).empty());
  all.kill(1);
  EXPECT_TRUE(at(0).take_answers().empty());
  all.kill(2);
  const auto answers = at(0).take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].cells, 0u) << "what the dead one showed is gone";
}

TEST_F(Prefixes, AnAnswerOfOneThatDiedSinceIsNone) {
  all.memory(1).has = 2;
  at(0).ask(question(1, 3, all.now() + kSoon), all.now());
  all.deliver();
  all.kill(1);
  const auto answers = at(0).take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].cells, 0u);
}

TEST_F(Prefixes, ADeadReaderHoldsNothing) {
  all.memory(1).has = 2;
  EXPECT_EQ(ask(0, 1, 3).size(), 1u);
  EXPECT_EQ(at(1).shown(), 1u);
  all.kill(0);
  EXPECT_EQ(at(1).shown(), 0u);
  EXPECT_EQ(all.memory(1).free_blocks(), 10u);
}

TEST_F(Prefixes, OneThatLeavesShowsNothing) {
  all.memory(1).has = 2;
  EXPECT_EQ(ask(0, 1, 3).size(), 1u);
  all.at(1).leave(all.now());
  EXPECT_EQ(at(1).shown(), 0u);
  const auto answers = ask(0, 2, 3);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].cells, 0u);
}

TEST_F(Prefixes, OnlyTheReaderSaysThatItIsDone) {
  all.memory(1).has = 2;
  const auto answers = ask(0, 1, 3);
  ASSERT_EQ(answers.size(), 1u);
  at(2).done(answers[0].shown);
  all.deliver();
  EXPECT_EQ(at(1).shown(), 1u);
}

TEST_F(Prefixes, MalformedMessagesChangeNothing) {
  all.memory(1).has = 2;
  wire::FindPrefix odd;
  odd.add_hashes(1);
  EXPECT_FALSE(at(1).handle(all.id(0), odd, all.now()).ok());
  EXPECT_FALSE(at(1).handle(all.id(0), wire::FindPrefix(), all.now()).ok());
  wire::FindPrefix long_one;
  for (size_t i = 0; i < 2 * (PrefixExchange::kMostBlocks + 1); ++i) long_one.add_hashes(i);
  EXPECT_FALSE(at(1).handle(all.id(0), long_one, all.now()).ok());
  wire::FindPrefix without_beginning;
  without_beginning.add_hashes(1);
  without_beginning.add_hashes(1);
  EXPECT_FALSE(at(1).handle(all.id(0), without_beginning, all.now()).ok());
  EXPECT_EQ(at(1).shown(), 0u);
  wire::PrefixFound loan;
  loan.set_question(1);
  loan.set_cells(2);
  loan.set_contract(5);
  EXPECT_FALSE(at(0).handle(all.id(1), loan).ok()) << "it is the number of a loan";
  loan.set_contract(kShowsPrefix | 5);
  EXPECT_TRUE(at(0).handle(all.id(1), loan).ok());
  EXPECT_TRUE(at(0).take_answers().empty()) << "nothing was asked";
  at(0).ask(question(1, 3, all.now() + kSoon), all.now());
  loan.set_cells(7);
  EXPECT_FALSE(at(0).handle(all.id(1), loan).ok()) << "of three blocks, which are six cells";
  all.deliver();
  const auto answers = at(0).take_answers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].cells, 4u) << "what it says afterwards is taken";
}

// ---------------------------------------------------------------- what is kept, to be attended

// "a" reads of "b", which has two blocks of two cells each, of ten.
class KeptPrefixes : public testing::Test {
 protected:
  KeptPrefixes() { all.memory(1).has = 2; }

  PrefixExchange& at(size_t which) { return all.at(which).prefixes(); }
  ContractRef show() {
    at(0).ask(question(1, 3, all.now() + kSoon), all.now());
    all.deliver();
    const auto answers = at(0).take_answers();
    KV_CHECK(answers.size() == 1 && answers[0].cells == 4, "{} answers", answers.size());
    return answers[0].shown;
  }
  // The loan, if there is one.
  std::optional<ContractRef> keep(const ContractRef& shown, uint32_t cells) {
    at(0).keep(shown, cells, all.now(), all.now());
    all.deliver();
    const auto granted = all.events(0, BorrowEvent::Kind::kGranted);
    if (granted.empty()) return std::nullopt;
    EXPECT_EQ(granted[0].blocks, cells);
    EXPECT_EQ(at(0).take_kept(granted[0].contract), shown);
    return granted[0].contract;
  }
  bool readable(const ContractRef& of_it, uint32_t slots) {
    const LoanTable::Slots of{of_it.id, 0, slots, 1};
    std::vector<uint32_t> blocks;
    if (!all.lender(1).loans()->pin(all.id(0), {&of, 1}, blocks).ok()) return false;
    all.lender(1).loans()->unpin(blocks);
    return true;
  }
  uint32_t free_at_lender() { return all.memory(1).free_blocks(); }

  Instances all{{10, 10, 10}, /*lend_to_creditors=*/false};
};

TEST_F(KeptPrefixes, AreALoanUntilTheyAreGivenBack) {
  const ContractRef shown = show();
  EXPECT_EQ(free_at_lender(), 6u);
  EXPECT_TRUE(all.memory(1).kept.empty());
  const auto loan = keep(shown, 2);
  ASSERT_TRUE(loan);
  EXPECT_EQ(all.memory(1).kept.size(), 2u) << "the memory's owner knows that it is lent now";
  EXPECT_EQ(free_at_lender(), 8u) << "what is not kept is shown no longer";
  EXPECT_EQ(at(1).shown(), 0u);
  EXPECT_EQ(all.lender(1).lent_blocks(), 2u);
  EXPECT_TRUE(readable(*loan, 2));
  EXPECT_FALSE(readable(shown, 1));
  EXPECT_NE(loan->id & kShowsPrefix, 0u) << "which says that it may not be written";
  all.run(20 * kNanosPerSecond);
  EXPECT_TRUE(readable(*loan, 2)) << "for as long as it is wanted";
  EXPECT_EQ(free_at_lender(), 8u);
  all.borrower(0).give_back(*loan, std::vector<uint32_t>{0, 1});
  all.deliver();
  EXPECT_EQ(all.lender(1).lent_blocks(), 0u);
  EXPECT_EQ(free_at_lender(), 10u);
}

TEST_F(KeptPrefixes, TwoHaveNumbersOfTheirOwn) {
  const auto first = keep(show(), 4);
  const ContractRef shown = show();
  const auto second = keep(shown, 4);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->id, second->id);
  EXPECT_NE(shown.id, first->id);
  EXPECT_NE(shown.id, second->id);
}

TEST_F(KeptPrefixes, AreRefusedWhereAnOlderRequestLacksMemory) {
  const ContractRef shown = show();
  all.lender(1).keep_for_own(3, all.now() - 1);
  EXPECT_FALSE(keep(shown, 4));
  EXPECT_EQ(at(0).take_refused(), std::vector<ContractRef>{shown});
  EXPECT_TRUE(all.memory(1).kept.empty());
  EXPECT_TRUE(readable(shown, 4)) << "it can be copied instead";
  all.lender(1).keep_for_own(3, all.now() + 1);
  EXPECT_TRUE(keep(shown, 4)) << "later ones wait";
}

TEST_F(KeptPrefixes, AreRefusedWhatIsNotShownAnyMore) {
  const ContractRef shown = show();
  all.run(4 * kNanosPerSecond);
  EXPECT_FALSE(keep(shown, 4));
  EXPECT_EQ(at(0).take_refused(), std::vector<ContractRef>{shown});
  EXPECT_EQ(free_at_lender(), 10u);
}

TEST_F(KeptPrefixes, AreNotLentToACreditor) {
  Instances two({10, 10}, /*lend_to_creditors=*/false);
  two.borrow(1, 3);
  two.memory(1).has = 2;
  two.at(0).prefixes().ask(question(1, 3, two.now() + kSoon), two.now());
  two.deliver();
  const auto answers = two.at(0).prefixes().take_answers();
  ASSERT_EQ(answers.size(), 1u);
  two.at(0).prefixes().keep(answers[0].shown, 4, two.now(), two.now());
  two.deliver();
  EXPECT_EQ(two.at(0).prefixes().take_refused().size(), 1u);
  EXPECT_EQ(two.lender(1).lent_blocks(), 0u);
}

// A prefix is called back whole: its memory is free when the last block is back.
TEST_F(KeptPrefixes, AreCalledBackAndThenTaken) {
  const auto loan = keep(show(), 4);
  ASSERT_TRUE(loan);
  all.at(1).recall(1, all.now());
  all.deliver();
  const auto recalled = all.events(0, BorrowEvent::Kind::kRecalled);
  ASSERT_EQ(recalled.size(), 1u);
  EXPECT_EQ(recalled[0].blocks, 4u);
  EXPECT_TRUE(readable(*loan, 4));
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.events(0, BorrowEvent::Kind::kLost).size(), 1u);
  EXPECT_FALSE(readable(*loan, 4));
  EXPECT_EQ(free_at_lender(), 10u);
}

// 0 owes 1 a prefix of four cells and a loan of two. The loan goes first, though its number is lower.
TEST_F(KeptPrefixes, SettleACycleLastAndWhole) {
  const auto prefix = keep(show(), 4);
  ASSERT_TRUE(prefix);
  all.lender(2).set_lending(false);
  all.run(kNanosPerSecond);
  const ContractRef loan = all.borrow(0, 2);
  ASSERT_EQ(loan.creditor, all.id(1));
  const auto settle = [&](uint32_t blocks) {
    all.lender(1).settle(all.id(0), blocks, kNanosPerSecond, all.now());
    all.deliver();
    std::vector<std::pair<uint64_t, uint32_t>> out;
    for (const BorrowEvent& event : all.events(0, BorrowEvent::Kind::kRecalled)) {
      out.emplace_back(event.contract.id, event.blocks);
    }
    all.lender(1).end_settling(all.now());
    all.deliver();
    (void)all.events(0);
    return out;
  };
  using Recalled = std::vector<std::pair<uint64_t, uint32_t>>;
  EXPECT_EQ(settle(2), (Recalled{{loan.id, 2}}));
  EXPECT_EQ(settle(3), (Recalled{{loan.id, 2}, {prefix->id, 4}}));
}

TEST_F(KeptPrefixes, AreLostWithTheirLender) {
  ASSERT_TRUE(keep(show(), 4));
  all.kill(1);
  EXPECT_EQ(all.events(0, BorrowEvent::Kind::kLost).size(), 1u);
}

TEST_F(KeptPrefixes, ALenderThatDiesBeforeItAnswersHasRefused) {
  const ContractRef shown = show();
  at(0).keep(shown, 4, all.now(), all.now());
  all.kill(1);
  EXPECT_EQ(at(0).take_refused(), std::vector<ContractRef>{shown});
  EXPECT_TRUE(all.events(0).empty());
}

TEST_F(KeptPrefixes, ADeadReaderHoldsNone) {
  ASSERT_TRUE(keep(show(), 4));
  all.kill(0);
  EXPECT_EQ(all.lender(1).lent_blocks(), 0u);
  EXPECT_EQ(free_at_lender(), 10u);
}

TEST_F(KeptPrefixes, WhatNoRequestWaitsForGoesBack) {
  const ContractRef shown = show();
  at(0).keep(shown, 4, all.now(), all.now());
  at(0).done(shown);
  all.deliver();
  EXPECT_TRUE(all.events(0).empty());
  EXPECT_TRUE(at(0).take_refused().empty());
  EXPECT_EQ(all.lender(1).lent_blocks(), 0u);
  EXPECT_EQ(free_at_lender(), 10u);
}

TEST_F(KeptPrefixes, MalformedMessagesChangeNothing) {
  const ContractRef shown = show();
  wire::KeepPrefix keep;
  keep.set_contract(shown.id);
  EXPECT_FALSE(at(1).handle(all.id(0), keep, all.now()).ok()) << "of no cells";
  keep.set_cells(1);
  EXPECT_FALSE(at(1).handle(all.id(0), keep, all.now()).ok()) << "of half a block";
  keep.set_cells(6);
  EXPECT_FALSE(at(1).handle(all.id(0), keep, all.now()).ok()) << "of more than are shown";
  keep.set_cells(4);
  EXPECT_TRUE(at(1).handle(all.id(2), keep, all.now()).ok());
  EXPECT_EQ(all.lender(1).lent_blocks(), 0u) << "another one asks";
  at(0).keep(shown, 4, all.now(), all.now());
  wire::PrefixKept kept;
  kept.set_shown(shown.id);
  kept.set_contract(5);
  kept.set_cells(4);
  EXPECT_FALSE(at(0).handle(all.id(1), kept, all.now()).ok()) << "of memory that may be written";
  EXPECT_EQ(at(0).take_refused().size(), 1u);
  EXPECT_TRUE(all.events(0).empty());
}

#if defined(KVASIR_MUTANTS)
TEST_F(KeptPrefixes, MutantKeptPrefixFreedIsFound) {
  const ContractRef shown = show();
  const ScopedMutant on(Mutant::kKeptPrefixFreed);
  ASSERT_TRUE(keep(shown, 4));
  EXPECT_NE(free_at_lender(), 6u) << "others would get what is attended";
}
#endif

}  // namespace
}  // namespace kvasir::cluster::test
