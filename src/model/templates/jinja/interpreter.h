// Renders a syntax tree to text, with marks on the template's own text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/templates/jinja/ast.h"
#include "model/templates/jinja/environment.h"

namespace kvasir::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// One rendering of `block` with `variables`. kInvalidArgument: what raise_exception() says, word for word, or
// an operation that does not fit its values, with the line. kExhausted: a bound of the environment.
Result<MarkedText> render(const Block& block, const Variables& variables, Environment* env);

}  // namespace kvasir::jinja
