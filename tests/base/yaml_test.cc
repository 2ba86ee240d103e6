// The strict reader of YAML: what it makes of texts, and what it refuses, which YAML may allow.
#include "base/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace kvasir {
namespace {

using Kind = YamlNode::Kind;
using ::testing::HasSubstr;
using ::testing::StartsWith;

YamlNode parsed(const std::string& text) {
  Result<YamlNode> root = parse_yaml(text, "f");
  EXPECT_TRUE(root.ok()) << root.status().message();
  return root.ok() ? std::move(root).value() : YamlNode();
}

std::string refusal(const std::string& text) {
  const Result<YamlNode> root = parse_yaml(text, "f");
  EXPECT_FALSE(root.ok()) << text;
  if (root.ok()) return "";
  EXPECT_EQ(root.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(root.status().message().find('\n'), std::string::npos);
  return root.status().message();
}

TEST(Yaml, KeepsTextsAsTheyAreWrittenWithTheirPlaces) {
  const YamlNode root = parsed("# a comment\nport: 8000\nname: 'on'\nkeys:\n  - a\n  - \"b: c\"\nnone:\n");
  ASSERT_EQ(root.kind, Kind::kMap);
  ASSERT_EQ(root.items.size(), 4u);
  const YamlNode& port = *root.find("port");
  EXPECT_EQ(port.text, "8000");
  EXPECT_FALSE(port.quoted);
  EXPECT_EQ(port.name_at.line, 2);
  EXPECT_EQ(port.name_at.column, 1);
  EXPECT_EQ(port.at.column, 7);
  EXPECT_TRUE(root.find("name")->quoted);
  const YamlNode& keys = *root.find("keys");
  ASSERT_EQ(keys.kind, Kind::kList);
  ASSERT_EQ(keys.items.size(), 2u);
  EXPECT_EQ(keys.items[1].text, "b: c");
  EXPECT_EQ(keys.items[1].at.line, 6);
  EXPECT_EQ(keys.items[1].at.column, 5);
  EXPECT_EQ(root.find("none")->kind, Kind::kNone);
  EXPECT_EQ(root.find("other"), nullptr);
  EXPECT_EQ(keys.find("a"), nullptr) << "a list has no names";
}

TEST(Yaml, NothingIsNoError) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "\xef\xbb\xbf"}) {
    EXPECT_EQ(parsed(text).kind, Kind::kNone) << text;
  }
}

TEST(Yaml, LinesOfTextEndWhereTheyEnd) {
  EXPECT_EQ(parsed("a: |\n  x\n  y\n").find("a")->text, "x\ny\n");
  EXPECT_EQ(parsed("a: |-\n  x").find("a")->text, "x");
  EXPECT_EQ(parsed("a: >\n  x\n  y\n\n").find("a")->text, "x y\n");
  EXPECT_EQ(parsed("a: x\n  y").find("a")->text, "x y");
  EXPECT_EQ(parsed("a: 'x\n  y'").find("a")->text, "x y");
}

TEST(Yaml, FlowStylesAreJson) {
  const YamlNode root = parsed(R"({"a": {"b": [1, true, "x"]}, "ü": null})");
  const YamlNode& list = *root.find("a")->find("b");
  ASSERT_EQ(list.items.size(), 3u);
  EXPECT_EQ(list.items[1].text, "true");
  EXPECT_TRUE(list.items[2].quoted);
  EXPECT_EQ(root.find("ü")->kind, Kind::kNone);
}

