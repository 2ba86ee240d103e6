// Keywords of JSON schemas that an output would not be held to are refused, and only those.
#include "model/grammar/schema_hold.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "model/grammar/grammar_limits.h"

namespace kvasir {
namespace {

using testing::HasSubstr;

Status check(const std::string& schema) {
  OutputGrammar grammar;
  grammar.kind = OutputGrammar::Kind::kJsonSchema;
  grammar.text = schema;
  return check_size(grammar);
}

void refuses(const std::string& schema, const char* words) {
  const Status status = check(schema);
  ASSERT_FALSE(status.ok()) << schema;
  EXPECT_THAT(status.message(), HasSubstr(words)) << schema;
}

void takes(const std::string& schema) {
  EXPECT_TRUE(check(schema).ok()) << schema << ": " << check(schema).message();
}

TEST(SchemaHold, AKeywordBesideOneThatIsFollowedAlone) {
  refuses(
      R"({"type":"object","properties":{"a":{}},"anyOf":[{"properties":{},"minProperties":1},{"type":"null"}]})",
      "'type' is not supported beside 'anyOf'");
  refuses(R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{"type":"integer"}}})",
          "'minimum' is not supported");
  refuses(R"({"enum":[1,2,"x"],"type":"integer"})", "'type' is not supported beside 'enum'");
  refuses(R"({"enum":[1,2],"maximum":1})", "'maximum' is not supported beside 'enum'");
  refuses(R"({"const":1,"enum":[1,2]})", "'enum' is not supported beside 'const'");
  refuses(R"({"items":{"anyOf":[{"type":"string"}],"oneOf":[{"type":"string"}]}})", "'oneOf'");
  takes(R"({"enum":["a","b"],"type":"string","minimum":3,"description":"d","format":"f"})");
  takes(R"({"enum":["a",null],"type":["string","null"]})");
  takes(R"({"const":3.0,"type":"integer"})");
  refuses(R"({"const":3.5,"type":"integer"})", "'type'");
  takes(R"({"type":"object","anyOf":[{"type":"object","properties":{"a":{}}},{"properties":{"b":{}}}]})");
  takes(R"({"type":"object","allOf":[{"$ref":"#/definitions/a"}],"definitions":{"a":{"type":"object"}}})");
  takes(R"({"$ref":"#/$defs/a","title":"t","default":1,"$defs":{"a":{"type":"integer"}}})");
}

TEST(SchemaHold, AKeywordWithoutAType) {
  refuses(R"({"minLength":3})", "'minLength' needs a 'type'");
  refuses(R"({"properties":{"a":{"minimum":3}}})", "'minimum' needs a 'type'");
  refuses(R"({"required":["a"]})", "'required' needs a 'type'");
  refuses(R"({"patternProperties":{"a":{}}})", "'patternProperties' needs a 'type'");
  takes(R"({"type":"string","minimum":3})");  // which is of numbers
  takes(R"({"properties":{"a":{}},"required":["a"],"minLength":3})");
  takes(R"({"items":{"type":"null"},"minItems":3,"minLength":3})");
  takes(R"({"type":"object","propertyNames":{"maxLength":3}})");
  takes("{}");
}

TEST(SchemaHold, KeywordsOfObjectsThatTheLibraryDoesNotBringTogether) {
  refuses(R"({"type":"object","properties":{"a":{}},"required":["b"]})", "'required' has a name");
  refuses(R"({"type":["null","object"],"required":["b"]})", "'required' has a name");
  refuses(R"({"properties":{"a":{}},"patternProperties":{"x":{}}})", "'patternProperties'");
  refuses(R"({"type":"object","patternProperties":{"a":{},"b":{}}})", "one pattern");
  refuses(R"({"type":"object","patternProperties":{"a":{}},"propertyNames":{"maxLength":2}})",
          "'propertyNames'");
  refuses(R"({"properties":{"a":{}},"propertyNames":{"maxLength":2}})", "'propertyNames'");
  refuses(R"({"type":"object","propertyNames":{"maxLength":2},"additionalProperties":false})",
          "'propertyNames'");
  refuses(R"({"type":"object","additionalProperties":true,"minProperties":2})", "'minProperties'");
  refuses(R"({"type":"object","patternProperties":{"a":{}},"minProperties":2})", "'minProperties'");
  takes(R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":1})");
  takes(R"({"properties":{"a":{},"b":{}},"minProperties":2})");
  takes(
      R"({"properties":{"a":{},"b":{}},"required":["a","b"],"additionalProperties":true,"minProperties":2})");
  takes(R"({"type":"object","patternProperties":{"a":{}},"additionalProperties":false})");
}

TEST(SchemaHold, AlternativesThatMayOverlap) {
  refuses(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "may be of two of the schema's 'oneOf'");
  refuses(R"({"oneOf":[{},{"type":"null"}]})", "'oneOf'");
  refuses(R"({"oneOf":[{"enum":[1,2]},{"const":2}]})", "'oneOf'");
  refuses(R"({"oneOf":[{"properties":{"a":{"const":1}}},{"properties":{"a":{"const":2}}}]})", "'oneOf'");
  takes(R"({"oneOf":[{"type":"string"},{"type":["integer","null"]},{"enum":[true]}]})");
  takes(R"({"oneOf":[{"enum":[1,2]},{"const":3}]})");
  // As pydantic writes a discriminated union.
  const auto animal = [](const char* kind) {
    return fmt::format(
        R"({{"type":"object","properties":{{"kind":{{"const":"{}","type":"string"}}}},"required":["kind"]}})",
        kind);
  };
  const std::string pets =
      R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],"discriminator":{"propertyName":"kind",)"
      R"("mapping":{"cat":"#/$defs/cat"}},"$defs":{"cat":)";
  takes(pets + animal("cat") + R"(,"dog":)" + animal("dog") + "}}");
  refuses(pets + animal("cat") + R"(,"dog":)" + animal("cat") + "}}", "'oneOf'");
  std::string many = R"({"oneOf":[{"const":0})";
  for (int i = 1; i < 129; ++i) many += fmt::format(R"(,{{"const":{}}})", i);
  refuses(many + "]}", "more than 128");
}

