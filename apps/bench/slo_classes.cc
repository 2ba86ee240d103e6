#include "apps/bench/slo_classes.h"

#include <algorithm>
#include <cmath>

#include "apps/bench/parse_text.h"
#include "base/check.h"
#include "base/random.h"

namespace kvasir {
namespace {

// Streams 0 and up of the seed belong to words and lengths, those from 2^40 on to arrivals and from 2^41 on
// to lengths again.
constexpr uint64_t kClassStream = uint64_t{1} << 43;
constexpr uint64_t kRelativeStream = uint64_t{1} << 44;
constexpr size_t kMaxClasses = 100;
constexpr double kMaxFactor = 1e6;
constexpr const char* kFlag = "--slo-class";
constexpr std::string_view kPriority = "priority:";
constexpr double kMostPriority = 1e6;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 100 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '\\';
  });
}

Result<int32_t> parse_priority(const std::string& text, std::string_view value) {
  const double priority = parse_number(value).value_or(kMostPriority + 1);
  if (std::abs(priority) <= kMostPriority && priority == std::floor(priority)) {
    return static_cast<int32_t>(priority);
  }
  return error(ErrorCode::kInvalidArgument, "{} '{}': a priority is a whole number, as priority:-1", kFlag,
               text);
}

Result<SloClass> parse_class(const std::string& text) {
  SloClass out;
  const std::vector<std::string_view> parts = split_commas(text);
  const std::string_view head = parts.empty() ? std::string_view() : parts.front();
  const size_t colon = head.find(':');
  out.name = head.substr(0, colon);
  if (colon != std::string_view::npos) out.share = parse_number(head.substr(colon + 1)).value_or(-1);
  if (!is_name(out.name) || (out.share.has_value() && !(*out.share >= 0 && *out.share <= 1))) {
    return error(ErrorCode::kInvalidArgument,
                 "{} '{}': expected NAME:SHARE,KEY:MILLISECONDS,... with a share from 0 to 1", kFlag, text);
  }
  if (goal_of(out.name).has_value()) {
    return error(ErrorCode::kInvalidArgument, "{} '{}': the first part names the class, not a bound", kFlag,
                 text);
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].starts_with(kPriority)) {
      KV_ASSIGN_OR_RETURN(out.priority, parse_priority(text, parts[i].substr(kPriority.size())));
      continue;
    }
    KV_ASSIGN_OR_RETURN(const Goal goal, parse_goal(kFlag, parts[i]));
    if (has_goal(out.goals, goal.key)) {
      return error(ErrorCode::kInvalidArgument, "{} '{}': '{}' is given twice", kFlag, text,
                   goal_key(goal.key));
    }
    out.goals.push_back(goal);
  }
  return out;
}

}  // namespace

Result<std::vector<SloClass>> parse_slo_classes(const std::vector<std::string>& texts) {
  std::vector<SloClass> classes;
  double shares = 0;
  size_t with_share = 0;
  for (const std::string& text : texts) {
    KV_ASSIGN_OR_RETURN(SloClass one, parse_class(text));
    for (const SloClass& other : classes) {
      if (other.name == one.name) {
        return error(ErrorCode::kInvalidArgument, "{}: the class '{}' is given twice", kFlag, one.name);
      }
    }
    shares += one.share.value_or(0);
    with_share += one.share.has_value();
    classes.push_back(std::move(one));
  }
  if (classes.size() > kMaxClasses) {
    return error(ErrorCode::kInvalidArgument, "{}: {} classes; there may be {}", kFlag, classes.size(),
                 kMaxClasses);
  }
  if (with_share != 0 && with_share != classes.size()) {
    return error(ErrorCode::kInvalidArgument, "{}: either every class has a share, or none", kFlag);
  }
  if (with_share > 0 && std::abs(shares - 1) > 1e-6) {
    return error(ErrorCode::kInvalidArgument, "{}: the shares add up to {:g}, not to 1", kFlag, shares);
  }
  return classes;
}

uint32_t draw_slo_class(const std::vector<SloClass>& classes, uint64_t seed, int64_t number) {
  KV_CHECK(!classes.empty() && classes.front().share.has_value(), "classes={}", classes.size());
  double left = random_unit(seed, kClassStream + static_cast<uint64_t>(number), 0);
  uint32_t last = 0;  // of those that have a share, for what rounding leaves over
  for (uint32_t i = 0; i < classes.size(); ++i) {
    if (*classes[i].share <= 0) continue;
    last = i;
    left -= *classes[i].share;
    if (left < 0) break;
  }
  return last;
}

Result<RelativeSlo> parse_relative_slo(std::string_view text) {
  const size_t colon = text.find(':');
  RelativeSlo out{parse_number(text.substr(0, colon)).value_or(0), 0};
  if (colon != std::string_view::npos) out.high = parse_number(text.substr(colon + 1)).value_or(0);
  if (out.low > 0 && out.low <= out.high && out.high <= kMaxFactor) return out;
  return error(ErrorCode::kInvalidArgument,
               "--relative-slo {}: expected LOW:HIGH, factors above 0 and at most {:g}, as 0.5:2.5", text,
               kMaxFactor);
}

Result<SloReference> parse_slo_reference(std::string_view text) {
  SloReference out;
  for (std::string_view part : split_commas(text)) {
    const size_t colon = part.find(':');
    const std::string_view key = part.substr(0, colon);
    const double value =
        colon == std::string_view::npos ? 0 : parse_number(part.substr(colon + 1)).value_or(0);
    const bool good = value > 0 && value <= kMaxSloMillis;
    if (good && key == "ttft") {
      out.ttft_ms = value;
    } else if (good && key == "tbt") {
      out.tbt_ms = value;
    } else if (good && key == "chunk" && value == std::floor(value)) {
      out.chunk_tokens = static_cast<int64_t>(value);
    } else {
      return error(ErrorCode::kInvalidArgument,
                   "--slo-reference: '{}' is none of ttft:MILLISECONDS, tbt:MILLISECONDS and chunk:TOKENS",
                   part);
    }
  }
  if (out.ttft_ms > 0 && out.tbt_ms > 0) return out;
  return error(ErrorCode::kInvalidArgument, "--slo-reference '{}': expected both means, as ttft:500,tbt:40",
               text);
}

std::vector<Goal> relative_goals(const RelativeSlo& relative, const SloReference& reference,
                                 int64_t prompt_tokens, uint64_t seed, int64_t number) {
  KV_CHECK(reference.chunk_tokens > 0 && prompt_tokens > 0, "chunk={} prompt={}", reference.chunk_tokens,
           prompt_tokens);
  const double unit = random_unit(seed, kRelativeStream + static_cast<uint64_t>(number), 0);
  const double factor = relative.low + unit * (relative.high - relative.low);
  const int64_t chunks = (prompt_tokens + reference.chunk_tokens - 1) / reference.chunk_tokens;
  return {{Goal::Key::kTtft, factor * reference.ttft_ms * static_cast<double>(chunks)},
          {Goal::Key::kMaxTbt, factor * reference.tbt_ms}};
}

}  // namespace kvasir
