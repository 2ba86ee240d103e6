// From logits to tokens, on the simulated machine.
#include "ops/gpu/reference.h"
#include "simt/kernels.h"

namespace kvasir::simt {
namespace {

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
};

ops::gpu::DrawPlace place_of(const ops::reference::Draw& how) {
  ops::gpu::DrawPlace place = {};
  if (how.temperature > 0) {
    place.factor = static_cast<float>(std::min(0x1.71547652b82fep+0 / static_cast<double>(how.temperature),
                                               static_cast<double>(std::numeric_limits<float>::max())));
  }
  place.top_k = static_cast<int32_t>(how.top_k);
  place.top_p = how.top_p;
  place.bits = how.bits;
  return place;
}

Drawn draw(const std::vector<float>& logits, const std::vector<ops::reference::Draw>& how, float scale,
           const ops::reference::Cap& cap, uint64_t seed) {
  const auto count = static_cast<int32_t>(how.size());
  Drawn out = {std::vector<int32_t>(how.size(), -1), logits};
  std::vector<ops::gpu::DrawPlace> places;
  for (const ops::reference::Draw& d : how) places.push_back(place_of(d));
  ops::gpu::DrawArgs args = {};
  args.logits = out.logits.data();
  args.scale = scale;
  args.cap = {cap.limit, cap.factor};
  args.draws = places.data();
  args.tokens = out.tokens.data();
  args.count = count;
  args.vocabulary = static_cast<int32_t>(logits.size()) / count;
  run(args, seed);
  return out;
}

void expect_as_reference(const std::vector<float>& logits, const std::vector<ops::reference::Draw>& how,
                         float scale = 1, float limit = 0) {
  const ops::reference::Cap cap = ops::reference::cap_of(limit);
  const auto vocabulary = static_cast<int64_t>(logits.size() / how.size());
  Drawn want = {{}, logits};
  for (size_t r = 0; r < how.size(); ++r) {
    float* row = want.logits.data() + static_cast<int64_t>(r) * vocabulary;
    ops::reference::finish_logits(scale, cap, vocabulary, row);
    want.tokens.push_back(ops::reference::draw(row, vocabulary, how[r]));
  }
  const Drawn got = draw(logits, how, scale, cap, 1);
  EXPECT_EQ(difference(got.logits, want.logits), "");
  EXPECT_EQ(got.tokens, want.tokens) << "of " << vocabulary;
}

TEST(DrawKernel, TheLargestLogit) {
  Random random(1);
  for (const int vocabulary : {1, 5, 511, 512, 513, 3000}) {
    expect_as_reference(random_values(random, 2 * vocabulary, 5), {{}, {}});
  }
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  expect_as_reference({1, 7, 7, nan, -inf, 0}, {{}});
  expect_as_reference({nan, nan, nan}, {{}});
  expect_as_reference({nan, -inf, -inf}, {{0.7F}});
  expect_as_reference({0, inf, inf, 3}, {{0.7F}});
  expect_as_reference({-0.0F, 0.0F}, {{}});
}

TEST(DrawKernel, LogitsAreScaledAndCapped) {
  Random random(2);
  expect_as_reference(random_values(random, 2 * 700, 90), {{}, {1.0F, 0, 1, random.bits()}}, 0.25F, 30);
}

TEST(DrawKernel, DrawsEqualTheReference) {
  Random random(3);
  for (const int vocabulary : {1, 700}) {
    const std::vector<float> row = random_values(random, vocabulary, 12);
    std::vector<float> logits;
    std::vector<ops::reference::Draw> how;
    for (const float temperature : {0.7F, 1e-30F}) {
      for (const int64_t top_k : {0, 50, 4000}) {
        for (const double top_p : {1.0, 0.8, 1e-9}) {
          how.push_back({temperature, top_k, top_p, random.bits()});
          logits.insert(logits.end(), row.begin(), row.end());
        }
      }
    }
    expect_as_reference(logits, how);
  }
}

// Candidates of equal logits are cut by their ids; both zeros are equal.
TEST(DrawKernel, TiesAreCutById) {
  Random random(4);
  std::vector<float> row(900);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i % 3) - 1;
  for (size_t i = 1; i < row.size(); i += 9) row[i] = -0.0F;
  std::vector<float> logits;
  std::vector<ops::reference::Draw> how;
  for (int i = 0; i < 8; ++i) {
    how.push_back({1.0F, i % 2 == 0 ? 310 + 39 * i : 0, i % 2 == 0 ? 1.0 : 0.4 + 0.06 * i, random.bits()});
    logits.insert(logits.end(), row.begin(), row.end());
  }
  expect_as_reference(logits, how);
}

}  // namespace
}  // namespace kvasir::simt
