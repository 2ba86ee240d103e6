// The shadow executor with X beside K and V, and with rows that pass some of the layers: what is
// right gives the model's output, and whatever is mixed up, stale or missing changes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "fakes/fake_link.h"
#include "fakes/shadow_executor.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kBlock = 16, kLayers = 5, kGroup = 2, kGroups = 3;  // the last group is shorter
constexpr uint32_t kTokens = 40;                                       // two blocks and a half
constexpr uint64_t kSeeds = 4;  // a wrong history gives the right token for all of them once in 2^24

// A sequence of kTokens known tokens in blocks of kBlock; its cells, in every form, in a device's memory.
class World {
 public:
  explicit World(int depth = 1, Link* link = nullptr, VirtualClock* clock = nullptr)
      : executor(geometry, device, depth, clock ? *clock : clock_, link) {
    for (uint32_t p = 0; p < kTokens; ++p) tokens.push_back(static_cast<Token>(p * 7 % 50));
    const uint64_t kv = geometry.cell_bytes(Form::kKv);
    for (uint32_t cell = 0; cell < blocks() * kGroups; ++cell) {
      // Apart, so that it does not matter how the planes of a frame lie.
      const uint64_t base = take(2 * kv);
      table.push_back({base, base + kv});
      x.push_back(take(geometry.cell_bytes(Form::kX)));
    }
  }

  static uint32_t blocks() { return (kTokens + kBlock - 1) / kBlock; }
  static uint32_t cell(uint32_t block, uint32_t group) { return block * kGroups + group; }
  uint64_t take(uint64_t bytes) { return std::exchange(used_, used_ + bytes); }
  // The layer's piece of form X of a block.
  uint64_t x_piece(uint32_t block, uint32_t layer) const {
    return x[cell(block, layer / kGroup)] + layer % kGroup * geometry.piece_bytes(Form::kX);
  }

  StepSlice& add(Step& step, Interval rows, RowKind kind, uint64_t seq = 1) const {
    step.groups = kGroups;
    StepSlice& s = step.slices.emplace_back();
    s.seq = SeqId{seq};
    s.tokens = rows;
    s.kind = kind;
    s.blocks = geometry.blocks_for(rows.end);
    s.table = std::make_shared<BlockTable>(table);
    s.first_token = step.row_count();
    step.token_ids.insert(step.token_ids.end(), tokens.begin() + rows.begin, tokens.begin() + rows.end);
    return s;
  }
  // The last row, which samples.
  StepSlice& add_decode(Step& step, uint64_t seed, uint64_t seq = 1) const {
    StepSlice& s = add(step, {kTokens - 1, kTokens}, RowKind::kDecode, seq);
    s.samples = true;
    s.sampling.seed = seed;
    return s;
  }
  // The rows of the step's slice leave X of all groups.
  void add_x_writes(Step& step, uint32_t slice) const {
    const Interval rows = step.slices[slice].tokens;
    for (uint32_t g = 0; g < kGroups; ++g) {
      for (uint32_t b = rows.begin / kBlock; b * kBlock < rows.end; ++b) {
        step.x_writes.push_back({g, slice, b, x[cell(b, g)]});
      }
    }
  }
  void add_projections(Step& step, uint32_t slice, uint32_t block) const {
    for (uint32_t l = 0; l < kLayers; ++l) {
      const KvPlanes to = step.planes(geometry, step.slices[slice], block, l);
      step.projections.push_back({l, slice, block * kBlock, kBlock, x_piece(block, l), to});
    }
  }

