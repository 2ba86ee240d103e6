// The table of fields: what is made of it says what parsing does, and docs/api.md is not stale.
#include "server/handlers/request_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "server/handlers/openai.h"

namespace kvasir {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json body_of(ApiKind kind) {
  const json messages = json::array({{{"role", "user"}, {"content", "a"}}});
  switch (kind) {
    case ApiKind::kChat:
      return {{"messages", messages}, {"logprobs", true}};
    case ApiKind::kCompletion:
      return {{"prompt", "a"}, {"echo", true}};
    case ApiKind::kMessages:
      return {{"messages", messages}, {"max_tokens", 5}};
    case ApiKind::kCountTokens:
      return {{"messages", messages}};
    case ApiKind::kResponses:
      return {{"input", "a"}};
    case ApiKind::kTokenize:
      return {{"prompt", "a"}};
    case ApiKind::kDetokenize:
      return {{"tokens", {1}}};
    case ApiKind::kEmbeddings:
      return {{"input", "a"}};
  }
  return {};
}

std::optional<ApiError> error_of(ApiKind kind, std::string_view field, const json& value) {
  json body = body_of(kind);
  body[std::string(field)] = value;
  JsonFields fields(body);
  ApiRequest request;
  read_request_fields(fields, body, kind, request);
  return fields.error();
}

const std::vector<ApiKind> kKinds = [] {
  std::vector<ApiKind> kinds;
  for (const ApiKindInfo& info : api_kinds()) kinds.push_back(info.kind);
  return kinds;
}();

TEST(RequestFields, AFieldIsOfASetOfEndpoints) {
  RequestField f;
  f.where = where_of(ApiKind::kChat) | where_of(ApiKind::kDetokenize);
  EXPECT_TRUE(f.is_of(ApiKind::kChat) && f.is_of(ApiKind::kDetokenize));
  EXPECT_FALSE(f.is_of(ApiKind::kCompletion) || f.is_of(ApiKind::kTokenize));
  f.where = RequestField::Where::kAnswers;
  EXPECT_TRUE(f.is_of(ApiKind::kCompletion) && f.is_of(ApiKind::kResponses));
  EXPECT_FALSE(f.is_of(ApiKind::kCountTokens) || f.is_of(ApiKind::kTokenize));
  for (const ApiKind kind : kKinds) {
    EXPECT_FALSE(error_of(kind, "nothing_of_this_name", 1)) << "the body itself is accepted";
    EXPECT_TRUE(error_of(kind, "model", 1));
  }
}

TEST(RequestFields, NumbersTakeTheirRangeAndNothingBeyond) {
  for (const RequestField& f : request_fields()) {
    const bool whole = std::holds_alternative<RequestField::SetInteger>(f.set);
    if (!whole && !std::holds_alternative<RequestField::SetNumber>(f.set)) continue;
    for (const ApiKind kind : kKinds) {
      if (!f.is_of(kind)) continue;
      const auto as_json = [&](double v) { return whole ? json(static_cast<int64_t>(v)) : json(v); };
      const auto refused = [&](const json& value) {
        const auto e = error_of(kind, f.name, value);
        EXPECT_TRUE(e) << f.name << " " << value;
        if (!e) return;
        EXPECT_EQ(e->status, 400);
        EXPECT_EQ(e->param, f.name);
        EXPECT_THAT(e->message, HasSubstr(fmt::format("{}", f.range.high))) << "the range is named";
      };
      EXPECT_FALSE(error_of(kind, f.name, as_json(f.range.high))) << f.name;
      const double least = f.range.open_low ? (f.range.low + f.range.high) / 1024 : f.range.low;
      EXPECT_FALSE(error_of(kind, f.name, as_json(least))) << f.name;
      refused(as_json(f.range.high + 1));
      refused(as_json(f.range.open_low ? f.range.low : f.range.low - 1));
      refused("1");
      refused(true);
      if (whole) refused(f.range.low + 0.5);
    }
  }
}

TEST(RequestFields, EachHasATextAndANameOfItsOwn) {
  for (const ApiKind kind : kKinds) {
    std::set<std::string_view> names;
    for (const RequestField& f : request_fields()) {
      if (!f.is_of(kind)) continue;
      EXPECT_TRUE(names.insert(f.name).second) << f.name;
      EXPECT_FALSE(f.text.empty()) << f.name;
      EXPECT_EQ(f.use == RequestField::Use::kRefused, f.neutral != nullptr) << f.name;
      EXPECT_EQ(f.use == RequestField::Use::kRead, f.set.index() != 0) << f.name;
    }
  }
}

TEST(RequestFields, ARefusalHasItsReason) {
  for (const RequestField& f : request_fields()) {
    if (f.use != RequestField::Use::kRefused) continue;
    for (const ApiKind kind : kKinds) {
      if (!f.is_of(kind)) continue;
      const auto e = error_of(kind, f.name, json{{"some", "thing"}});
      ASSERT_TRUE(e) << f.name;
      EXPECT_EQ(e->param, f.name);
      EXPECT_EQ(e->code, "unsupported_parameter");
      EXPECT_THAT(e->message, HasSubstr(std::string(f.text)));
      if (f.otherwise.empty()) continue;
      const std::string_view first = f.otherwise.substr(0, f.otherwise.find(", "));
      EXPECT_FALSE(error_of(kind, f.name, json::parse(first))) << f.name << " " << first;
    }
  }
}

TEST(RequestFields, OpenApiHasThemAll) {
  const json root = json::parse(openapi_text("1", all_endpoints()));
  EXPECT_EQ(root["openapi"], "3.1.0");
  for (const ApiKindInfo& info : api_kinds()) {
    const json& properties = root["components"]["schemas"][std::string(info.schema)]["properties"];
    size_t count = 0;
    for (const RequestField& f : request_fields()) {
      if (f.use != RequestField::Use::kRead || !f.is_of(info.kind)) continue;
      ++count;
      EXPECT_TRUE(properties.contains(std::string(f.name))) << f.name;
    }
    EXPECT_EQ(properties.size(), count);
    EXPECT_EQ(root["paths"][std::string(info.path)]["post"]["summary"], info.summary);
  }
  const json& properties = root["components"]["schemas"]["CompletionRequest"]["properties"];
  EXPECT_EQ(properties["top_p"]["exclusiveMinimum"], 0.0);
  EXPECT_EQ(properties["top_p"]["maximum"], 1.0);
  EXPECT_EQ(properties["n"]["type"], json({"integer", "null"})) << "as it may be left out";
  EXPECT_EQ(properties["prompt"]["anyOf"].size(), 2U);
  // Whatever is referred to is there.
  const json& schemas = root["components"]["schemas"];
  for (const auto& [path, methods] : root["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      for (const auto& [status, answer] : operation["responses"].items()) {
        for (const auto& [type, content] : answer["content"].items()) {
          if (!content.contains("schema") || !content["schema"].contains("$ref")) continue;
          const std::string to = content["schema"]["$ref"];
          EXPECT_TRUE(schemas.contains(to.substr(to.rfind('/') + 1))) << path << " " << status;
        }
      }
    }
  }
  EXPECT_EQ(root["components"]["schemas"]["CompletionRequest"]["required"], json::array({"prompt"}));
  EXPECT_TRUE(root["paths"].contains("/health"));
}

// KVASIR_WRITE_DOCS=1 writes it.
TEST(RequestFields, TheDocumentationIsMadeOfTheTable) {
  const std::string path = std::string(KVASIR_SOURCE_DIR) + "/docs/api.md";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  std::string doc = text.str();
  const std::string begin = "<!-- fields: made of the table by KVASIR_WRITE_DOCS=1 server_test -->\n";
  const size_t from = doc.find(begin), to = doc.find("<!-- end of the fields -->");
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos && from < to);
  const size_t first = from + begin.size();
  const std::string table = "\n" + request_fields_markdown() + "\n";
  if (std::getenv("KVASIR_WRITE_DOCS") != nullptr) {
    doc.replace(first, to - first, table);
    std::ofstream(path) << doc;
    return;
  }
  EXPECT_EQ(doc.substr(first, to - first), table)
      << "docs/api.md is stale: run server_test with KVASIR_WRITE_DOCS=1 and --gtest_filter=RequestFields.*";
}

}  // namespace
}  // namespace kvasir
