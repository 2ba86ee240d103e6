// A model in a page of text: what `kvasir inspect MODEL` prints.
#pragma once

#include <string>

#include "model/files/model_file.h"

namespace kvasir {

// Several lines of "label: value", each ending in a newline; the file's own strings are escaped.
std::string describe_model(const ModelFile& model);

}  // namespace kvasir
