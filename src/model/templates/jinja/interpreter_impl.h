// The interpreter's state, shared by its two halves: statements (interpreter.cc) and expressions
// (evaluate.cc).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/templates/jinja/builtins.h"
#include "model/templates/jinja/interpreter.h"
#include "model/templates/jinja/operators.h"

namespace kvasir::jinja {

// Where a loop stands: the value of the variable `loop`.
struct LoopState {
  const std::vector<Value>* items;
  size_t index;
};

// Names bound in one block; the blocks around it are its parents.
struct Scope {
  explicit Scope(const Scope* around) : parent(around) {}
  const Scope* parent;
  const LoopState* loop = nullptr;
  std::unordered_map<std::string_view, Value> names;  // the keys live in the syntax tree or the variables
};

class Interpreter {
 public:
  explicit Interpreter(Environment* env) : env_(env), global_(nullptr) {}
  Result<MarkedText> run(const Block& block, const Variables& variables);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Result<Flow> execute(const Block& block, Scope* scope);
  Result<Flow> execute_one(const Stmt& statement, Scope* scope);
  Result<Flow> execute_if(const Stmt& statement, Scope* scope);
  Result<Flow> execute_for(const Stmt& statement, Scope* scope);
  Result<Flow> execute_scope(const Stmt& statement, Scope* scope);
  Status execute_set(const Stmt& statement, Scope* scope);
  Status assign_attribute(const Stmt& statement, Value value, Scope* scope);
  Result<Flow> execute_filter(const Stmt& statement, Scope* scope);
  Status write_value(const Value& value);
  Result<Flow> execute_set_block(const Stmt& statement, Scope* scope);
  Result<std::vector<Value>> loop_items(const Stmt& statement, Scope* scope);
  Status bind_targets(const Stmt& statement, const Value& value, Scope* scope);
  Status write(const MarkedText& text);
  Result<Value> loop_value(const LoopState& loop);

  // Every error but raise_exception()'s gets the line of the innermost expression.
  Result<Value> evaluate(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_kind(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_name(const std::string& name, const Scope* scope);
  Result<Value> evaluate_sequence(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_dict(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_slice(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_unary(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_binary(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_compare(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_conditional(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_call(const Expr& expr, const Scope* scope);
  Result<Value> evaluate_applied(const Expr& expr, const Scope* scope);
  Result<Arguments> evaluate_arguments(const Expr& expr, size_t first, const Scope* scope);
  Result<Value> call_macro(const Stmt& macro, const Arguments& arguments);

  Environment* const env_;
  Scope global_;
  MarkedText* out_ = nullptr;  // where text goes: the result, or what a macro or a set block collects
  int depth_ = 0;
  bool raised_ = false;  // the error under way is raise_exception()'s
};

}  // namespace kvasir::jinja
