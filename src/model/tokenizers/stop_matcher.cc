// O(stop strings) per byte, amortised.
#include "model/tokenizers/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace kvasir {

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops) {
  StopMatcher matcher;
  for (std::string& stop : stops) {
    if (stop.empty()) {
      return error(ErrorCode::kInvalidArgument, "a stop string is empty; leave it out or give it text");
    }
    Pattern pattern{std::move(stop), {}, 0};
    pattern.border.assign(pattern.text.size(), 0);
    size_t border = 0;
    for (size_t i = 1; i < pattern.text.size(); ++i) {
      while (border > 0 && pattern.text[i] != pattern.text[border]) border = pattern.border[border - 1];
      if (pattern.text[i] == pattern.text[border]) ++border;
      pattern.border[i] = border;
    }
    matcher.patterns_.push_back(std::move(pattern));
  }
  return matcher;
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return std::string();
  for (const char c : text) {
    held_.push_back(c);
    if (!advance(c)) continue;
    held_.resize(held_.size() - patterns_[*matched_].text.size());
    return std::exchange(held_, std::string());
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.length);
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() {
  return std::exchange(held_, std::string());
}

// True if a stop string ends with `c`.
bool StopMatcher::advance(char c) {
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& p = patterns_[i];
    while (p.length > 0 && p.text[p.length] != c) p.length = p.border[p.length - 1];
    if (p.text[p.length] == c) ++p.length;
    const bool ends = p.length == p.text.size();
    if (ends && (!matched_ || p.text.size() > patterns_[*matched_].text.size())) matched_ = i;
  }
  return matched_.has_value();
}

}  // namespace kvasir