TEST(SchemaHold, WhatTheWalkRefuses) {
  refuses(R"({"dependencies":{"a":["b"]}})", "'dependencies'");
  refuses(R"({"$id":"x","items":{"$id":"y"}})", "'$id'");
  takes(R"({"type":"array","uniqueItems":false})");
  refuses(R"({"type":"array","uniqueItems":true})", "'uniqueItems'");
  for (const char* pattern : {R"(^\\t$)", R"(a\\cC)", R"(\\x0a)", R"(\\u001f)", R"(a\n)"}) {
    refuses(fmt::format(R"({{"type":"string","pattern":"{}"}})", pattern), "control character");
  }
  takes(R"({"type":"string","pattern":"^[^\\n]*\\d\\x41[\\t ]\\u0041\\\\t$"})");
}

// More ways through the references than can be gone, and references in a ring.
TEST(SchemaHold, InvolvedSchemasAreQuick) {
  std::string defs;
  for (int i = 0; i < 40; ++i) {
    std::string refs;
    for (int j = 0; j < 8; ++j) refs += fmt::format(R"({}{{"$ref":"#/$defs/d{}"}})", j ? "," : "", i + 1);
    defs += fmt::format(R"("d{}":{{"anyOf":[{}]}},)", i, refs);
  }
  refuses(R"({"$ref":"#/$defs/d0","type":"object","$defs":{)" + defs + R"("d40":{"type":"object"}}})",
          "'type'");
  refuses(R"({"oneOf":[{"$ref":"#"},{"$ref":"#/$defs/a"}],"$defs":{"a":{"$ref":"#/$defs/a"}}})", "'oneOf'");
  // Each place would compare 2,000 values with 2,000 others: some are compared, then the schema is refused.
  std::string low, high, places;
  for (int i = 0; i < 2000; ++i) {
    low += fmt::format("{}{}", i ? "," : "", i);
    high += fmt::format("{}{}", i ? "," : "", 5000 + i);
  }
  for (int i = 0; i < 200; ++i) {
    places += fmt::format(R"({}"p{}":{{"oneOf":[{{"$ref":"#/$defs/a"}},{{"$ref":"#/$defs/b"}}]}})",
                          i ? "," : "", i);
  }
  refuses(R"({"properties":{)" + places + R"(},"$defs":{"a":{"enum":[)" + low + R"(]},"b":{"enum":[)" + high +
              "]}}}",
          "'oneOf'");
}

}  // namespace
}  // namespace kvasir
