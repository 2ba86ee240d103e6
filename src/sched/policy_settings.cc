#include "sched/policy_settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace kvasir {

std::string_view policy_base_name(std::string_view text) {
  return text.substr(0, text.find(':'));
}

PolicySettings::PolicySettings(std::string_view text) : policy_(policy_base_name(text)) {
  text.remove_prefix(policy_.size());
  while (!text.empty()) {
    text.remove_prefix(1);
    const std::string_view setting = policy_base_name(text);
    text.remove_prefix(setting.size());
    const size_t equals = setting.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      if (problem_.ok()) {
        problem_ = error(ErrorCode::kInvalidArgument, "policy {}: '{}' is no setting, which is KEY=VALUE",
                         policy_, setting);
      }
      continue;
    }
    given_.push_back({std::string(setting.substr(0, equals)), std::string(setting.substr(equals + 1))});
  }
}

const std::string* PolicySettings::take(std::string_view key) {
  keys_.emplace_back(key);
  const std::string* value = nullptr;
  for (Given& g : given_) {
    if (g.key != key) continue;
    if (g.taken || value) refuse(key, g.value, "given once");
    g.taken = true;
    value = &g.value;
  }
  return value;
}

void PolicySettings::refuse(std::string_view key, std::string_view value, std::string_view wanted) {
  if (!problem_.ok()) return;
  problem_ =
      error(ErrorCode::kInvalidArgument, "policy {}: {}={}: it is to be {}", policy_, key, value, wanted);
}

bool PolicySettings::flag(std::string_view key, bool otherwise) {
  return word(key, otherwise ? "on" : "off", {"on", "off"}) == "on";
}

double PolicySettings::number(std::string_view key, double otherwise, double least, double most) {
  const std::string* text = take(key);
  if (!text) return otherwise;
  double value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, failure] = std::from_chars(text->data(), end, value);
  if (failure != std::errc() || stop != end || !(value >= least && value <= most)) {
    refuse(key, *text, fmt::format("a number from {} to {}", least, most));
    return otherwise;
  }
  return value;
}

uint32_t PolicySettings::whole(std::string_view key, uint32_t otherwise, uint32_t least, uint32_t most) {
  const double value = number(key, otherwise, least, most);
  const auto out = static_cast<uint32_t>(value);
  if (out != value) refuse(key, fmt::format("{}", value), "a whole number");
  return out;
}

bool PolicySettings::given(std::string_view key) const {
  return std::any_of(given_.begin(), given_.end(), [&](const Given& g) { return g.key == key; });
}

void PolicySettings::needs(std::string_view key, std::initializer_list<std::string_view> others) {
  if (!given(key) || !problem_.ok()) return;
  for (std::string_view other : others) {
    if (given(other)) continue;
    problem_ = error(ErrorCode::kInvalidArgument, "policy {}: {} says nothing without {}: give both", policy_,
                     key, other);
    return;
  }
}

std::string PolicySettings::word(std::string_view key, std::string_view otherwise,
                                 std::initializer_list<std::string_view> known) {
  const std::string* text = take(key);
  if (!text) return std::string(otherwise);
  if (std::find(known.begin(), known.end(), *text) == known.end()) {
    refuse(key, *text, fmt::format("one of {}", fmt::join(known, ", ")));
  }
  return *text;
}

Status PolicySettings::status() const {
  if (!problem_.ok()) return problem_;
  for (const Given& g : given_) {
    if (g.taken) continue;
    if (keys_.empty()) {
      return error(ErrorCode::kInvalidArgument, "policy {} has no settings, and '{}={}' is one", policy_,
                   g.key, g.value);
    }
    return error(ErrorCode::kInvalidArgument, "policy {} has no setting '{}': there are {}", policy_, g.key,
                 fmt::join(keys_, ", "));
  }
  return {};
}

}  // namespace kvasir