  // All rows but the last, in steps that end at the cuts; every form is left behind.
  void prefill(std::vector<uint32_t> cuts = {}) {
    cuts.push_back(kTokens - 1);
    uint32_t begin = 0;
    for (uint32_t end : cuts) {
      Step step;
      add(step, {begin, end}, RowKind::kPrefill);
      add_x_writes(step, 0);
      run(std::move(step));
      begin = end;
    }
  }
  StepResult run(Step step) {
    step.index_by_layer();
    executor.submit(std::move(step));
    return executor.wait();
  }
  // What the last row samples, by seed, in steps with what `extra` adds before it and `after` behind.
  std::vector<Token> outputs(const std::function<void(Step&)>& before = {},
                             const std::function<void(Step&)>& after = {}) {
    std::vector<Token> out;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      Step step;
      if (before) before(step);
      add_decode(step, seed);
      if (after) after(step);
      const StepResult result = run(std::move(step));
      EXPECT_EQ(result.sampled.size(), 1u);
      out.push_back(result.sampled.at(0).token);
    }
    return out;
  }
  std::vector<Token> right() const {
    std::vector<Token> out;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      out.push_back(shadow_output(kLayers, tokens, seed, 1, {}).at(0));
    }
    return out;
  }
  // As if the K and V of a block in a group were gone.
  void lose(uint32_t block, uint32_t group) {
    const KvPlanes& planes = table[cell(block, group)];
    const uint64_t bytes = 2 * geometry.cell_bytes(Form::kKv);
    std::fill_n(device.begin() + static_cast<int64_t>(planes.k), bytes, std::byte{0x55});
  }
  void flip(uint64_t at) { device[at] ^= std::byte{0x10}; }

  const CacheGeometry geometry{kBlock, kLayers, kGroup, 8, 12};
  std::vector<std::byte> device = std::vector<std::byte>(256 * 1024);
  std::vector<Token> tokens;
  BlockTable table;
  std::vector<uint64_t> x;  // by cell

 private:
  VirtualClock clock_;
  uint64_t used_ = 0;

 public:
  ShadowExecutor executor;
};

TEST(ShadowForms, XIsWrittenBesideKAndVAndChangesNothing) {
  for (const std::vector<uint32_t>& cuts : {std::vector<uint32_t>{}, {1}, {16}, {7, 17, 38}}) {
    World w;
    w.prefill(cuts);
    EXPECT_EQ(w.outputs(), w.right());
    World whole;
    whole.prefill();
    for (uint32_t c = 0; c < 2 * kGroups; ++c) {
      const auto same = [&](uint64_t at, uint64_t bytes) {
        const auto begin = static_cast<int64_t>(at);
        return std::equal(w.device.begin() + begin, w.device.begin() + begin + static_cast<int64_t>(bytes),
                          whole.device.begin() + begin);
      };
      EXPECT_TRUE(same(w.x[c], w.geometry.cell_bytes(Form::kX))) << c;
    }
  }
}

TEST(ShadowForms, LostCellsAreComputedAgainBesideTheRowsThatReadThem) {
  World w;
  w.prefill();
  w.lose(0, 2);
  EXPECT_NE(w.outputs(), w.right());
  const auto again = [&](uint32_t end_layer) {
    return [&w, end_layer](Step& step) { w.add(step, {0, 16}, RowKind::kRestore).end_layer = end_layer; };
  };
  w.lose(0, 2);
  EXPECT_NE(w.outputs(again(4)), w.right()) << "the lost layer is not passed";
  EXPECT_EQ(w.outputs(again(UINT32_MAX)), w.right());
  w.lose(0, 2);
  EXPECT_EQ(w.outputs(again(5)), w.right());
  w.lose(0, 0);
  EXPECT_NE(w.outputs(again(1)), w.right()) << "the second of two lost layers is not passed";
  EXPECT_EQ(w.outputs(again(2)), w.right());
  // Two slices, one of which reads what the other computes.
  for (uint32_t b : {0u, 1u}) w.lose(b, 1);
  EXPECT_EQ(w.outputs([&](Step& step) {
    w.add(step, {0, 16}, RowKind::kRestore).end_layer = 4;
    w.add(step, {16, 32}, RowKind::kRestore).end_layer = 4;
  }),
            w.right());
}

