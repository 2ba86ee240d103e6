// Recursive descent with Jinja's binding strengths. Loops build left-leaning trees, so finish() bounds the
// depth of the tree as well as the parser bounds its own recursion.
#include <algorithm>

#include "model/templates/jinja/parser.h"
#include "model/templates/jinja/parser_impl.h"

namespace kvasir::jinja {

bool Parser::accept(std::string_view op) {
  if (!is_operator(op)) return false;
  take();
  return true;
}

bool Parser::accept_word(std::string_view word) {
  if (!is_word(word)) return false;
  take();
  return true;
}

Status Parser::expect(std::string_view op) {
  if (accept(op)) return Status();
  return fail(fmt::format("expected '{}'", op));
}

Result<std::string> Parser::expect_name(std::string_view what) {
  if (peek().kind != TokenKind::kName) return fail(fmt::format("expected {}", what));
  return take().text;
}

Status Parser::fail(std::string_view what) const {
  const Token& token = peek();
  std::string found = "the end of the template";
  switch (token.kind) {
    case TokenKind::kText:
    case TokenKind::kOutputBegin:
    case TokenKind::kBlockBegin:
      found = "text";
      break;
    case TokenKind::kOutputEnd:
      found = "'}}'";
      break;
    case TokenKind::kBlockEnd:
      found = "'%}'";
      break;
    case TokenKind::kString:
      found = "a string";
      break;
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      found = "a number";
      break;
    case TokenKind::kName:
    case TokenKind::kOperator:
      found = "'" + token.text + "'";
      break;
    case TokenKind::kEnd:
      break;
  }
  return error(ErrorCode::kInvalidArgument, "chat template line {}: {}, found {}", token.line, what, found);
}

Status Parser::unsupported(std::string_view what) const {
  return error(ErrorCode::kUnsupported, "chat template line {}: {} is not supported", peek().line, what);
}

ExprPtr Parser::make(ExprKind kind, std::string name) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = peek().line;
  node->name = std::move(name);
  return node;
}

Result<ExprPtr> Parser::finish(ExprPtr node) const {
  int depth = 0;
  for (const ExprPtr& child : node->args) {
    if (child) depth = std::max(depth, child->depth);
  }
  for (const auto& [name, child] : node->named) depth = std::max(depth, child->depth);
  node->depth = depth + 1;
  if (node->depth > kMaxExpressionDepth) {
    return error(ErrorCode::kUnsupported, "chat template line {}: an expression is deeper than {}",
                 node->line, kMaxExpressionDepth);
  }
  return node;
}

Result<ExprPtr> Parser::parse_expression() {
  if (++nesting_ > kMaxNesting) return unsupported(fmt::format("nesting deeper than {}", kMaxNesting));
  KV_ASSIGN_OR_RETURN(ExprPtr value, parse_or());
  while (is_word("if")) {
    ExprPtr node = make(ExprKind::kConditional);
    take();
    node->args.push_back(std::move(value));
    KV_ASSIGN_OR_RETURN(ExprPtr condition, parse_or());
    node->args.push_back(std::move(condition));
    ExprPtr otherwise;
    if (accept_word("else")) {
      KV_ASSIGN_OR_RETURN(otherwise, parse_expression());
    }
    node->args.push_back(std::move(otherwise));
    KV_ASSIGN_OR_RETURN(value, finish(std::move(node)));
  }
  --nesting_;
  return value;
}

Result<ExprPtr> Parser::parse_tuple() {
  KV_ASSIGN_OR_RETURN(ExprPtr first, parse_expression());
  if (!is_operator(",")) return first;
  ExprPtr node = make(ExprKind::kTuple);
  node->args.push_back(std::move(first));
  while (accept(",")) {
    if (peek().kind == TokenKind::kBlockEnd || peek().kind == TokenKind::kOutputEnd || is_operator(")"))
      break;
    KV_ASSIGN_OR_RETURN(ExprPtr next, parse_expression());
    node->args.push_back(std::move(next));
  }
  return finish(std::move(node));
}

// operand (operator operand)*, left to right. `words`: the operators are names.
Result<ExprPtr> Parser::parse_left(Rule operand, const std::vector<std::string_view>& operators, bool words) {
  KV_ASSIGN_OR_RETURN(ExprPtr left, (this->*operand)());
  while (true) {
    const Token& token = peek();
    const TokenKind wanted = words ? TokenKind::kName : TokenKind::kOperator;
    const auto found = std::find(operators.begin(), operators.end(), token.text);
    if (token.kind != wanted || found == operators.end()) return left;
    if (token.text == "%" && left->kind == ExprKind::kLiteral && left->value.is_string()) {
      return unsupported("formatting with 'text' % values");
    }
    ExprPtr node = make(ExprKind::kBinary, token.text);
    take();
    node->args.push_back(std::move(left));
    KV_ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
    node->args.push_back(std::move(right));
    KV_ASSIGN_OR_RETURN(left, finish(std::move(node)));
  }
}

