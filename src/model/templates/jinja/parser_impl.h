// The parser's state, shared by its two halves: statements (parser.cc) and expressions
// (parser_expression.cc).
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/templates/jinja/ast.h"
#include "model/templates/jinja/lexer.h"

namespace kvasir::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Result<Block> run();

 private:
  using StmtPtr = std::unique_ptr<Stmt>;

  // Statements. A block ends before a tag whose name is one of `ends`.
  Result<Block> parse_block(const std::vector<std::string_view>& ends);
  Result<StmtPtr> parse_statement();
  Result<StmtPtr> parse_if();
  Result<StmtPtr> parse_for();
  Result<StmtPtr> parse_set();
  Result<StmtPtr> parse_filter_block();
  Result<StmtPtr> parse_macro();
  Result<StmtPtr> parse_with();
  Result<StmtPtr> parse_generation();
  Result<StmtPtr> parse_jump(StmtKind kind);
  Result<std::vector<std::string>> parse_targets();
  Status end_block(std::string_view name);  // consumes {% name %}
  Status expect_block_end();

  // Expressions, loosest binding first.
  Result<ExprPtr> parse_expression();
  Result<ExprPtr> parse_tuple();  // an expression, or several with commas
  Result<ExprPtr> parse_or();
  Result<ExprPtr> parse_and();
  Result<ExprPtr> parse_not();
  Result<ExprPtr> parse_compare();
  Result<ExprPtr> parse_sum();
  Result<ExprPtr> parse_concat();
  Result<ExprPtr> parse_product();
  Result<ExprPtr> parse_power();
  Result<ExprPtr> parse_unary(bool with_filter);
  Result<ExprPtr> parse_primary();
  Result<ExprPtr> parse_parentheses();
  Result<ExprPtr> parse_list();
  Result<ExprPtr> parse_dict();
  Result<ExprPtr> parse_postfix(ExprPtr node);
  Result<ExprPtr> parse_attribute(ExprPtr node);
  Result<ExprPtr> parse_item(ExprPtr node);
  Result<ExprPtr> parse_call(ExprPtr callee);
  Result<ExprPtr> parse_filters(ExprPtr node);
  Result<ExprPtr> parse_filter(ExprPtr node);
  Result<ExprPtr> parse_test(ExprPtr node);
  Status parse_arguments(Expr* call);
  Status check_calls() const;

  using Rule = Result<ExprPtr> (Parser::*)();
  Result<ExprPtr> parse_left(Rule operand, const std::vector<std::string_view>& operators, bool words);

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_operator(std::string_view text) const {
    return peek().kind == TokenKind::kOperator && peek().text == text;
  }
  bool is_word(std::string_view text) const { return peek().kind == TokenKind::kName && peek().text == text; }
  bool accept(std::string_view op);
  bool accept_word(std::string_view word);
  Status expect(std::string_view op);
  Result<std::string> expect_name(std::string_view what);
  Status fail(std::string_view what) const;
  Status unsupported(std::string_view what) const;
  ExprPtr make(ExprKind kind, std::string name = "") const;
  // Sets the depth from the children, and refuses one that is too deep.
  Result<ExprPtr> finish(ExprPtr node) const;

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  int conditions_ = 0;  // {% if %} and macros around this place: what is unknown may never be reached
  int scopes_ = 0;      // loops, macros and with-blocks around this place
  std::vector<std::string> macros_;
  std::vector<std::pair<std::string, int>> calls_;  // function name and line, to be checked at the end
};

}  // namespace kvasir::jinja
