#include "server/traces/trace_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "server/http_syntax.h"

namespace kvasir {
namespace {

constexpr size_t kTraceIdDigits = 32;
constexpr size_t kSpanIdDigits = 16;
constexpr size_t kHeaderBytes = 55;  // of version 00: "vv-<32>-<16>-ff"
constexpr uint32_t kSampled = 1, kRandom = 2;
// Of tracestate.
constexpr size_t kMostMembers = 32;
constexpr size_t kMostStateBytes = 512;  // the least that a vendor must pass on

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_id(std::string_view text) {
  return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

std::string random_digits(size_t count) {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }()};
  std::string digits;
  do {
    digits.clear();
    while (digits.size() < count) digits += fmt::format("{:016x}", generator());
  } while (!is_id(digits));
  return digits;
}

// Without state.
std::optional<TraceContext> read_parent(std::string_view text) {
  if (text.size() < kHeaderBytes) return std::nullopt;
  const std::string_view version = text.substr(0, 2);
  // A later version may have more, behind another dash.
  if (!is_hex(version) || version == "ff") return std::nullopt;
  if (text.size() > kHeaderBytes && (version == "00" || text[kHeaderBytes] != '-')) return std::nullopt;
  const std::string_view trace = text.substr(3, kTraceIdDigits);
  const std::string_view parent = text.substr(4 + kTraceIdDigits, kSpanIdDigits);
  const std::string_view flags = text.substr(5 + kTraceIdDigits + kSpanIdDigits, 2);
  const bool dashes =
      text[2] == '-' && text[3 + kTraceIdDigits] == '-' && text[4 + kTraceIdDigits + kSpanIdDigits] == '-';
  if (!dashes || !is_id(trace) || !is_id(parent) || !is_hex(flags)) return std::nullopt;
  TraceContext context;
  context.trace_id = trace;
  context.parent_id = parent;
  const auto bits = static_cast<uint32_t>(hex_value(flags[0]) * 16 + hex_value(flags[1]));
  context.sampled = (bits & kSampled) != 0;
  context.random = (bits & kRandom) != 0;
  return context;
}

bool is_key(std::string_view key) {
  const auto lower_or_digit = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !key.empty() && key.size() <= 256 && lower_or_digit(key.front()) &&
         std::all_of(key.begin(), key.end(), [&](char c) {
           return lower_or_digit(c) || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
         });
}

bool is_value(std::string_view value) {
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~' && c != '='; });
}

// Members "key=value" behind commas; empty ones are allowed.
bool is_state(std::string_view text) {
  if (text.size() > kMostStateBytes) return false;
  std::set<std::string_view> keys;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view member = trimmed(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos || !is_key(member.substr(0, equals)) ||
        !is_value(member.substr(equals + 1)) || !keys.insert(member.substr(0, equals)).second) {
      return false;
    }
  }
  return keys.size() <= kMostMembers;
}

}  // namespace

TraceContext read_trace_context(const HeaderList& headers) {
  std::optional<TraceContext> context;
  std::string state;
  size_t parents = 0;
  for (const auto& [name, value] : headers) {
    if (equal_ignoring_case(name, "traceparent")) {
      ++parents;
      context = read_parent(value);
    } else if (equal_ignoring_case(name, "tracestate")) {
      // Several headers are one list.
      if (!state.empty()) state += ',';
      state += value;
    }
  }
  if (parents != 1 || !context) return {};
  context->span_id = random_digits(kSpanIdDigits);
  if (is_state(state)) context->state = std::move(state);
  return *std::move(context);
}

TraceContext new_trace_context() {
  TraceContext context;
  context.trace_id = random_digits(kTraceIdDigits);
  context.span_id = random_digits(kSpanIdDigits);
  context.sampled = context.random = true;
  return context;
}

std::string trace_header(const TraceContext& context) {
  return fmt::format("00-{}-{}-{:02x}", context.trace_id, context.span_id,
                     (context.sampled ? kSampled : 0) | (context.random ? kRandom : 0));
}

std::string new_span_id() {
  return random_digits(kSpanIdDigits);
}

}  // namespace kvasir