TEST(ShadowForms, RowsThatEndEarlyLeaveTheLayersAfterAlone) {
  World w;
  w.prefill();
  const std::vector<std::byte> before = w.device;
  for (uint32_t b : {0u, 1u}) w.lose(b, 1);
  Step step;
  w.add(step, {0, 32}, RowKind::kRestore).end_layer = 4;
  const StepResult result = w.run(std::move(step));
  EXPECT_TRUE(result.status.ok());
  EXPECT_TRUE(result.sampled.empty());
  EXPECT_TRUE(result.deferred.empty());
  for (uint32_t layer = 2; layer < 4; ++layer) {
    Step probe;
    const StepSlice& s = w.add(probe, {0, 32}, RowKind::kRestore);
    for (uint32_t b : {0u, 1u}) {
      const auto k = static_cast<int64_t>(probe.planes(w.geometry, s, b, layer).k);
      const auto plane = static_cast<int64_t>(w.geometry.layer_plane_bytes());
      EXPECT_TRUE(std::equal(before.begin() + k, before.begin() + k + plane, w.device.begin() + k));
    }
  }
  EXPECT_EQ(w.outputs(), w.right());
}

// K and V of block 0 are lost in every layer and projected from X.
class ShadowProjection : public testing::Test {
 protected:
  ShadowProjection() {
    w_.prefill();
    lose();
  }
  void lose() {
    for (uint32_t g = 0; g < kGroups; ++g) w_.lose(0, g);
  }
  std::vector<Token> outputs_with(const std::function<void(std::vector<KvProjection>&)>& change) {
    lose();
    return w_.outputs({}, [&](Step& step) {
      w_.add_projections(step, 0, 0);
      change(step.projections);
    });
  }
  World w_;
};

TEST_F(ShadowProjection, KAndVAreTheOriginals) {
  EXPECT_NE(w_.outputs(), w_.right());
  EXPECT_EQ(outputs_with([](auto&) {}), w_.right());
  EXPECT_EQ(outputs_with([](auto& list) {
              // In parts.
              for (size_t l = 0; l < kLayers; ++l) {
                KvProjection tail = list[2 * l];
                list[2 * l].tokens = 5;
                tail.first_position += 5;
                tail.tokens -= 5;
                list.insert(list.begin() + static_cast<int64_t>(2 * l) + 1, tail);
              }
            }),
            w_.right());
}

TEST_F(ShadowProjection, WhateverIsMixedUpChangesTheOutput) {
  using List = std::vector<KvProjection>;
  const std::pair<const char*, std::function<void(List&)>> faults[] = {
      {"another layer's X", [](List& l) { std::swap(l[1].x, l[2].x); }},
      {"another group's X", [](List& l) { std::swap(l[0].x, l[2].x); }},
      {"another block's X", [&](List& l) { l[4].x = w_.x_piece(1, 4); }},
      {"K and V have changed places", [](List& l) { std::swap(l[3].to.k, l[3].to.v); }},
      {"another layer's planes", [](List& l) { std::swap(l[1].to, l[2].to); }},
      {"other positions", [](List& l) { l[2].first_position += kBlock; }},
      {"a position is left out", [](List& l) { l[3].tokens -= 1; }},
      {"a layer is left out", [](List& l) { l.erase(l.begin() + 4); }},
  };
  for (const auto& [what, fault] : faults) EXPECT_NE(outputs_with(fault), w_.right()) << what;
}

TEST_F(ShadowProjection, EveryByteOfXCounts) {
  for (uint32_t layer : {0u, 3u, 4u}) {
    for (uint64_t byte = 0; byte < w_.geometry.piece_bytes(Form::kX); ++byte) {
      w_.flip(w_.x_piece(0, layer) + byte);
      EXPECT_NE(outputs_with([](auto&) {}), w_.right()) << layer << ' ' << byte;
      w_.flip(w_.x_piece(0, layer) + byte);
    }
  }
}

