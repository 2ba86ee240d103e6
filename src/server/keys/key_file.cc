#include "server/keys/key_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/rand.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

namespace kvasir {
namespace {

// One entry of the list.
class EntryReader {
 public:
  EntryReader(std::string_view path, const YAML::Node& entry, size_t number) : path_(path), entry_(entry) {
    label_ = fmt::format("key {}", number);
  }

  Result<ApiKey> read() {
    if (!entry_.IsMap()) return wrong(entry_, "is no map; write '- name: NAME' and its fields below");
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
  Status wrong(const YAML::Node& at, fmt::format_string<Args...> format, Args&&... args) const {
    return error(ErrorCode::kInvalidArgument, "{}:{}: {} {}", path_, at.Mark().line + 1, label_,
                 fmt::format(format, std::forward<Args>(args)...));
  }

  Status check_names() const {
    constexpr std::string_view kFields[] = {
        "name",   "sha256",   "concurrent_requests", "requests_per_minute",
        "weight", "priority", "tokens_per_minute",   "queue_share",
        "claims"};
    std::set<std::string> seen;
    for (const auto& field : entry_) {
      const auto name = field.first.as<std::string>("");
      if (std::find(std::begin(kFields), std::end(kFields), name) == std::end(kFields)) {
        return wrong(field.first, "has the field '{}', which is not known; there are {}", name.substr(0, 100),
                     fmt::join(kFields, ", "));
      }
      if (!seen.insert(name).second) return wrong(field.first, "has the field '{}' twice", name);
    }
    return {};
  }

  Result<std::string> text(const char* field, const char* what) const {
    const YAML::Node node = entry_[field];
    if (!node) return wrong(entry_, "has no '{}': {}", field, what);
    if (!node.IsScalar()) return wrong(node, "'{}' must be {}", field, what);
    return node.Scalar();
  }

  Status read_name() {
    constexpr const char* kName = "1 to 64 letters, digits, '.', '_', '-' or '@'";
    KV_ASSIGN_OR_RETURN(key_.name, text("name", kName));
    if (!valid_key_name(key_.name)) return wrong(entry_["name"], "'name' must be {}", kName);
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
    return right ? Status() : wrong(entry_["sha256"], "'sha256' must be {}", kDigest);
  }

  template <typename T>
  Status whole(const char* field, int64_t least, int64_t most, T& out) const {
    const YAML::Node node = entry_[field];
    if (!node) return {};
    int64_t value = 0;
    const std::string shown = node.IsScalar() ? node.Scalar() : "";
    const auto [end, ec] = std::from_chars(shown.data(), shown.data() + shown.size(), value);
    if (ec != std::errc() || end != shown.data() + shown.size() || value < least || value > most) {
      return wrong(node, "'{}' must be a whole number from {} to {}", field, least, most);
    }
    out = static_cast<T>(value);
    return {};
  }

  Status real(const char* field, double least, double most, float& out) const {
    const YAML::Node node = entry_[field];
    if (!node) return {};
    double value = 0;
    const std::string shown = node.IsScalar() ? node.Scalar() : "";
    const auto [end, ec] = std::from_chars(shown.data(), shown.data() + shown.size(), value);
    if (ec != std::errc() || end != shown.data() + shown.size() || !(value >= least && value <= most)) {
      return wrong(node, "'{}' must be a number from {} to {}", field, least, most);
    }
    out = static_cast<float>(value);
    return {};
  }

  Status read_claims() {
    const YAML::Node claims = entry_["claims"];
    if (!claims) return {};
    constexpr const char* kClaims = "a list of priority, slo and output_tokens_hint";
    if (!claims.IsSequence()) return wrong(claims, "'claims' must be {}", kClaims);
    for (const YAML::Node& claim : claims) {
      const auto name = claim.as<std::string>("");
      if (name == "priority") {
        key_.may_set_priority = true;
      } else if (name == "slo") {
        key_.may_set_slo = true;
      } else if (name == "output_tokens_hint") {
        key_.may_hint_output = true;
      } else {
        return wrong(claim, "'claims' must be {}, and '{}' is none of them", kClaims, name.substr(0, 100));
      }
    }
    return {};
  }

  const std::string_view path_;
  const YAML::Node entry_;
  std::string label_;  // of the entry, in messages
  ApiKey key_;
};

Result<std::vector<ApiKey>> read_entries(const YAML::Node& root, std::string_view path) {
  const auto fault = [&](const YAML::Node& at, std::string_view what) {
    return error(ErrorCode::kInvalidArgument, "{}:{}: {}", path, at.Mark().line + 1, what);
  };
  if (!root.IsMap() || root.size() != 1 || !root["keys"] || !root["keys"].IsSequence()) {
    return error(ErrorCode::kInvalidArgument, "{}: must have the list 'keys', and nothing else", path);
  }
  const YAML::Node entries = root["keys"];
  if (entries.size() == 0) return fault(entries, "'keys' is empty: no request would be answered");
  if (entries.size() > kMaxKeys) return fault(entries, fmt::format("more than {} keys", kMaxKeys));
  std::vector<ApiKey> keys;
  std::set<std::string> names;
  std::set<KeyDigest> digests;
  for (const YAML::Node& entry : entries) {
    KV_ASSIGN_OR_RETURN(ApiKey key, EntryReader(path, entry, keys.size() + 1).read());
    if (!names.insert(key.name).second) {
      return fault(entry, fmt::format("key '{}': another has the same 'name'", key.name));
    }
    if (!digests.insert(key.digest).second) {
      return fault(entry, fmt::format("key '{}': another has the same 'sha256'", key.name));
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
  try {
    return read_entries(YAML::Load(text), path);
  } catch (const YAML::Exception& e) {
    return error(ErrorCode::kInvalidArgument, "{}:{}: no YAML: {}", path, e.mark.line + 1, e.msg);
  }
}

Result<std::vector<ApiKey>> read_key_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(ErrorCode::kNotFound, "{}: cannot be read", path);
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad() || text.str().empty()) return error(ErrorCode::kNotFound, "{}: cannot be read", path);
  return parse_key_file(text.str(), path);
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
