#include "apps/bench/server_metrics.h"

#include <charconv>
#include <cmath>

namespace kvasir {
namespace {

constexpr Nanos kTimeout = 5 * kNanosPerSecond;
constexpr size_t kMaxPageBytes = 8 << 20;

// The value of a line "NAME{labels} VALUE [time]" or "NAME VALUE [time]" with this very name.
std::optional<double> value_of(std::string_view line, std::string_view name) {
  if (!line.starts_with(name)) return std::nullopt;
  line.remove_prefix(name.size());
  if (line.starts_with('{')) {
    // A quoted label value may hold any character, an escaped quote among them.
    bool quoted = false;
    size_t i = 1;
    for (; i < line.size() && (quoted || line[i] != '}'); ++i) {
      if (quoted && line[i] == '\\') {
        ++i;
      } else if (line[i] == '"') {
        quoted = !quoted;
      }
    }
    if (i >= line.size()) return std::nullopt;
    line.remove_prefix(i + 1);
  }
  if (!line.starts_with(' ')) return std::nullopt;
  line.remove_prefix(line.find_first_not_of(' ') == std::string_view::npos ? line.size()
                                                                           : line.find_first_not_of(' '));
  double value = 0;
  const auto [end, problem] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (problem != std::errc() || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

std::optional<double> metric_sum(std::string_view page, std::string_view name) {
  for (const char* prefix : {"kvasir:", "vllm:"}) {
    const std::string full = std::string(prefix) + std::string(name);
    std::optional<double> sum;
    std::string_view rest = page;
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      if (const auto value = value_of(rest.substr(0, end), full)) sum = sum.value_or(0) + *value;
      if (end == std::string_view::npos) break;
      rest.remove_prefix(end + 1);
    }
    if (sum.has_value()) return sum;
  }
  return std::nullopt;
}

std::optional<double> read_preemptions(const HttpTarget& target, const std::string& api_key) {
  const Result<HttpReply> reply = http_get(target, "/metrics", api_key, kTimeout, kMaxPageBytes);
  if (!reply.ok() || reply->status != 200) return std::nullopt;
  return metric_sum(reply->body, "num_preemptions_total");
}

}  // namespace kvasir
