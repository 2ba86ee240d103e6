// API keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// Whether `authorization`, the value of that header, carries one of `keys` as a bearer token. With no keys
// everybody may enter. The time it takes depends on the length of what is presented, not on how much of it
// is right.
bool is_authorized(std::string_view authorization, const std::vector<std::string>& keys);

}  // namespace kvasir
