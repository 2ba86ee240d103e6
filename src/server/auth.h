// API keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// Whether `authorization`, the value of that header, has one of `keys` as a bearer token. True if there are
// no keys. The time depends on the length of the token, not on how much of it is right.
bool is_authorized(std::string_view authorization, const std::vector<std::string>& keys);

}  // namespace kvasir
