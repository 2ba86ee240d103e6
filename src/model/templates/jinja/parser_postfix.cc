// What follows a value: attributes, indices, calls, filters and tests. Unknown names are refused here.
#include "model/templates/jinja/builtins.h"
#include "model/templates/jinja/parser.h"
#include "model/templates/jinja/parser_impl.h"

namespace kvasir::jinja {

Result<ExprPtr> Parser::parse_postfix(ExprPtr node) {
  while (true) {
    if (is_operator(".")) {
      KV_ASSIGN_OR_RETURN(node, parse_attribute(std::move(node)));
    } else if (is_operator("[")) {
      KV_ASSIGN_OR_RETURN(node, parse_item(std::move(node)));
    } else if (is_operator("(")) {
      KV_ASSIGN_OR_RETURN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> Parser::parse_attribute(ExprPtr object) {
  take();
  if (peek().kind == TokenKind::kInteger) {
    ExprPtr node = make(ExprKind::kItem);
    ExprPtr index = make(ExprKind::kLiteral);
    index->value = Value(take().integer);
    node->args.push_back(std::move(object));
    node->args.push_back(std::move(index));
    return finish(std::move(node));
  }
  ExprPtr node = make(ExprKind::kAttribute);
  KV_ASSIGN_OR_RETURN(node->name, expect_name("the name of an attribute"));
  if (node->name.starts_with("__")) return unsupported(fmt::format("the attribute '{}'", node->name));
  node->args.push_back(std::move(object));
  return finish(std::move(node));
}

Result<ExprPtr> Parser::parse_item(ExprPtr object) {
  ExprPtr node = make(ExprKind::kItem);
  take();
  node->args.push_back(std::move(object));
  ExprPtr parts[3];
  int part = 0;
  bool slice = false;
  while (!is_operator("]")) {
    if (accept(":")) {
      slice = true;
      if (++part > 2) return fail("expected at most two ':' in a slice");
      continue;
    }
    if (parts[part]) return fail("expected ']'");
    KV_ASSIGN_OR_RETURN(parts[part], parse_expression());
  }
  take();
  if (!slice && !parts[0]) return fail("expected an index before ']'");
  if (slice) node->kind = ExprKind::kSlice;
  for (int i = 0; i < (slice ? 3 : 1); ++i) node->args.push_back(std::move(parts[i]));
  return finish(std::move(node));
}

Result<ExprPtr> Parser::parse_call(ExprPtr callee) {
  if (callee->kind == ExprKind::kName) {
    callee->kind = ExprKind::kCall;
    if (conditions_ == 0) calls_.emplace_back(callee->name, callee->line);
  } else if (callee->kind == ExprKind::kAttribute) {
    if (conditions_ == 0 && !is_known_method(callee->name))
      return unsupported(fmt::format("the method '{}'", callee->name));
    callee->kind = ExprKind::kMethod;
  } else {
    return unsupported("a call of anything but a function or a method");
  }
  KV_RETURN_IF_ERROR(parse_arguments(callee.get()));
  return finish(std::move(callee));
}

Result<ExprPtr> Parser::parse_filters(ExprPtr node) {
  while (true) {
    if (is_operator("|")) {
      KV_ASSIGN_OR_RETURN(node, parse_filter(std::move(node)));
    } else if (is_word("is")) {
      KV_ASSIGN_OR_RETURN(node, parse_test(std::move(node)));
    } else if (is_operator("(")) {
      KV_ASSIGN_OR_RETURN(node, parse_call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> Parser::parse_filter(ExprPtr input) {
  take();
  ExprPtr node = make(ExprKind::kFilter);
  KV_ASSIGN_OR_RETURN(node->name, expect_name("the name of a filter"));
  if (conditions_ == 0 && !is_known_filter(node->name))
    return unsupported(fmt::format("the filter '{}'", node->name));
  node->args.push_back(std::move(input));
  if (is_operator("(")) KV_RETURN_IF_ERROR(parse_arguments(node.get()));
  return finish(std::move(node));
}

Result<ExprPtr> Parser::parse_test(ExprPtr input) {
  take();
  ExprPtr node = make(ExprKind::kTest);
  node->negated = accept_word("not");
  KV_ASSIGN_OR_RETURN(node->name, expect_name("the name of a test"));
  if (conditions_ == 0 && !is_known_test(node->name))
    return unsupported(fmt::format("the test '{}'", node->name));
  node->args.push_back(std::move(input));
  const Token& next = peek();
  if (is_word("is")) return fail("expected something other than a second test");
  const bool word = next.kind == TokenKind::kName && next.text != "else" && next.text != "or" &&
                    next.text != "and" && next.text != "is" && next.text != "if" && next.text != "not" &&
                    next.text != "in";
  const bool literal = next.kind == TokenKind::kString || next.kind == TokenKind::kInteger ||
                       next.kind == TokenKind::kFloat || is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    KV_RETURN_IF_ERROR(parse_arguments(node.get()));
  } else if (word || literal) {
    KV_ASSIGN_OR_RETURN(ExprPtr argument, parse_primary());
    KV_ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument)));
    node->args.push_back(std::move(argument));
  }
  return finish(std::move(node));
}

// "(" value, name=value, ... ")"
Status Parser::parse_arguments(Expr* call) {
  KV_RETURN_IF_ERROR(expect("("));
  bool first = true;
  while (!accept(")")) {
    if (!first) {
      KV_RETURN_IF_ERROR(expect(","));
      if (accept(")")) break;
    }
    first = false;
    if (call->args.size() + call->named.size() > kMaxArguments) {
      return unsupported(fmt::format("a call with more than {} arguments", kMaxArguments));
    }
    if (is_operator("*") || is_operator("**")) return unsupported("an unpacked argument (* or **)");
    const bool named =
        peek().kind == TokenKind::kName && peek(1).kind == TokenKind::kOperator && peek(1).text == "=";
    if (!named && !call->named.empty()) return fail("expected a named argument after a named one");
    std::string name;
    if (named) {
      name = take().text;
      take();
    }
    KV_ASSIGN_OR_RETURN(ExprPtr value, parse_expression());
    if (named) {
      call->named.emplace_back(std::move(name), std::move(value));
    } else {
      call->args.push_back(std::move(value));
    }
  }
  return Status();
}

}  // namespace kvasir::jinja
