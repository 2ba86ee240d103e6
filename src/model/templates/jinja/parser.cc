// Statements. Hugging Face marks the model's own text by `{% generation %}`; here it prints its body.
#include "model/templates/jinja/parser.h"

#include <algorithm>

#include "model/templates/jinja/builtins.h"
#include "model/templates/jinja/parser_impl.h"

namespace kvasir::jinja {

Result<Block> parse_template(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return error(ErrorCode::kUnsupported, "the chat template has {} bytes; {} are supported", source.size(),
                 kMaxTemplateBytes);
  }
  KV_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

Result<Block> Parser::run() {
  KV_ASSIGN_OR_RETURN(Block block, parse_block({}));
  KV_RETURN_IF_ERROR(check_calls());
  return block;
}

// A function that is neither known nor a macro of this template would otherwise fail only when it is reached.
Status Parser::check_calls() const {
  for (const auto& [name, line] : calls_) {
    if (is_known_function(name) || std::find(macros_.begin(), macros_.end(), name) != macros_.end()) continue;
    return error(ErrorCode::kUnsupported, "chat template line {}: the function '{}' is not supported", line,
                 name);
  }
  return Status();
}

Result<Block> Parser::parse_block(const std::vector<std::string_view>& ends) {
  if (++nesting_ > kMaxNesting) return unsupported(fmt::format("nesting deeper than {}", kMaxNesting));
  Block block;
  while (peek().kind != TokenKind::kEnd) {
    auto statement = std::make_unique<Stmt>();
    statement->line = peek().line;
    if (peek().kind == TokenKind::kText) {
      statement->text = MarkedText::trusted(take().text);
    } else if (peek().kind == TokenKind::kOutputBegin) {
      take();
      statement->kind = StmtKind::kOutput;
      KV_ASSIGN_OR_RETURN(statement->expr, parse_tuple());
      if (peek().kind != TokenKind::kOutputEnd) return fail("expected '}}'");
      take();
    } else if (peek().kind == TokenKind::kBlockEnd) {
      take();  // of {% endraw %}
      continue;
    } else {
      const Token& name = peek(1);
      const bool ends_here =
          name.kind == TokenKind::kName && std::find(ends.begin(), ends.end(), name.text) != ends.end();
      if (ends_here) break;
      take();
      KV_ASSIGN_OR_RETURN(statement, parse_statement());
    }
    block.push_back(std::move(statement));
  }
  --nesting_;
  return block;
}

Result<Parser::StmtPtr> Parser::parse_statement() {
  const int line = peek().line;
  if (peek().kind != TokenKind::kName) return fail("expected the name of a statement");
  const std::string name = peek().text;
  Result<StmtPtr> result = fail("");
  if (name == "if") {
    result = parse_if();
  } else if (name == "for") {
    result = parse_for();
  } else if (name == "set") {
    result = parse_set();
  } else if (name == "filter") {
    result = parse_filter_block();
  } else if (name == "macro") {
    result = parse_macro();
  } else if (name == "with") {
    result = parse_with();
  } else if (name == "generation") {
    result = parse_generation();
  } else if (name == "break" || name == "continue") {
    result = parse_jump(name == "break" ? StmtKind::kBreak : StmtKind::kContinue);
  } else if (name.starts_with("end") || name == "else" || name == "elif") {
    return fail("a block ends that was not begun");
  } else {
    return unsupported(fmt::format("the statement '{}'", name));
  }
  if (result.ok()) (*result)->line = line;
  return result;
}

Status Parser::expect_block_end() {
  if (peek().kind != TokenKind::kBlockEnd) return fail("expected '%}'");
  take();
  return Status();
}

Status Parser::end_block(std::string_view name) {
  if (peek().kind != TokenKind::kBlockBegin || peek(1).text != name) {
    return fail(fmt::format("expected {{% {} %}}", name));
  }
  take();
  take();
  return expect_block_end();
}

Result<Parser::StmtPtr> Parser::parse_if() {
  auto statement = std::make_unique<Stmt>();
  statement->kind = StmtKind::kIf;
  bool last = false;
  ++conditions_;
  while (!last) {
    last = take().text == "else";
    Branch branch;
    if (!last) {
      KV_ASSIGN_OR_RETURN(branch.condition, parse_tuple());
    }
    KV_RETURN_IF_ERROR(expect_block_end());
    KV_ASSIGN_OR_RETURN(branch.body, parse_block({"elif", "else", "endif"}));
    statement->branches.push_back(std::move(branch));
    if (peek().kind == TokenKind::kBlockBegin && peek(1).text == "endif") break;
    if (last || peek().kind == TokenKind::kEnd) return fail("expected {% endif %}");
    take();
  }
  --conditions_;
  KV_RETURN_IF_ERROR(end_block("endif"));
  return statement;
}

Result<std::vector<std::string>> Parser::parse_targets() {
  std::vector<std::string> targets;
  const bool parenthesis = accept("(");
  do {
    if (!targets.empty() && peek().kind != TokenKind::kName) break;  // a trailing comma
    KV_ASSIGN_OR_RETURN(std::string name, expect_name("the name of a variable"));
    targets.push_back(std::move(name));
  } while (accept(","));
  if (parenthesis) KV_RETURN_IF_ERROR(expect(")"));
  return targets;
}

Result<Parser::StmtPtr> Parser::parse_for() {
  take();
  auto statement = std::make_unique<Stmt>();
  statement->kind = StmtKind::kFor;
  KV_ASSIGN_OR_RETURN(statement->targets, parse_targets());
  if (!accept_word("in")) return fail("expected 'in'");
  // A conditional expression would swallow the loop's own `if`.
  KV_ASSIGN_OR_RETURN(statement->expr, parse_or());
  if (accept_word("if")) {
    KV_ASSIGN_OR_RETURN(statement->condition, parse_expression());
  }
  if (is_word("recursive")) return unsupported("a recursive loop");
  KV_RETURN_IF_ERROR(expect_block_end());
  ++loops_;
  ++scopes_;
  KV_ASSIGN_OR_RETURN(statement->body, parse_block({"else", "endfor"}));
  --loops_;
  if (peek().kind == TokenKind::kBlockBegin && peek(1).text == "else") {
    take();
    take();
    KV_RETURN_IF_ERROR(expect_block_end());
    KV_ASSIGN_OR_RETURN(statement->otherwise, parse_block({"endfor"}));
  }
  --scopes_;
  KV_RETURN_IF_ERROR(end_block("endfor"));
  return statement;
}

Result<Parser::StmtPtr> Parser::parse_set() {
  take();
  auto statement = std::make_unique<Stmt>();
  statement->kind = StmtKind::kSet;
  KV_ASSIGN_OR_RETURN(statement->targets, parse_targets());
  if (statement->targets.size() == 1 && accept(".")) {
    KV_ASSIGN_OR_RETURN(statement->attribute, expect_name("the name of an attribute"));
  }
  if (accept("=")) {
    KV_ASSIGN_OR_RETURN(statement->expr, parse_tuple());
    KV_RETURN_IF_ERROR(expect_block_end());
    return statement;
  }
  if (is_operator("|")) return unsupported("a filter on a set block");
  if (statement->targets.size() != 1 || !statement->attribute.empty()) return fail("expected '='");
  statement->kind = StmtKind::kSetBlock;
  KV_RETURN_IF_ERROR(expect_block_end());
  KV_ASSIGN_OR_RETURN(statement->body, parse_block({"endset"}));
  KV_RETURN_IF_ERROR(end_block("endset"));
  return statement;
}

Result<Parser::StmtPtr> Parser::parse_filter_block() {
  auto statement = std::make_unique<Stmt>();
  statement->kind = StmtKind::kFilter;
  // As if `filter` were the | after the text.
  KV_ASSIGN_OR_RETURN(ExprPtr first, parse_filter(make(ExprKind::kName, std::string(kFilteredText))));
  KV_ASSIGN_OR_RETURN(statement->expr, parse_filters(std::move(first)));
  KV_RETURN_IF_ERROR(expect_block_end());
  ++scopes_;
  KV_ASSIGN_OR_RETURN(statement->body, parse_block({"endfilter"}));
  --scopes_;
  KV_RETURN_IF_ERROR(end_block("endfilter"));
  return statement;
}

Result<Parser::StmtPtr> Parser::parse_macro() {
  if (scopes_ > 0) return unsupported("a macro inside a loop, a with block or another macro");
  take();
  auto statement = std::make_unique<Stmt>();
  statement->kind = StmtKind::kMacro;
  KV_ASSIGN_OR_RETURN(statement->name, expect_name("the name of a macro"));
  KV_RETURN_IF_ERROR(expect("("));
  while (!accept(")")) {
    if (!statement->parameters.empty()) KV_RETURN_IF_ERROR(expect(","));
    KV_ASSIGN_OR_RETURN(std::string name, expect_name("the name of a parameter"));
    ExprPtr fallback;
    if (accept("=")) {
      KV_ASSIGN_OR_RETURN(fallback, parse_expression());
    } else if (!statement->parameters.empty() && statement->parameters.back().second) {
      return fail("expected a default value, since the parameter before has one");
    }
    statement->parameters.emplace_back(std::move(name), std::move(fallback));
  }
  KV_RETURN_IF_ERROR(expect_block_end());
  macros_.push_back(statement->name);
  ++scopes_;
  ++conditions_;  // it may never be called
  const int loops = std::exchange(loops_, 0);
  KV_ASSIGN_OR_RETURN(statement->body, parse_block({"endmacro"}));
  loops_ = loops;
  --conditions_;
  --scopes_;
  KV_RETURN_IF_ERROR(end_block("endmacro"));
  return statement;
}

Result<Parser::StmtPtr> Parser::parse_with() {
  take();
  auto statement = std::make_unique<Stmt>();
  statement->kind = StmtKind::kScope;
  while (peek().kind != TokenKind::kBlockEnd) {
    if (!statement->parameters.empty()) KV_RETURN_IF_ERROR(expect(","));
    KV_ASSIGN_OR_RETURN(std::string name, expect_name("the name of a variable"));
    KV_RETURN_IF_ERROR(expect("="));
    KV_ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
    statement->parameters.emplace_back(std::move(name), std::move(value));
  }
  KV_RETURN_IF_ERROR(expect_block_end());
  ++scopes_;
  KV_ASSIGN_OR_RETURN(statement->body, parse_block({"endwith"}));
  --scopes_;
  KV_RETURN_IF_ERROR(end_block("endwith"));
  return statement;
}

Result<Parser::StmtPtr> Parser::parse_generation() {
  take();
  auto statement = std::make_unique<Stmt>();
  statement->kind = StmtKind::kScope;
  KV_RETURN_IF_ERROR(expect_block_end());
  KV_ASSIGN_OR_RETURN(statement->body, parse_block({"endgeneration"}));
  KV_RETURN_IF_ERROR(end_block("endgeneration"));
  return statement;
}

Result<Parser::StmtPtr> Parser::parse_jump(StmtKind kind) {
  if (loops_ == 0) return fail("a loop is left outside of any loop");
  take();
  auto statement = std::make_unique<Stmt>();
  statement->kind = kind;
  KV_RETURN_IF_ERROR(expect_block_end());
  return statement;
}

}  // namespace kvasir::jinja