TEST(Yaml, WhatIsAmbiguousOrWrongIsRefusedWithItsPlace) {
  EXPECT_EQ(refusal("a: 1\nb: 2\na: 3\n"), "f:3:1: 'a' is there twice; the first is in line 1");
  EXPECT_THAT(refusal("x:\n  - {a: 1, \"a\": 2}\n"), StartsWith("f:2:12: 'a' is there twice"));
  EXPECT_THAT(refusal("a: &x 1\n"), StartsWith("f:1:4: an anchor"));
  EXPECT_THAT(refusal("a: &x [1]\n"), HasSubstr("an anchor"));
  EXPECT_THAT(refusal("a: &x {b: 1}\nc: *x\n"), HasSubstr("an anchor"));
  EXPECT_THAT(refusal("a: *x\n"), StartsWith("f:1:4: "));
  EXPECT_THAT(refusal("a: !!python/object:os.system x\n"), HasSubstr("a tag"));
  EXPECT_THAT(refusal("a: !x [1]\n"), HasSubstr("a tag"));
  EXPECT_THAT(refusal("a: 1\n---\nb: 2\n"), HasSubstr("a second document"));
  EXPECT_THAT(refusal("? [a]\n: 1\n"), HasSubstr("a name of an entry must be a text"));
  EXPECT_THAT(refusal("{[a]: 1}"), HasSubstr("a name of an entry must be a text"));
  EXPECT_THAT(refusal("{a: 1"), StartsWith("f:1:"));
  EXPECT_EQ(refusal("a: 1\nb: 'x\nc: 2\n"), "f:2:4: a quote that is not closed");
  EXPECT_EQ(refusal("a: 1\nb: \"x\nc: 2"), "f:2:4: a quote that is not closed");
  EXPECT_THAT(refusal("a: [1, 2\nb: 3\n"), HasSubstr("no YAML"));
  EXPECT_THAT(refusal("a: 1\n b: 2\n"), StartsWith("f:2:"));
  EXPECT_THAT(refusal("a:\n\tb: 1\n"), StartsWith("f:2:1: a tab in the indentation"));
  EXPECT_THAT(refusal("a:\n  \t- 1\n"), StartsWith("f:2:3: a tab in the indentation"));
  EXPECT_THAT(refusal("a: \xff\n"), StartsWith("f:1:4: a byte that is not UTF-8"));
  EXPECT_THAT(refusal("a: 1\nb: \xed\xa0\x80\n"), StartsWith("f:2:4: a byte that is not UTF-8"));
  EXPECT_THAT(refusal(std::string("a: 1\nb: \0", 9)), StartsWith("f:2:4: the control character 0x00"));
  EXPECT_THAT(refusal("a: \x1b[31m\n"), StartsWith("f:1:4: the control character 0x1b"));
  EXPECT_EQ(parsed("a: 1 \t# a tab elsewhere\n\t\n").items.size(), 1u);
}

TEST(Yaml, AnAliasBombIsNeverBuilt) {
  std::string bomb = "a0: &a0 [x, x]\n";
  for (int i = 1; i < 40; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) + ", *a" +
            std::to_string(i - 1) + "]\n";
  }
  EXPECT_THAT(refusal(bomb), StartsWith("f:1:"));
}

TEST(Yaml, DepthAndSizeAreBounded) {
  const std::string open(kMaxYamlDepth, '['), close(kMaxYamlDepth, ']');
  parsed(open + close);
  EXPECT_THAT(refusal("[" + open + close + "]"), HasSubstr("in each other"));
  EXPECT_THAT(refusal(std::string(kMaxYamlBytes, '[')), StartsWith("f:1:"));
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += std::string(static_cast<size_t>(i % 100), ' ') + "- \n";
  (void)parse_yaml(deep, "f");
  const std::string comment = "# " + std::string(kMaxYamlBytes, 'x');
  EXPECT_EQ(parsed(comment.substr(0, kMaxYamlBytes)).kind, Kind::kNone);
  EXPECT_THAT(refusal(comment), HasSubstr("more than 1048576 bytes"));
}

TEST(Yaml, AStrangeNameIsShownInOneLineOfAscii) {
  const std::string name = "\"a\\nb\\e" + std::string(500, 'x') + "\"";
  const std::string line = refusal("{" + name + ": 1, " + name + ": 2}");
  EXPECT_THAT(line, HasSubstr("'a\\x0ab\\x1bxxx"));
  EXPECT_LT(line.size(), 200u);
}

TEST(Yaml, AFileThatCannotBeRead) {
  EXPECT_EQ(read_yaml("/nonexistent/f").status().code(), ErrorCode::kNotFound);
  EXPECT_THAT(read_yaml("/nonexistent/f").status().message(), HasSubstr("No such file"));
  EXPECT_EQ(read_yaml("/").status().code(), ErrorCode::kNotFound);
  EXPECT_THAT(read_yaml("/dev/zero").status().message(), HasSubstr("more than 1048576 bytes"));
}

TEST(Yaml, AFileIsReadWhole) {
  const std::string path = testing::TempDir() + "kvasir_yaml_test.yaml";
  std::ofstream(path) << "a: 1\nb: [2, 3]\n";
  const Result<YamlNode> root = read_yaml(path);
  std::remove(path.c_str());
  ASSERT_TRUE(root.ok()) << root.status().message();
  EXPECT_EQ(root.value().find("b")->items.size(), 2u);
}

}  // namespace
}  // namespace kvasir
