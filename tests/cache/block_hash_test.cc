// Block hashes keep apart what must not be shared.
#include "cache/blocks/block_hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir {
namespace {

TEST(BlockHash, DependsOnIdSaltParentAndTokens) {
  const BlockHash root = root_hash("id", "salt");
  EXPECT_EQ(root, root_hash("id", "salt"));
  EXPECT_NE(root, root_hash("id", ""));
  EXPECT_NE(root, root_hash("id2", "salt"));
  EXPECT_NE(root_hash("ab", "c"), root_hash("a", "bc")) << "the joint is part of the hash";
  const std::vector<Token> tokens = {1, 2, 3};
  const BlockHash block = block_hash(root, tokens);
  EXPECT_EQ(block, block_hash(root, tokens));
  EXPECT_NE(block, block_hash(block, tokens));
  EXPECT_NE(block, block_hash(root, std::vector<Token>{1, 2, 4}));
  EXPECT_NE(block, block_hash(root, std::vector<Token>{2, 1, 3}));
}

}  // namespace
}  // namespace kvasir
