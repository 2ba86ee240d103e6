// The syntax tree of a template: two plain node types, each used by kind.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/templates/jinja/value.h"

namespace kvasir::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kLiteral,      // value
  kName,         // name
  kList,         // args
  kTuple,        // args
  kDict,         // args: key, value, key, value...
  kAttribute,    // args[0] . name
  kItem,         // args[0] [ args[1] ]
  kSlice,        // args[0] [ args[1] : args[2] : args[3] ]; a null pointer where nothing is written
  kCall,         // name ( args, named ): a function of the environment or a macro
  kMethod,       // args[0] . name ( args[1..], named )
  kFilter,       // args[0] | name ( args[1..], named )
  kTest,         // args[0] is name ( args[1..] ); negated
  kUnary,        // name in {not, -, +}; args[0]
  kBinary,       // name in {+ - * / // % ** ~ and or}; args[0], args[1]
  kCompare,      // args[0] operators[0] args[1] operators[1] args[2]...
  kConditional,  // args[0] if args[1] else args[2]; args[2] may be null
};

struct Expr {
  ExprKind kind = ExprKind::kLiteral;
  int line = 0;
  int depth = 1;  // of the tree below and with this node; the parser bounds it
  std::string name;
  Value value;
  bool negated = false;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind {
  kText,      // text, all of it trusted
  kOutput,    // expr
  kIf,        // branches; the last may have a null condition
  kFor,       // targets in expr [if condition]; body; otherwise
  kSet,       // targets = expr; or name.attribute = expr
  kSetBlock,  // targets[0] = the text of body
  kFilter,    // expr, in which kFilteredText is the text of body
  kMacro,     // name, parameters; body
  kScope,     // body in a scope of its own (with); parameters are its variables
  kBreak,
  kContinue,
};

// No template can write this name.
constexpr std::string_view kFilteredText = " text";

struct Branch {
  ExprPtr condition;
  Block body;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  MarkedText text;
  std::string name;
  std::string attribute;
  std::vector<std::string> targets;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // a macro's default may be null
  ExprPtr expr;
  ExprPtr condition;
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
};

}  // namespace kvasir::jinja
