// Compares API keys in constant time.
#include "server/auth.h"

#include <cstddef>

namespace kvasir {
namespace {

bool equal_in_constant_time(std::string_view presented, std::string_view key) {
  if (key.empty()) return false;
  // volatile keeps the compiler from leaving the loop early.
  volatile unsigned char difference = presented.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < presented.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (presented[i] ^ key[i % key.size()]));
  }
  return difference == 0;
}

bool is_bearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  if (scheme.size() != kBearer.size()) return false;
  for (size_t i = 0; i < kBearer.size(); ++i) {
    const char c = scheme[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kBearer[i]) return false;
  }
  return true;
}

// The token; empty if there is none.
std::string_view bearer_token(std::string_view authorization) {
  constexpr size_t kSchemeBytes = 7;
  if (!is_bearer(authorization.substr(0, kSchemeBytes))) return {};
  return authorization.substr(kSchemeBytes);
}

// The time does not depend on how much of what is shown is right.
bool is_one_of(std::string_view shown, const std::vector<std::string>& keys) {
  bool found = false;
  for (const std::string& key : keys) found = equal_in_constant_time(shown, key) || found;
  return found;
}

}  // namespace

std::string_view shown_key(std::string_view authorization, std::string_view x_api_key,
                           const std::vector<std::string>& keys) {
  const std::string_view token = bearer_token(authorization);
  if (keys.empty()) return token.empty() ? x_api_key : token;
  if (is_one_of(token, keys)) return token;
  return is_one_of(x_api_key, keys) ? x_api_key : std::string_view();
}

bool is_authorized(std::string_view authorization, std::string_view x_api_key,
                   const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  const bool by_token = is_one_of(bearer_token(authorization), keys);
  return is_one_of(x_api_key, keys) || by_token;
}

}  // namespace kvasir
