// A large tree of JSON is destroyed without memory, which the library's own destructor needs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "memory/failing_new.h"
#include "server/json_fields.h"

namespace kvasir::test {
namespace {

using nlohmann::json;

// Wide, deep, with texts, and both within each other.
std::string large_object() {
  std::string text = R"({"tokens":[)";
  for (int i = 0; i < 20'000; ++i) text += "7,";
  text += R"(7],"messages":[)";
  for (int i = 0; i < 5'000; ++i)
    text += R"({"content":["a text that is longer than a pointer or two",{}]},)";
  return text + R"({}],"deep":[[[[[[{"a":{"b":[[],[null,1.5,true]]}}]]]]]]})";
}

TEST(JsonMemory, ATreeIsDestroyedWithoutMemory) {
  auto parsed = parse_json_object(large_object());
  ASSERT_TRUE(std::holds_alternative<JsonTree>(parsed));
  std::optional<JsonTree> tree(std::get<JsonTree>(std::move(parsed)));
  const Enlisted enlisted;
  fail_allocations(1, UINT64_MAX / 2, Counted::kEnlistedThreads);
  tree.reset();
  EXPECT_FALSE(fail_no_more().any());
}

// This test can fail: the library's destructor asks for memory.
TEST(JsonMemory, TheLibraryNeedsSome) {
  std::optional<json> tree(json::parse(large_object()));
  const Enlisted enlisted;
  fail_allocations(1, UINT64_MAX / 2, Counted::kEnlistedThreads);
  tree.reset();
  EXPECT_GT(fail_no_more().passed_over, 0u);
}

TEST(JsonMemory, WhatIsNoObjectIsRefusedAndDestroyedLikewise) {
  std::string text = "[";
  for (int i = 0; i < 20'000; ++i) text += "7,";
  EXPECT_TRUE(std::holds_alternative<ApiError>(parse_json_object(text + "7]")));
}

}  // namespace
}  // namespace kvasir::test