// One pair of planes for all layers, as in the stage ring.
TEST_F(ShadowProjection, PlanesMayServeEveryLayerInTurn) {
  const uint64_t plane = w_.geometry.layer_plane_bytes();
  const uint64_t ring = w_.take(2 * plane);
  EXPECT_EQ(w_.outputs({},
                       [&](Step& step) {
                         StepSlice& s = step.slices[0];
                         step.add_staged(s, {0, 1}, kLayers);
                         for (uint32_t l = 0; l < kLayers; ++l) {
                           step.staged_planes(s, 0, l) = {ring, ring + plane};
                         }
                         w_.add_projections(step, 0, 0);
                       }),
            w_.right());
}

TEST(ShadowForms, WhatIsHandedOutTooEarlyIsSpoiltAndWhatIsRewrittenIsNot) {
  const auto first_with = [](RowKind kind, uint32_t end, bool forms) {
    World w(2);
    w.prefill();
    for (uint32_t g = 0; forms && g < kGroups; ++g) w.lose(0, g);
    Step first, second;
    w.add_decode(first, 3);
    if (forms) w.add_projections(first, 0, 0);
    w.add(second, {0, end}, kind);
    if (forms) w.add_x_writes(second, 0);
    first.index_by_layer();
    second.index_by_layer();
    w.executor.submit(std::move(first));
    w.executor.submit(std::move(second));
    const Token sampled = w.executor.wait().sampled.at(0).token;
    w.executor.wait();
    EXPECT_EQ(w.outputs(), w.right()) << "when the rows have run";
    return sampled == w.right()[3];
  };
  EXPECT_TRUE(first_with(RowKind::kRestore, 32, false)) << "the same bytes are written again";
  EXPECT_FALSE(first_with(RowKind::kPrefill, 32, false));
  EXPECT_FALSE(first_with(RowKind::kRestore, 16, true)) << "X is new, and an older step reads its place";
}

TEST(ShadowForms, OneDeferredSliceTakesTheOthersOfItsSequenceAlong) {
  VirtualClock clock;
  FakeLink link(clock);
  World w(1, &link, &clock);
  w.prefill();
  w.lose(0, 1);
  link.fail(TransferId{1});
  Step step;
  w.add(step, {0, 16}, RowKind::kRestore, 7);
  w.add_decode(step, 0, 8).kind = RowKind::kRestore;
  w.add_decode(step, 0, 7);
  w.add_x_writes(step, 0);
  Transfer t;
  t.id = TransferId{1};
  step.transfers.push_back({kStepBegins, std::move(t)});
  step.waits = {{3, 0, TransferId{1}}};
  const std::vector<std::byte> x_before = w.device;
  const StepResult result = w.run(std::move(step));
  EXPECT_EQ(result.deferred, std::vector<SeqId>{SeqId{7}});
  ASSERT_EQ(result.sampled.size(), 1u);
  EXPECT_EQ(result.sampled[0].seq, SeqId{8});
  // What it was to write from there on is spoilt, and what it wrote before is there.
  const auto piece = [&](uint32_t layer) { return static_cast<int64_t>(w.x_piece(0, layer)); };
  const auto bytes = static_cast<int64_t>(w.geometry.piece_bytes(Form::kX));
  const auto same = [&](uint32_t layer) {
    return std::equal(x_before.begin() + piece(layer), x_before.begin() + piece(layer) + bytes,
                      w.device.begin() + piece(layer));
  };
  EXPECT_TRUE(same(2));
  EXPECT_FALSE(same(3));
}

TEST(ShadowFormsDeathTest, StepsMustKeepTheirContract) {
  World w;
  Step early;
  w.add_decode(early, 0).end_layer = 4;
  EXPECT_DEATH(w.executor.submit(early), "passes 4 layers");
  Step half;
  w.add(half, {0, 16}, RowKind::kRestore).end_layer = 1;
  half.x_writes.push_back({0, 0, 0, w.x[0]});
  half.index_by_layer();
  EXPECT_DEATH(w.executor.submit(half), "x of group 0");
  Step unindexed;
  w.add_decode(unindexed, 0);
  w.add_projections(unindexed, 0, 0);
  EXPECT_DEATH(w.executor.submit(unindexed), "not indexed");
}

}  // namespace
}  // namespace kvasir::test
