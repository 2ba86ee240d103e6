// Base64 with padding, as etcd's JSON has keys and values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

std::string to_base64(std::string_view bytes);

// Nothing if it is not base64, its padding included.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace kvasir
