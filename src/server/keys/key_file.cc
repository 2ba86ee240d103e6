#include "server/keys/key_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/rand.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "base/untrusted_text.h"
#include "base/yaml.h"

namespace kvasir {
namespace {

constexpr size_t kShown = 100;  // bytes of what is wrong, in a message

// One entry of the list.
class EntryReader {
 public:
  EntryReader(std::string_view path, const YamlNode& entry, size_t number) : path_(path), entry_(entry) {
    label_ = fmt::format("key {}", number);
  }

  Result<ApiKey> read() {
    if (entry_.kind != YamlNode::Kind::kMap)
      return wrong(entry_.at, "is no map; write '- name: NAME' and its fields below");
    KV_RETURN_IF_ERROR(check_names());
    KV_RETURN_IF_ERROR(read_name());
    KV_RETURN_IF_ERROR(read_digest());
    KV_RETURN_IF_ERROR(whole("concurrent_requests", 1, 1'000'000, key_.concurrent_requests));
    KV_RETURN_IF_ERROR(whole("requests_per_minute", 1, 1'000'000'000, key_.requests_per_minute));
    KV_RETURN_IF_ERROR(whole("tokens_per_minute", 1, 1'000'000'000'000, key_.tokens_per_minute));
    KV_RETURN_IF_ERROR(whole("priority", -100, 100, key_.priority));
    KV_RETURN_IF_ERROR(real("weight", 0.01, 100, key_.weight));
    float share = 0;
    KV_RETURN_IF_ERROR(real("queue_share", 0.001, 1, share));
    if (share > 0) key_.queue_share = share;
    KV_RETURN_IF_ERROR(read_claims());
    return key_;
  }

 private:
  template <typename... Args>
  Status wrong(TextPlace at, fmt::format_string<Args...> format, Args&&... args) const {
    return error_at(path_, at, "{} {}", label_, fmt::format(format, std::forward<Args>(args)...));
  }

  Status check_names() const {
    constexpr std::string_view kFields[] = {
        "name",   "sha256",   "concurrent_requests", "requests_per_minute",
        "weight", "priority", "tokens_per_minute",   "queue_share",
        "claims"};
    for (const YamlNode& field : entry_.items) {
      if (std::find(std::begin(kFields), std::end(kFields), field.name) != std::end(kFields)) continue;
      return wrong(field.name_at, "has the field '{}', which is not known; there are {}",
                   one_line(field.name, kShown), fmt::join(kFields, ", "));
    }
    return {};
  }

  Result<std::string> text(const char* field, const char* what) const {
    const YamlNode* const node = entry_.find(field);
    if (!node) return wrong(entry_.at, "has no '{}': {}", field, what);
    if (node->kind != YamlNode::Kind::kText) return wrong(node->at, "'{}' must be {}", field, what);
    return node->text;
  }

  Status read_name() {
    constexpr const char* kName = "1 to 64 letters, digits, '.', '_', '-' or '@'";
    KV_ASSIGN_OR_RETURN(key_.name, text("name", kName));
    if (!valid_key_name(key_.name)) return wrong(entry_.find("name")->at, "'name' must be {}", kName);
    label_ = fmt::format("key '{}'", key_.name);
    key_.identity = "name:" + key_.name;
    return {};
  }

  Status read_digest() {
    constexpr const char* kDigest = "the SHA-256 of the key, 64 hexadecimal digits ('kvasir key' prints it)";
    KV_ASSIGN_OR_RETURN(const std::string hex, text("sha256", kDigest));
    bool right = hex.size() == 2 * key_.digest.size();
    for (size_t i = 0; right && i < key_.digest.size(); ++i) {
      const char* const begin = hex.data() + 2 * i;
      const auto [end, ec] = std::from_chars(begin, begin + 2, key_.digest[i], 16);
      right = ec == std::errc() && end == begin + 2;
    }
    return right ? Status() : wrong(entry_.find("sha256")->at, "'sha256' must be {}", kDigest);
  }

  template <typename T>
  Status whole(const char* field, int64_t least, int64_t most, T& out) const {
    const YamlNode* const node = entry_.find(field);
    if (!node) return {};
    int64_t value = 0;
    const std::string& shown = node->text;  // empty, if it is no text
    const auto [end, ec] = std::from_chars(shown.data(), shown.data() + shown.size(), value);
    if (ec != std::errc() || end != shown.data() + shown.size() || value < least || value > most) {
      return wrong(node->at, "'{}' must be a whole number from {} to {}", field, least, most);
    }
    out = static_cast<T>(value);
    return {};
  }

  Status real(const char* field, double least, double most, float& out) const {
    const YamlNode* const node = entry_.find(field);
    if (!node) return {};
    double value = 0;
    const std::string& shown = node->text;  // empty, if it is no text
    const auto [end, ec] = std::from_chars(shown.data(), shown.data() + shown.size(), value);
    if (ec != std::errc() || end != shown.data() + shown.size() || !(value >= least && value <= most)) {
      return wrong(node->at, "'{}' must be a number from {} to {}", field, least, most);
    }
    out = static_cast<float>(value);
    return {};
  }

  Status read_claims() {
    const YamlNode* const claims = entry_.find("claims");
    if (!claims) return {};
    constexpr const char* kClaims = "a list of priority, slo, output_tokens_hint and cache_map";
    if (claims->kind != YamlNode::Kind::kList) return wrong(claims->at, "'claims' must be {}", kClaims);
    for (const YamlNode& claim : claims->items) {
      const std::string& name = claim.text;
      if (name == "priority") {
        key_.may_set_priority = true;
      } else if (name == "slo") {
        key_.may_set_slo = true;
      } else if (name == "output_tokens_hint") {
        key_.may_hint_output = true;
      } else if (name == "cache_map") {
        key_.may_see_cache = true;
      } else {
        return wrong(claim.at, "'claims' must be {}, and '{}' is none of them", kClaims,
                     one_line(name, kShown));
      }
    }
    return {};
  }

  const std::string_view path_;
  const YamlNode& entry_;
  std::string label_;  // of the entry, in messages
  ApiKey key_;
};

Result<std::vector<ApiKey>> read_entries(const YamlNode& root, std::string_view path) {
  const YamlNode* const list = root.find("keys");
  if (!list || list->kind != YamlNode::Kind::kList || root.items.size() != 1) {
    return error(ErrorCode::kInvalidArgument, "{}: must have the list 'keys', and nothing else", path);
  }
  const std::vector<YamlNode>& entries = list->items;
  if (entries.empty()) return error_at(path, list->at, "'keys' is empty: no request would be answered");
  if (entries.size() > kMaxKeys) return error_at(path, list->at, "more than {} keys", kMaxKeys);
  std::vector<ApiKey> keys;
  std::set<std::string> names;
  std::set<KeyDigest> digests;
  for (const YamlNode& entry : entries) {
    KV_ASSIGN_OR_RETURN(ApiKey key, EntryReader(path, entry, keys.size() + 1).read());
    if (!names.insert(key.name).second) {
      return error_at(path, entry.at, "key '{}': another has the same 'name'", key.name);
    }
    if (!digests.insert(key.digest).second) {
      return error_at(path, entry.at, "key '{}': another has the same 'sha256'", key.name);
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace

bool valid_key_name(std::string_view name) {
  constexpr size_t kMost = 64;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '@';
  };
  return !name.empty() && name.size() <= kMost && std::all_of(name.begin(), name.end(), fits);
}

Result<std::vector<ApiKey>> parse_key_file(const std::string& text, std::string_view path) {
  KV_ASSIGN_OR_RETURN(const YamlNode root, parse_yaml(text, path));
  return read_entries(root, path);
}

Result<std::vector<ApiKey>> read_key_file(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const YamlNode root, read_yaml(path));
  return read_entries(root, path);
}

std::string new_key() {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  constexpr size_t kLength = 43;  // of 6 bits each
  unsigned char bytes[kLength];
  KV_CHECK(RAND_bytes(bytes, sizeof(bytes)) == 1, "the system has no random numbers");
  std::string key = "kv-";
  for (const unsigned char byte : bytes) key += kLetters[byte % 64];
  return key;
}

std::string key_entry(std::string_view name, std::string_view key) {
  return fmt::format("  - name: {}\n    sha256: {}\n", name, hex_of(key_digest(key)));
}

}  // namespace kvasir
