// Statements. A loop gives each round a scope of its own, so a name that is set inside does not live on, as
// in Jinja; `if` gives none.
#include "model/templates/jinja/interpreter.h"

#include <utility>

#include "model/templates/jinja/interpreter_impl.h"

namespace kvasir::jinja {

Result<MarkedText> render(const Block& block, const Variables& variables, Environment* env) {
  return Interpreter(env).run(block, variables);
}

Result<MarkedText> Interpreter::run(const Block& block, const Variables& variables) {
  for (const auto& [name, value] : variables) global_.names[name] = value;
  MarkedText out;
  out_ = &out;
  KV_RETURN_IF_ERROR(execute(block, &global_).status());
  return out;
}

Status Interpreter::write(const MarkedText& text) {
  if (text.size() > env_->limits().output_bytes - out_->size()) {
    return error(ErrorCode::kExhausted,
                 "the chat template writes more than {} bytes; send a shorter conversation",
                 env_->limits().output_bytes);
  }
  out_->append(text);
  KV_RETURN_IF_ERROR(env_->spend_bytes(text.mark_bytes()));
  return env_->spend(text.size() / 64);
}

Status Interpreter::write_value(const Value& value) {
  if (value.is_string()) return write(value.as_marked());
  KV_RETURN_IF_ERROR(env_->spend(value.weight()));
  return write(to_text(value));
}

Result<Interpreter::Flow> Interpreter::execute(const Block& block, Scope* scope) {
  if (++depth_ > env_->limits().depth) {
    return error(ErrorCode::kExhausted, "the chat template is nested deeper than {}; use another template",
                 env_->limits().depth);
  }
  Flow flow = Flow::kNext;
  for (const auto& statement : block) {
    KV_RETURN_IF_ERROR(env_->spend(1));
    KV_ASSIGN_OR_RETURN(flow, execute_one(*statement, scope));
    if (flow != Flow::kNext) break;
  }
  --depth_;
  return flow;
}

Result<Interpreter::Flow> Interpreter::execute_one(const Stmt& statement, Scope* scope) {
  switch (statement.kind) {
    case StmtKind::kText:
      KV_RETURN_IF_ERROR(write(statement.text));
      return Flow::kNext;
    case StmtKind::kOutput: {
      KV_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expr, scope));
      KV_RETURN_IF_ERROR(write_value(value));
      return Flow::kNext;
    }
    case StmtKind::kIf:
      return execute_if(statement, scope);
    case StmtKind::kFor:
      return execute_for(statement, scope);
    case StmtKind::kSet:
      KV_RETURN_IF_ERROR(execute_set(statement, scope));
      return Flow::kNext;
    case StmtKind::kSetBlock:
      return execute_set_block(statement, scope);
    case StmtKind::kFilter:
      return execute_filter(statement, scope);
    case StmtKind::kMacro:
      scope->names[statement.name] = Value(Macro{&statement});
      return Flow::kNext;
    case StmtKind::kScope:
      return execute_scope(statement, scope);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  KV_CHECK(false, "statement kind {}", static_cast<int>(statement.kind));
}

Result<Interpreter::Flow> Interpreter::execute_if(const Stmt& statement, Scope* scope) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition) {
      KV_ASSIGN_OR_RETURN(const Value condition, evaluate(*branch.condition, scope));
      if (!condition.truthy()) continue;
    }
    return execute(branch.body, scope);
  }
  return Flow::kNext;
}

// The items of the loop. `loop.length` and `loop.last` count only items that meet its condition.
Result<std::vector<Value>> Interpreter::loop_items(const Stmt& statement, Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value iterable, evaluate(*statement.expr, scope));
  auto iterated = iterate(env_, iterable);
  if (!iterated.ok()) {
    return error(iterated.status().code(), "chat template line {}: {}", statement.line,
                 iterated.status().message());
  }
  const List& list = **iterated;
  KV_RETURN_IF_ERROR(env_->spend(list.items.size()));
  if (!statement.condition) return list.items;
  std::vector<Value> kept;
  for (const Value& item : list.items) {
    Scope round(scope);
    KV_RETURN_IF_ERROR(bind_targets(statement, item, &round));
    KV_ASSIGN_OR_RETURN(const Value keep, evaluate(*statement.condition, &round));
    if (keep.truthy()) kept.push_back(item);
  }
  return kept;
}

