// What config.json says of a tiny model.
#pragma once

#include <nlohmann/json.hpp>

#include "support/tiny_llama.h"

namespace kvasir::test {

nlohmann::json tiny_folder_config(const TinyLlamaShape& shape);

}  // namespace kvasir::test
