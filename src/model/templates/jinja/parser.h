// Tokens to a syntax tree. Everything that the interpreter does not know is refused here, by name and line.
#pragma once

#include <string_view>

#include "base/status.h"
#include "model/templates/jinja/ast.h"

namespace kvasir::jinja {

// Bounds that keep a hostile template from exhausting the stack or the memory while it is read.
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr int kMaxNesting = 64;           // of statements in statements and parentheses in parentheses
constexpr int kMaxExpressionDepth = 200;  // of a tree: a + b + c + ... is one level per sign
constexpr size_t kMaxArguments = 64;      // of one call

// kInvalidArgument: a syntax error. kUnsupported: a statement, filter, test, method or function that is not
// known.
Result<Block> parse_template(std::string_view source);

}  // namespace kvasir::jinja
