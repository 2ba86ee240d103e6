#include "apps/simulate/catalog/price.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/simulate/catalog/catalog_files.h"
#include "base/file.h"

namespace kvasir {
namespace {

enum Column {
  kPrefill,
  kHistory,
  kChunks,
  kDecode,
  kContext,
  kSampled,
  kProjected,
  kQueries,
  kTokens,
  kColumns
};
constexpr std::array<std::string_view, kColumns> kNames = {"prefill_rows", "history",        "chunks",
                                                           "decode_rows",  "decode_context", "sampled",
                                                           "projected",    "remote_queries", "remote_tokens"};
constexpr double kMostChunks = 100000;

using Values = std::array<std::optional<double>, kColumns>;

std::string_view trimmed(std::string_view s) {
  const size_t begin = s.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(by, begin), text.size());
    out.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

Result<std::vector<Column>> read_header(std::string_view line, const std::string& origin, size_t number) {
  std::vector<Column> out;
  for (const std::string_view name : split(line, ',')) {
    const auto it = std::find(kNames.begin(), kNames.end(), name);
    if (it == kNames.end()) {
      return error(ErrorCode::kInvalidArgument, "{}:{}: column '{}': take any of {}", origin, number, name,
                   fmt::join(kNames, ", "));
    }
    const auto column = static_cast<Column>(it - kNames.begin());
    if (std::find(out.begin(), out.end(), column) != out.end()) {
      return error(ErrorCode::kInvalidArgument, "{}:{}: column '{}' is there twice", origin, number, name);
    }
    out.push_back(column);
  }
  return out;
}

Result<Values> read_line(std::string_view line, const std::vector<Column>& columns, const std::string& origin,
                         size_t number) {
  const std::vector<std::string_view> cells = split(line, ',');
  if (cells.size() != columns.size()) {
    return error(ErrorCode::kInvalidArgument, "{}:{}: {} values under {} columns", origin, number,
                 cells.size(), columns.size());
  }
  Values out;
  for (size_t i = 0; i < cells.size(); ++i) {
    double value = 0;
    const char* end = cells[i].data() + cells[i].size();
    const auto [parsed, wrong] = std::from_chars(cells[i].data(), end, value);
    if (wrong != std::errc() || parsed != end || !(value >= 0) || !std::isfinite(value)) {
      return error(ErrorCode::kInvalidArgument, "{}:{}: {} is '{}'; take a number of 0 or more", origin,
                   number, kNames[columns[i]], cells[i]);
    }
    out[columns[i]] = value;
  }
  if (out[kChunks].value_or(1) > kMostChunks ||
      std::floor(out[kChunks].value_or(1)) != out[kChunks].value_or(1)) {
    return error(ErrorCode::kInvalidArgument, "{}:{}: chunks is {}; take a whole number up to {}", origin,
                 number, *out[kChunks], kMostChunks);
  }
  if (out[kContext].value_or(0) < out[kDecode].value_or(0)) {
    return error(ErrorCode::kInvalidArgument,
                 "{}:{}: decode_context below decode_rows: a row attends to itself", origin, number);
  }
  return out;
}

StepLoad load_of_values(const Values& v) {
  StepLoad out;
  if (v[kPrefill].value_or(0) > 0) {
    out.chunks.assign(static_cast<size_t>(v[kChunks].value_or(1)), {*v[kPrefill], v[kHistory].value_or(0)});
  }
  out.decode_rows = v[kDecode].value_or(0);
  out.decode_context = v[kContext].value_or(0);
  out.sampled = v[kSampled].value_or(static_cast<double>(out.chunks.size()) + out.decode_rows);
  out.projected = v[kProjected].value_or(0);
  return out;
}

}  // namespace

Result<std::string> price_text(const std::string& text, const std::string& origin, const DeviceTimes& times) {
  std::vector<Column> columns;
  std::string out;
  size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    if (columns.empty()) {
      KV_ASSIGN_OR_RETURN(columns, read_header(line, origin, number));
      out += fmt::format(
          "{},linear_ms,attention_ms,elementwise_ms,collectives_ms,output_ms,projection_ms,remote_ms,engine_"
          "ms,"
          "total_ms\n",
          line);
      continue;
    }
    KV_ASSIGN_OR_RETURN(const Values values, read_line(line, columns, origin, number));
    const StepParts p = times.parts(load_of_values(values));
    const double remote = times.model().layers * times.remote_attention_seconds(values[kQueries].value_or(0),
                                                                                values[kTokens].value_or(0));
    const std::array<double, 9> seconds = {p.linear,      p.attention, p.elementwise,
                                           p.collectives, p.output,    p.projection,
                                           remote,        p.engine,    p.total() + remote};
    out += line;
    for (const double s : seconds) out += fmt::format(",{:.6g}", s * 1e3);
    out += '\n';
  }
  if (columns.empty()) return error(ErrorCode::kInvalidArgument, "{}: no header that names columns", origin);
  return out;
}

Result<std::string> price_steps(const std::string& csv_path, const DeviceTimes& times) {
  KV_ASSIGN_OR_RETURN(const std::string text, read_file(csv_path));
  return price_text(text, csv_path, times);
}

}  // namespace kvasir
