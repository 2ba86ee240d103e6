// Expressions.
#include <utility>

#include "model/templates/jinja/interpreter_impl.h"

namespace kvasir::jinja {

Result<Value> Interpreter::evaluate(const Expr& expr, const Scope* scope) {
  KV_RETURN_IF_ERROR(env_->spend(1));
  if (++depth_ > env_->limits().depth) {
    return error(ErrorCode::kExhausted, "the chat template is nested deeper than {}; use another template",
                 env_->limits().depth);
  }
  Result<Value> result = evaluate_kind(expr, scope);
  --depth_;
  if (result.ok() || raised_) return result;
  const Status status = result.status();
  constexpr std::string_view kPrefix = "chat template line ";
  if (status.code() == ErrorCode::kExhausted || status.message().starts_with(kPrefix)) return result;
  return error(status.code(), "{}{}: {}", kPrefix, expr.line, status.message());
}

Result<Value> Interpreter::evaluate_kind(const Expr& expr, const Scope* scope) {
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.value;
    case ExprKind::kName:
      return evaluate_name(expr.name, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return evaluate_sequence(expr, scope);
    case ExprKind::kDict:
      return evaluate_dict(expr, scope);
    case ExprKind::kAttribute: {
      KV_ASSIGN_OR_RETURN(const Value object, evaluate(*expr.args[0], scope));
      return get_attribute(env_, object, expr.name);
    }
    case ExprKind::kItem: {
      KV_ASSIGN_OR_RETURN(const Value object, evaluate(*expr.args[0], scope));
      KV_ASSIGN_OR_RETURN(const Value key, evaluate(*expr.args[1], scope));
      return get_item(env_, object, key);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope);
    case ExprKind::kMethod:
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return evaluate_applied(expr, scope);
    case ExprKind::kUnary:
      return evaluate_unary(expr, scope);
    case ExprKind::kBinary:
      return evaluate_binary(expr, scope);
    case ExprKind::kCompare:
      return evaluate_compare(expr, scope);
    case ExprKind::kConditional:
      return evaluate_conditional(expr, scope);
  }
  KV_CHECK(false, "expression kind {}", static_cast<int>(expr.kind));
}

Result<Value> Interpreter::evaluate_name(const std::string& name, const Scope* scope) {
  for (const Scope* s = scope; s != nullptr; s = s->parent) {
    if (s->loop != nullptr && name == "loop") return loop_value(*s->loop);
    const auto found = s->names.find(name);
    if (found != s->names.end()) return found->second;
  }
  // Without a clock the name is undefined, so that a template takes its branch for older engines.
  if (name == "strftime_now" && !env_->now_seconds()) return Value();
  return is_known_function(name) ? Value(Macro{nullptr}) : Value();
}

Result<Value> Interpreter::evaluate_sequence(const Expr& expr, const Scope* scope) {
  std::vector<Value> items;
  items.reserve(expr.args.size());
  for (const ExprPtr& arg : expr.args) {
    KV_ASSIGN_OR_RETURN(Value item, evaluate(*arg, scope));
    items.push_back(std::move(item));
  }
  return env_->make_list(std::move(items), expr.kind == ExprKind::kTuple);
}

Result<Value> Interpreter::evaluate_dict(const Expr& expr, const Scope* scope) {
  bool integers = false;
  std::vector<std::pair<std::string, Value>> items;
  for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    KV_ASSIGN_OR_RETURN(const Value key, evaluate(*expr.args[i], scope));
    if (i == 0) integers = key.is_integral();
    if (integers ? !key.is_integral() : !key.is_string()) {
      return error(ErrorCode::kInvalidArgument, "a dict's keys must be all strings or all integers, not '{}'",
                   key.type_name());
    }
    KV_ASSIGN_OR_RETURN(Value value, evaluate(*expr.args[i + 1], scope));
    items.emplace_back(integers ? fmt::format("{}", key.as_int()) : key.as_string(), std::move(value));
  }
  return env_->make_dict(std::move(items), integers);
}

Result<Value> Interpreter::evaluate_slice(const Expr& expr, const Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value object, evaluate(*expr.args[0], scope));
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    const ExprPtr& part = expr.args[i + 1];
    if (!part) continue;
    KV_ASSIGN_OR_RETURN(parts[i], evaluate(*part, scope));
    if (parts[i].is_undefined())
      return error(ErrorCode::kInvalidArgument, "a slice needs integers, not 'Undefined'");
  }
  return get_slice(env_, object, parts[0], parts[1], parts[2]);
}

Result<Value> Interpreter::evaluate_unary(const Expr& expr, const Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value operand, evaluate(*expr.args[0], scope));
  if (expr.name == "not") return Value(!operand.truthy());
  return apply_sign(expr.name, operand);
}

Result<Value> Interpreter::evaluate_binary(const Expr& expr, const Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value left, evaluate(*expr.args[0], scope));
  if (expr.name == "and" || expr.name == "or") {
    if (left.truthy() == (expr.name == "or")) return left;
    return evaluate(*expr.args[1], scope);
  }
  KV_ASSIGN_OR_RETURN(const Value right, evaluate(*expr.args[1], scope));
  return apply_binary(env_, expr.name, left, right);
}

Result<Value> Interpreter::evaluate_compare(const Expr& expr, const Scope* scope) {
  KV_ASSIGN_OR_RETURN(Value left, evaluate(*expr.args[0], scope));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    KV_ASSIGN_OR_RETURN(Value right, evaluate(*expr.args[i + 1], scope));
    KV_ASSIGN_OR_RETURN(const bool holds, apply_compare(env_, expr.operators[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Interpreter::evaluate_conditional(const Expr& expr, const Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value condition, evaluate(*expr.args[1], scope));
  if (condition.truthy()) return evaluate(*expr.args[0], scope);
  return expr.args[2] ? evaluate(*expr.args[2], scope) : Result<Value>(Value());
}

Result<Arguments> Interpreter::evaluate_arguments(const Expr& expr, size_t first, const Scope* scope) {
  Arguments arguments;
  for (size_t i = first; i < expr.args.size(); ++i) {
    KV_ASSIGN_OR_RETURN(Value value, evaluate(*expr.args[i], scope));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, arg] : expr.named) {
    KV_ASSIGN_OR_RETURN(Value value, evaluate(*arg, scope));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

Result<Value> Interpreter::evaluate_call(const Expr& expr, const Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value callee, evaluate_name(expr.name, scope));
  if (!callee.is_macro()) {
    return error(ErrorCode::kInvalidArgument, "'{}' is called, but it is '{}'", expr.name,
                 callee.type_name());
  }
  KV_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expr, 0, scope));
  if (callee.as_macro() != nullptr) return call_macro(*callee.as_macro(), arguments);
  auto result = call_function(env_, expr.name, arguments);
  raised_ =
      !result.ok() && expr.name == "raise_exception" && result.status().code() == ErrorCode::kInvalidArgument;
  return result;
}

// object.name(...), input | name(...), input is name(...)
Result<Value> Interpreter::evaluate_applied(const Expr& expr, const Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value subject, evaluate(*expr.args[0], scope));
  KV_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(expr, 1, scope));
  if (expr.kind == ExprKind::kFilter) return call_filter(env_, expr.name, subject, arguments);
  if (expr.kind == ExprKind::kMethod) return call_method(env_, expr.name, subject, arguments);
  KV_ASSIGN_OR_RETURN(const bool holds, call_test(env_, expr.name, subject, arguments));
  return Value(holds != expr.negated);
}

}  // namespace kvasir::jinja
