// The settings that may follow a policy's name: NAME:KEY=VALUE:KEY=VALUE.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

// A policy asks for each of its settings once, with the default; a setting that was given and not asked for
// is an error. The first problem is kept; a policy made despite one must not be used.
class PolicySettings {
 public:
  // `text`: NAME[:KEY=VALUE]...
  explicit PolicySettings(std::string_view text);

  const std::string& policy() const { return policy_; }

  // "on" or "off".
  bool flag(std::string_view key, bool otherwise);
  // In [least, most].
  double number(std::string_view key, double otherwise, double least, double most);
  uint32_t whole(std::string_view key, uint32_t otherwise, uint32_t least, uint32_t most);
  // One of `known`.
  std::string word(std::string_view key, std::string_view otherwise,
                   std::initializer_list<std::string_view> known);

  // `key` means something only together with `others`: refused if it is given and one of them is not.
  void needs(std::string_view key, std::initializer_list<std::string_view> others);

  // Call it when the policy has been made. kInvalidArgument names the setting, and those that the policy
  // takes.
  Status status() const;

 private:
  struct Given {
    std::string key;
    std::string value;
    bool taken = false;
  };
  bool given(std::string_view key) const;
  // The value given for the key; null: none.
  const std::string* take(std::string_view key);
  void refuse(std::string_view key, std::string_view value, std::string_view wanted);

  std::string policy_;
  std::vector<Given> given_;
  std::vector<std::string> keys_;  // keys that the policy has asked for
  Status problem_;
};

// The name without its settings.
std::string_view policy_base_name(std::string_view text);

}  // namespace kvasir
