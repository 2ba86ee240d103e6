// Base64 with padding, in which etcd's JSON encodes keys and values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

std::string to_base64(std::string_view bytes);

// Nothing if it is not padded base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace kvasir
