#include "ops/leaf_run.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/attention_tree.h"
#include "ops/cpu/isa.h"

namespace kvasir::ops {
namespace {

TEST(LeafRun, ItsSubtreesAreThoseThatATreeHolds) {
  const Kernels& kernels = kernels_for(detect_isa());
  const std::vector<float> record(static_cast<size_t>(partial_floats(1, 16)), 1.0f);
  for (uint32_t first = 0; first < 20; ++first) {
    for (uint32_t end = first + 1; end < first + 40; ++end) {
      std::vector<float> storage(static_cast<size_t>(AttentionTree::storage_floats(end - first, 1, 16)));
      AttentionTree tree(kernels, 1, 16, storage.data(), end - first, first);
      for (uint32_t leaf = first; leaf < end; ++leaf) tree.push(record.data());
      ASSERT_EQ(subtrees_of({first, end}), tree.peak_count());
      int k = 0;
      for_each_subtree({first, end}, [&](int level, uint32_t leaf) {
        EXPECT_EQ(tree.peak(k).first_leaf, leaf);
        EXPECT_EQ(tree.peak(k).level, level) << first << " " << end;
        ++k;
      });
      ASSERT_EQ(k, tree.peak_count());
    }
  }
  EXPECT_EQ(subtrees_of({3, 3}), 0);
}

}  // namespace
}  // namespace kvasir::ops
