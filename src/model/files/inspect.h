// A model in a page of text: what `kvasir inspect MODEL` prints.
#pragma once

#include <string>

#include "model/files/model_file.h"

namespace kvasir {

// Several lines of "label: value", each ending in a newline; the file's own strings are escaped.
std::string describe_model(const ModelFile& model);

// How many layers attend to a window, and what share of K and V a token reads at such a context: of all
// layers together, in one line. All of them are kept. Empty: no layer has a window that is shorter than the
// context.
std::string describe_windows(const ModelSpec& spec, int64_t context);

}  // namespace kvasir
