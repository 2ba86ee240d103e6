#include "server/prompt_grammar.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "model/grammar/grammar_compiler.h"

namespace kvasir {
namespace {

ApiError not_compiled(const Status& status, const std::string& field) {
  const std::string message = fmt::format("'{}': {}", field, status.message());
  switch (status.code()) {
    case ErrorCode::kExhausted:
      return unavailable(message, "overloaded", 1);
    case ErrorCode::kUnavailable: {
      ApiError e;
      e.status = 499;
      e.message = status.message();
      return e;
    }
    default:
      return bad_field(field, message);
  }
}

// The model's end tokens end the output, but come only where the grammar allows nothing else.
void end_with_grammar(const Tokenizer& tokenizer, GenerationRequest& g) {
  LogitRules rules = g.sampling.rules ? *g.sampling.rules : LogitRules();
  for (const Token end : tokenizer.ends()) {
    rules.bias.emplace_back(end, -std::numeric_limits<float>::infinity());
    g.stop_tokens.push_back(end);
  }
  g.sampling.rules = std::make_shared<const LogitRules>(std::move(rules));
}

}  // namespace

bool must_compile(const ModelService& service, const PreparedRequest& prepared) {
  const OutputGrammar& grammar = prepared.api.grammar;
  return grammar.kind != OutputGrammar::Kind::kNone && service.grammars &&
         !service.grammars->is_cached(grammar);
}

std::optional<ApiError> add_constraints(const ModelService& service, PreparedRequest& prepared,
                                        const Caller& caller, const std::atomic<bool>* abandoned) {
  const ApiRequest& request = prepared.api;
  if (request.grammar.kind == OutputGrammar::Kind::kNone) return std::nullopt;
  const std::string& field = request.grammar_field;
  if (!service.grammars) {
    return bad_field(field, fmt::format("'{}': this server holds no output to a grammar", field));
  }
  if (request.forced_output_tokens != 0) {
    return bad_field("forced_output_tokens",
                     fmt::format("'forced_output_tokens' and '{}' exclude each other", field));
  }
  const Result<CompiledGrammar> grammar = service.grammars->compile(request.grammar, abandoned);
  if (!grammar.ok()) return not_compiled(grammar.status(), field);
  for (GenerationRequest& g : prepared.generations) {
    g.sampling.constraint = service.grammars->constrain(
        *grammar, [id = caller.request_id, key = std::string(caller.name())](std::string_view fault) {
          try {
            log_line(LogLevel::kError, fmt::format("grammar: {}", fault), {{"request_id", id}, {"key", key}});
          } catch (const std::bad_alloc&) {
            count_lost_log_line();
          }
        });
    if (request.ignore_eos) end_with_grammar(*service.tokenizer, g);
  }
  return std::nullopt;
}

}  // namespace kvasir