Result<Interpreter::Flow> Interpreter::execute_for(const Stmt& statement, Scope* scope) {
  KV_ASSIGN_OR_RETURN(const std::vector<Value> items, loop_items(statement, scope));
  if (items.empty()) return execute(statement.otherwise, scope);
  for (size_t i = 0; i < items.size(); ++i) {
    KV_RETURN_IF_ERROR(env_->spend(1));
    const LoopState loop{&items, i};
    Scope round(scope);
    round.loop = &loop;
    KV_RETURN_IF_ERROR(bind_targets(statement, items[i], &round));
    KV_ASSIGN_OR_RETURN(const Flow flow, execute(statement.body, &round));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Status Interpreter::bind_targets(const Stmt& statement, const Value& value, Scope* scope) {
  if (statement.targets.size() == 1) {
    scope->names[statement.targets[0]] = value;
    return Status();
  }
  auto list = iterate(env_, value);
  if (!list.ok() || (*list)->items.size() != statement.targets.size()) {
    return error(ErrorCode::kInvalidArgument,
                 "chat template line {}: a value cannot be unpacked into {} names", statement.line,
                 statement.targets.size());
  }
  for (size_t i = 0; i < statement.targets.size(); ++i)
    scope->names[statement.targets[i]] = (*list)->items[i];
  return Status();
}

Status Interpreter::execute_set(const Stmt& statement, Scope* scope) {
  KV_ASSIGN_OR_RETURN(Value value, evaluate(*statement.expr, scope));
  if (!statement.attribute.empty()) return assign_attribute(statement, std::move(value), scope);
  return bind_targets(statement, value, scope);
}

Status Interpreter::assign_attribute(const Stmt& statement, Value value, Scope* scope) {
  KV_ASSIGN_OR_RETURN(const Value target, evaluate_name(statement.targets[0], scope));
  if (!target.is_namespace()) {
    return error(ErrorCode::kInvalidArgument,
                 "chat template line {}: '{}' is no namespace, so it has no attributes to set",
                 statement.line, statement.targets[0]);
  }
  if (value.is_namespace()) {
    return error(ErrorCode::kInvalidArgument,
                 "chat template line {}: a namespace cannot be stored in a namespace", statement.line);
  }
  auto& attributes = target.as_namespace().attributes.items;
  KV_RETURN_IF_ERROR(env_->spend(1 + attributes.size() / 8));
  for (auto& [name, old] : attributes) {
    if (name != statement.attribute) continue;
    old = std::move(value);
    return Status();
  }
  attributes.emplace_back(statement.attribute, std::move(value));
  return Status();
}

Result<Interpreter::Flow> Interpreter::execute_set_block(const Stmt& statement, Scope* scope) {
  MarkedText text;
  MarkedText* const out = std::exchange(out_, &text);
  Scope inner(scope);
  auto flow = execute(statement.body, &inner);
  out_ = out;
  if (!flow.ok()) return flow;
  KV_ASSIGN_OR_RETURN(scope->names[statement.targets[0]], env_->make_string(std::move(text)));
  return flow;
}

Result<Interpreter::Flow> Interpreter::execute_filter(const Stmt& statement, Scope* scope) {
  MarkedText text;
  MarkedText* const out = std::exchange(out_, &text);
  Scope inner(scope);
  auto flow = execute(statement.body, &inner);
  out_ = out;
  if (!flow.ok()) return flow;
  Scope filtered(scope);
  KV_ASSIGN_OR_RETURN(filtered.names[kFilteredText], env_->make_string(std::move(text)));
  KV_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expr, &filtered));
  KV_RETURN_IF_ERROR(write_value(value));
  return flow;
}

Result<Interpreter::Flow> Interpreter::execute_scope(const Stmt& statement, Scope* scope) {
  Scope inner(scope);
  for (const auto& [name, expr] : statement.parameters) {
    // The names of a with block are evaluated outside of it.
    KV_ASSIGN_OR_RETURN(Value value, evaluate(*expr, scope));
    inner.names[name] = std::move(value);
  }
  return execute(statement.body, &inner);
}

Result<Value> Interpreter::call_macro(const Stmt& macro, const Arguments& arguments) {
  const auto& parameters = macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return error(ErrorCode::kInvalidArgument, "the macro '{}' takes at most {} arguments", macro.name,
                 parameters.size());
  }
  Scope inner(&global_);
  size_t named_used = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, fallback] = parameters[i];
    Value value;
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (const auto& [key, named] : arguments.named) {
      if (key != name) continue;
      if (given)
        return error(ErrorCode::kInvalidArgument, "the macro '{}' gets '{}' twice", macro.name, name);
      given = &named;
      ++named_used;
    }
    if (given) {
      value = *given;
    } else if (fallback) {
      KV_ASSIGN_OR_RETURN(value, evaluate(*fallback, &inner));
    }
    inner.names[name] = std::move(value);
  }
  if (named_used != arguments.named.size()) {
    return error(ErrorCode::kInvalidArgument, "the macro '{}' does not take an argument of that name",
                 macro.name);
  }
  MarkedText text;
  MarkedText* const out = std::exchange(out_, &text);
  const auto flow = execute(macro.body, &inner);
  out_ = out;
  KV_RETURN_IF_ERROR(flow.status());
  return env_->make_string(std::move(text));
}

Result<Value> Interpreter::loop_value(const LoopState& loop) {
  const auto& items = *loop.items;
  const size_t i = loop.index;
  const size_t size = items.size();
  return env_->make_dict({
      {"index", Value::from_size(i + 1)},
      {"index0", Value::from_size(i)},
      {"revindex", Value::from_size(size - i)},
      {"revindex0", Value::from_size(size - i - 1)},
      {"first", Value(i == 0)},
      {"last", Value(i + 1 == size)},
      {"length", Value::from_size(size)},
      // Only a recursive loop goes deeper.
      {"depth", Value(int64_t{1})},
      {"depth0", Value(int64_t{0})},
      {"previtem", i > 0 ? items[i - 1] : Value()},
      {"nextitem", i + 1 < size ? items[i + 1] : Value()},
  });
}

}  // namespace kvasir::jinja