Result<ExprPtr> Parser::parse_or() {
  return parse_left(&Parser::parse_and, {"or"}, true);
}
Result<ExprPtr> Parser::parse_and() {
  return parse_left(&Parser::parse_not, {"and"}, true);
}
Result<ExprPtr> Parser::parse_sum() {
  return parse_left(&Parser::parse_concat, {"+", "-"}, false);
}
Result<ExprPtr> Parser::parse_concat() {
  return parse_left(&Parser::parse_product, {"~"}, false);
}
Result<ExprPtr> Parser::parse_product() {
  return parse_left(&Parser::parse_power, {"*", "/", "//", "%"}, false);
}
Result<ExprPtr> Parser::parse_power() {
  KV_ASSIGN_OR_RETURN(ExprPtr left, parse_unary(true));
  while (is_operator("**")) {
    ExprPtr node = make(ExprKind::kBinary, "**");
    take();
    node->args.push_back(std::move(left));
    KV_ASSIGN_OR_RETURN(ExprPtr right, parse_unary(true));
    node->args.push_back(std::move(right));
    KV_ASSIGN_OR_RETURN(left, finish(std::move(node)));
  }
  return left;
}

Result<ExprPtr> Parser::parse_not() {
  if (!is_word("not")) return parse_compare();
  if (++nesting_ > kMaxNesting) return unsupported(fmt::format("nesting deeper than {}", kMaxNesting));
  ExprPtr node = make(ExprKind::kUnary, "not");
  take();
  KV_ASSIGN_OR_RETURN(ExprPtr operand, parse_not());
  node->args.push_back(std::move(operand));
  --nesting_;
  return finish(std::move(node));
}

Result<ExprPtr> Parser::parse_compare() {
  constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  ExprPtr node = make(ExprKind::kCompare);
  KV_ASSIGN_OR_RETURN(ExprPtr first, parse_sum());
  node->args.push_back(std::move(first));
  while (true) {
    const Token& token = peek();
    const bool symbol =
        token.kind == TokenKind::kOperator &&
        std::find(std::begin(kOperators), std::end(kOperators), token.text) != std::end(kOperators);
    if (symbol) {
      node->operators.push_back(take().text);
    } else if (accept_word("in")) {
      node->operators.emplace_back("in");
    } else if (is_word("not") && peek(1).kind == TokenKind::kName && peek(1).text == "in") {
      take();
      take();
      node->operators.emplace_back("not in");
    } else {
      break;
    }
    KV_ASSIGN_OR_RETURN(ExprPtr next, parse_sum());
    node->args.push_back(std::move(next));
  }
  if (node->operators.empty()) return std::move(node->args[0]);
  return finish(std::move(node));
}

Result<ExprPtr> Parser::parse_unary(bool with_filter) {
  ExprPtr node;
  if (is_operator("-") || is_operator("+")) {
    if (++nesting_ > kMaxNesting) return unsupported(fmt::format("nesting deeper than {}", kMaxNesting));
    node = make(ExprKind::kUnary, peek().text);
    take();
    KV_ASSIGN_OR_RETURN(ExprPtr operand, parse_unary(false));
    node->args.push_back(std::move(operand));
    --nesting_;
    KV_ASSIGN_OR_RETURN(node, finish(std::move(node)));
  } else {
    KV_ASSIGN_OR_RETURN(node, parse_primary());
  }
  KV_ASSIGN_OR_RETURN(node, parse_postfix(std::move(node)));
  if (with_filter) {
    KV_ASSIGN_OR_RETURN(node, parse_filters(std::move(node)));
  }
  return node;
}

Result<ExprPtr> Parser::parse_primary() {
  const Token& token = peek();
  ExprPtr node = make(ExprKind::kLiteral);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (peek().kind == TokenKind::kString) text += take().text;
    node->value = Value(MarkedText::trusted(std::move(text)));
    return node;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    node->value = token.kind == TokenKind::kInteger ? Value(token.integer) : Value(token.real);
    take();
    return node;
  }
  if (is_operator("(")) return parse_parentheses();
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  if (token.kind != TokenKind::kName) return fail("expected a value");

  const std::string name = take().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node->value = Value(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    node->value = Value::none();
  } else {
    constexpr std::string_view kReserved[] = {"and", "or", "not", "in", "is", "if", "else"};
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      return error(ErrorCode::kInvalidArgument, "chat template line {}: expected a value, found '{}'",
                   node->line, name);
    }
    node->kind = ExprKind::kName;
    node->name = name;
  }
  return node;
}

Result<ExprPtr> Parser::parse_parentheses() {
  ExprPtr empty = make(ExprKind::kTuple);
  take();
  if (accept(")")) return empty;
  KV_ASSIGN_OR_RETURN(ExprPtr inner, parse_tuple());
  KV_RETURN_IF_ERROR(expect(")"));
  return inner;
}

Result<ExprPtr> Parser::parse_list() {
  ExprPtr node = make(ExprKind::kList);
  take();
  while (!accept("]")) {
    if (!node->args.empty()) {
      KV_RETURN_IF_ERROR(expect(","));
      if (accept("]")) break;
    }
    KV_ASSIGN_OR_RETURN(ExprPtr item, parse_expression());
    node->args.push_back(std::move(item));
  }
  return finish(std::move(node));
}

Result<ExprPtr> Parser::parse_dict() {
  ExprPtr node = make(ExprKind::kDict);
  take();
  while (!accept("}")) {
    if (!node->args.empty()) {
      KV_RETURN_IF_ERROR(expect(","));
      if (accept("}")) break;
    }
    KV_ASSIGN_OR_RETURN(ExprPtr key, parse_expression());
    node->args.push_back(std::move(key));
    KV_RETURN_IF_ERROR(expect(":"));
    KV_ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
    node->args.push_back(std::move(value));
  }
  return finish(std::move(node));
}

}  // namespace kvasir::jinja
