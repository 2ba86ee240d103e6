// Base64 with padding (RFC 4648, section 4).
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

std::string to_base64(std::string_view bytes);

}  // namespace kvasir
