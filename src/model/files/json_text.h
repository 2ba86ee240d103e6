// JSON in the files of a model, which anyone may have written.
//
// Pure functions.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace kvasir {

// More than any file of a model needs. Deeper values would overflow the stack where they are copied or
// written (nests_deeper() in base/untrusted_text.h).
constexpr int kMostJsonDepth = 32;

// A value in a message: one line of ASCII, cut after `most` bytes.
std::string shown_json(const nlohmann::json& value, size_t most = 80);

}  // namespace kvasir
