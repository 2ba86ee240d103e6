// API keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// Of the two values that a request may show, the bearer token in `authorization` and `x_api_key`, the one
// that is among `keys`; without keys the first that is there. Empty: none.
std::string_view shown_key(std::string_view authorization, std::string_view x_api_key,
                           const std::vector<std::string>& keys);

// Whether a bearer token in `authorization`, or `x_api_key`, is one of `keys`: the values of these headers.
// True if there are no keys. The time depends on the length of what is shown, not on how much of it is right.
bool is_authorized(std::string_view authorization, std::string_view x_api_key,
                   const std::vector<std::string>& keys);

}  // namespace kvasir
