// What requests say of their output: the fields, and what becomes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "model/grammar/grammar_compiler.h"
#include "server/handlers/openai.h"
#include "server/prompt.h"
#include "server/prompt_grammar.h"
#include "server/running_server.h"

namespace kvasir::test {
namespace {

using Kind = OutputGrammar::Kind;
using testing::ElementsAre;
using testing::HasSubstr;

std::variant<ApiRequest, ApiError> parsed(const std::string& fields) {
  return parse_completion_request(R"({"prompt":"a",)" + fields + "}");
}

ApiRequest request(const std::string& fields) {
  auto outcome = parsed(fields);
  const auto* e = std::get_if<ApiError>(&outcome);
  EXPECT_EQ(e, nullptr) << e->message;
  return e ? ApiRequest() : std::get<ApiRequest>(outcome);
}

TEST(GrammarFields, EachBecomesAGrammar) {
  EXPECT_EQ(request(R"("response_format":{"type":"text"})").grammar.kind, Kind::kNone);
  EXPECT_EQ(request(R"("response_format":null,"structured_outputs":null)").grammar.kind, Kind::kNone);
  EXPECT_EQ(request(R"("response_format":{"type":"json_object"})").grammar.kind, Kind::kJson);
  const ApiRequest schema = request(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object"}}})");
  EXPECT_EQ(schema.grammar, (OutputGrammar{Kind::kJsonSchema, R"({"type":"object"})"}));
  EXPECT_EQ(schema.grammar_field, "response_format.json_schema.schema");
  const OutputGrammar regex{Kind::kRegex, "a+"}, grammar{Kind::kGrammar, "root ::= \"a\""};
  EXPECT_EQ(request(R"("structured_outputs":{"regex":"a+","json":null})").grammar, regex);
  EXPECT_EQ(request(R"("guided_regex":"a+")").grammar, regex);
  EXPECT_EQ(request(R"("structured_outputs":{"grammar":"root ::= \"a\""})").grammar, grammar);
  EXPECT_EQ(request(R"("guided_grammar":"root ::= \"a\"")").grammar, grammar);
  EXPECT_THAT(request(R"("structured_outputs":{"choice":["a","b"]})").grammar.choices, ElementsAre("a", "b"));
  EXPECT_THAT(request(R"("guided_choice":["a","b"])").grammar.choices, ElementsAre("a", "b"));
  EXPECT_EQ(request(R"("structured_outputs":{"json":"{}"})").grammar,
            (OutputGrammar{Kind::kJsonSchema, "{}"}));
}

TEST(GrammarFields, TheOrderOfASchemaIsKept) {
  const std::string schema = R"({"type":"object","properties":{"z":{},"a":{},"m":{}}})";
  EXPECT_EQ(request(R"("guided_json":)" + schema).grammar.text, schema);
  EXPECT_EQ(request(R"("structured_outputs":{"json":)" + schema + "}").grammar.text, schema);
  EXPECT_EQ(request(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" +
                    schema + "}}")
                .grammar.text,
            schema);
}

// Only the schema's own text is read again, and only one that the limit lets pass: the parser that keeps the
// order takes time quadratic in the members.
TEST(GrammarFields, TheOrderCostsNoMoreThanTheSchema) {
  std::string many = "{ ";
  for (int i = 0; i < 20'000; ++i) many += fmt::format("{}\"{}\":0", i == 0 ? "" : ",", i);
  many += "}";
  const std::string schema = R"({"z":{},"a":{}})";
  EXPECT_EQ(request(R"("a":)" + many + R"(,"guided_json":)" + schema).grammar.text, schema);
  EXPECT_EQ(request(R"("guided_json":)" + many).grammar.text, many) << "as it came: it is refused later";
  EXPECT_EQ(request(R"("guided_json":{"a":1},"guided_jso\u006e":{"b":1,"a":2})").grammar.text, R"({"a":1})");
}

TEST(GrammarFields, AWrongOneIsNamed) {
  const auto refused = [](const std::string& fields, const std::string& param) {
    const auto outcome = parsed(fields);
    const auto* e = std::get_if<ApiError>(&outcome);
    ASSERT_NE(e, nullptr) << fields;
    EXPECT_EQ(e->status, 400);
    EXPECT_EQ(e->param, param) << e->message;
    EXPECT_THAT(e->message, HasSubstr("'" + param + "'"));
  };
  refused(R"("response_format":"text")", "response_format");
  refused(R"("response_format":{"type":"xml"})", "response_format");
  refused(R"("response_format":{"type":"json_schema"})", "response_format.json_schema");
  refused(R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
          "response_format.json_schema.schema");
  refused(R"("response_format":{"type":"json_schema","json_schema":{"name":1,"schema":{}}})",
          "response_format.json_schema.name");
  refused(R"("response_format":{"type":"json_schema","json_schema":{"strict":1,"schema":{}}})",
          "response_format.json_schema.strict");
  refused(R"("structured_outputs":{})", "structured_outputs");
  refused(R"("structured_outputs":[])", "structured_outputs");
  refused(R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs");
  refused(R"("structured_outputs":{"xml":"a"})", "structured_outputs");
  refused(R"("structured_outputs":{"regex":1})", "structured_outputs.regex");
  refused(R"("structured_outputs":{"choice":[1]})", "structured_outputs.choice");
  refused(R"("structured_outputs":{"json":[]})", "structured_outputs.json");
  refused(R"("guided_json":1)", "guided_json");
  refused(R"("guided_choice":"a")", "guided_choice");
  refused(R"("guided_regex":"a","guided_grammar":"root ::= \"a\"")", "guided_grammar");
  refused(R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})",
          "structured_outputs.regex");
}

class Constraints : public testing::Test {
 protected:
  Constraints() : service_(say("x")) {}
  ModelService service() {
    ModelService out = service_.service();
    out.grammars = grammars_;
    return out;
  }
  std::variant<PreparedRequest, ApiError> prepared(const std::string& fields) {
    auto outcome = prepare_request(service(), request(fields));
    if (auto* made = std::get_if<PreparedRequest>(&outcome)) {
      if (auto e = add_constraints(service(), *made, caller_)) return *std::move(e);
    }
    return outcome;
  }
  std::vector<GenerationRequest> generations(const std::string& fields) {
    auto outcome = prepared(fields);
    const auto* e = std::get_if<ApiError>(&outcome);
    EXPECT_EQ(e, nullptr) << e->message;
    return e ? std::vector<GenerationRequest>() : std::get<PreparedRequest>(std::move(outcome)).generations;
  }

  TestService service_;
  Caller caller_;
  std::shared_ptr<GrammarCompiler> grammars_ = std::make_shared<GrammarCompiler>(service_.tokenizer);
};

// A token beyond the vocabulary is such a fault.
TEST_F(Constraints, WhatGoesWrongInAGrammarIsLoggedOnceWithTheRequest) {
  ApiKey key;
  key.name = "team-b";
  caller_.key = std::make_shared<const ApiKey>(key);
  caller_.request_id = "req-8";
  const auto choices = generations(R"("guided_regex":"[xy]*")");
  ASSERT_EQ(choices.size(), 1u);
  TokenConstraint& constraint = *choices[0].sampling.constraint;
  testing::internal::CaptureStderr();
  EXPECT_NE(constraint.after(std::vector<Token>{token_of('x'), 99'999}, 10 * kNanosPerSecond), nullptr);
  EXPECT_NE(constraint.after(std::vector<Token>{token_of('y'), 99'999}, 10 * kNanosPerSecond), nullptr);
  // Not allowed by the grammar: no fault.
  EXPECT_NE(constraint.after(std::vector<Token>{token_of('z')}, 10 * kNanosPerSecond), nullptr);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("error grammar: The token id 99999 is out of range"));
  EXPECT_THAT(log, HasSubstr(" request_id=req-8 key=team-b\n"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST_F(Constraints, EachChoiceHasItsOwn) {
  const auto choices = generations(R"("n":2,"guided_regex":"xy")");
  ASSERT_EQ(choices.size(), 2u);
  ASSERT_NE(choices[0].sampling.constraint, nullptr);
  EXPECT_NE(choices[0].sampling.constraint, choices[1].sampling.constraint);
  const TokenMask* mask = choices[0].sampling.constraint->after({}, kNanosPerSecond);
  ASSERT_NE(mask, nullptr);
  EXPECT_TRUE(mask->has(token_of('x')));
  EXPECT_FALSE(mask->has(token_of('y')));
  EXPECT_EQ(generations(R"("n":2)")[0].sampling.constraint, nullptr);
}

TEST_F(Constraints, IgnoreEosGoesOnWhileTheGrammarDoes) {
  const auto choices = generations(R"("ignore_eos":true,"guided_regex":"x*")");
  EXPECT_THAT(choices.at(0).stop_tokens, ElementsAre(kEndToken));
  ASSERT_NE(choices[0].sampling.rules, nullptr);
  EXPECT_EQ(choices[0].sampling.rules->bias.at(0).first, kEndToken);
  EXPECT_EQ(choices[0].sampling.rules->bias.at(0).second, -std::numeric_limits<float>::infinity());
  EXPECT_THAT(generations(R"("ignore_eos":true)").at(0).stop_tokens, ElementsAre());
}

TEST_F(Constraints, WhatIsNoGrammarNamesItsField) {
  const auto refused = [this](const std::string& fields, const std::string& param, const char* words) {
    const auto outcome = prepared(fields);
    const auto* e = std::get_if<ApiError>(&outcome);
    ASSERT_NE(e, nullptr) << fields;
    EXPECT_EQ(e->status, 400);
    EXPECT_EQ(e->param, param) << e->message;
    EXPECT_THAT(e->message, HasSubstr(words));
  };
  refused(R"("guided_regex":"[a")", "guided_regex", "'guided_regex': ");
  refused(R"("guided_regex":"(a{999}){999}")", "guided_regex", "more than 16384 characters");
  refused(R"("structured_outputs":{"json":{"type":"nothing"}})", "structured_outputs.json", "nothing");
  refused(R"("structured_outputs":{"choice":[]})", "structured_outputs.choice", "must be a choice");
  refused(R"("guided_json":{"not":{}})", "guided_json", "keyword 'not'");
  refused(R"("guided_regex":"a","forced_output_tokens":3)", "forced_output_tokens", "exclude each other");
  grammars_ = nullptr;
  refused(R"("guided_regex":"a")", "guided_regex", "holds no output to a grammar");
}

// A grammar that is new is compiled elsewhere, so that other requests do not wait for it; an error comes
// back.
TEST(GrammarRequests, AreAnsweredWhetherOrNotTheGrammarIsNew) {
  RunningServer server(say("xy"), test_options(), /*ready=*/false);
  ModelService service = server.service();
  service.grammars = std::make_shared<GrammarCompiler>(*service.tokenizer);
  server->serve(service);
  for (int i = 0; i < 2; ++i) {
    const HttpAnswer answer = server.ask(post(kChatPath, chat_body(R"("guided_regex":"xy")")));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(service.grammars->stats().compiled, 1u);
  }
  const HttpAnswer wrong = server.ask(post(kChatPath, chat_body(R"("guided_regex":"[x")")));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr(R"("param":"guided_regex")"));
  ASSERT_EQ(server.backend().submitted().size(), 2u);
  EXPECT_NE(server.backend().submitted()[0].sampling.constraint, nullptr);
}

}  // namespace
}  // namespace kvasir::test
