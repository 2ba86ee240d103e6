// Which sequence lends, by an index and by looking at all.
#include "sched/mechanisms/embed.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "fakes/views.h"

namespace kvasir::test {
namespace {

// a_j - (u_j + s_o + b) >= s_p + s_o of all running sequences, one after the other.
Host scanned_host(const View& view, const PlanBuilder& builder, const SeqView& guest, uint32_t cells,
                  uint32_t steps) {
  Host best;
  uint32_t least = UINT32_MAX;
  for (const SeqView& host : view.running) {
    const uint32_t promised = builder.promised(host);
    if (host.id == guest.id || builder.preempted(host.id) || promised >= least) continue;
    if (promised < cells || host.promised(Tier::kDevice) < cells) continue;
    const uint32_t left = (builder.blocks(host) + (promised - cells) / kViewGroups) * kViewBlock;
    bool fits = left > host.known_tokens && left - host.known_tokens >= steps;
    for (const Claim& claim : view.claims) {
      if (claim.debtor != host.id || claim.due_tokens == 0 || claim.called) continue;
      for (const SeqView& creditor : view.running) {
        if (creditor.id == claim.creditor && creditor.known_tokens + steps > claim.due_tokens) fits = false;
      }
    }
    if (!fits) continue;
    least = promised;
    best = {&host, left};
  }
  return best;
}

View random_view(Random& random) {
  View view = view_with_budget(512, 0);
  const uint64_t n = 2 + random.below(20);
  for (uint64_t id = 1; id <= n; ++id) {
    const auto known = static_cast<uint32_t>(random.between(21, 60));
    SeqView& s = view.running.emplace_back(random.below(5) == 0 ? running_seq(id, 60, 60, 16)
                                                                : decoding_seq(id, 20, known));
    s.promised_cells[0] = random.below(4) == 0 ? 0 : static_cast<uint32_t>(random.between(0, 24));
    view.device.promised[0] += s.promised_cells[0];
  }
  view.device.spare_slabs = view.device.promised[0] + 8;
  for (const SeqView& s : view.running) {
    if (random.below(3) > 0) continue;
    const SeqView& other = view.running[random.below(n)];
    const auto due = other.known_tokens + static_cast<uint32_t>(random.between(1, 100));
    view.claims.push_back({s.id, random.below(8) == 0 ? SeqId{1000} : other.id, 2,
                           random.below(4) == 0 ? 0 : due, Tier::kDevice, random.below(8) == 0});
  }
  return view;
}

// Something that a plan does to one that has no rows yet.
void change(PlanBuilder& builder, const SeqView& seq, Random& random) {
  if (builder.has_rows(seq.id) || builder.preempted(seq.id)) return;
  switch (random.below(3)) {
    case 0:
      builder.promise_own(seq, 2);
      break;
    case 1:
      if (seq.decoding()) builder.decode(seq);
      break;
    default:
      if (builder.can_stop(seq)) builder.preempt_and_drop(seq);
  }
}

TEST(Hosts, AreThoseThatAScanFinds) {
  Random random(5);
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    const View view = random_view(random);
    PlanBuilder builder(view);
    Hosts hosts(view, builder);
    for (int i = 0; i < 20; ++i) {
      const SeqView& guest = view.running[random.below(view.running.size())];
      const auto cells = static_cast<uint32_t>(random.between(1, 12));
      const auto rest = static_cast<uint32_t>(random.between(1, 80));
      const Host host = hosts.find(guest, cells, rest, 8);
      const Host scanned = scanned_host(view, builder, guest, cells, rest + 8);
      ASSERT_EQ(host.seq, scanned.seq);
      ASSERT_EQ(host.due_tokens, scanned.due_tokens);
      if (host.seq != nullptr && !builder.preempted(guest.id)) {
        ++found;
        ASSERT_TRUE(builder.lend(*host.seq, guest, cells, host.due_tokens));
        hosts.update(*host.seq);
        hosts.update(guest);
      }
      const SeqView& other = view.running[random.below(view.running.size())];
      change(builder, other, random);
      hosts.update(other);
    }
  }
  EXPECT_GT(found, 5000);
}

}  // namespace
}  // namespace kvasir::test
