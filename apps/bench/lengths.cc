#include "bench/lengths.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string_view>

#include "base/draws.h"

namespace kvasir {
namespace {

// Streams 0 and up of the seed belong to the prompts' words, and those from 2^40 on to the arrivals.
constexpr uint64_t kLengthStream = uint64_t{1} << 41;

// The deviations of the logarithms are those of the public ShareGPT lengths under Llama 2's tokenizer (1.34
// and 0.88 for conversations of at most 2,048 tokens). The means of the logarithms are solved so that the
// means of what is left after the cuts are Table 1's; the sample means are tested.
constexpr double kPromptLogMean = 4.2391;
constexpr double kPromptLogDeviation = 1.3;
constexpr double kOutputLogMean = 5.7435;
constexpr double kOutputLogDeviation = 0.9;
constexpr int64_t kMinPrompt = 16, kMaxPrompt = 3200, kMinOutput = 19, kMaxOutput = 991, kMaxTotal = 2048;

constexpr int64_t kMaxTraceLength = 10'000'000;
constexpr double kMostSeconds = 1e9;

enum Column { kArrival, kPrompt, kOutput, kColumns };
using Columns = std::array<size_t, kColumns>;  // which field of a line each is

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t comma = line.find(',');
    std::string_view field = line.substr(0, comma);
    constexpr std::string_view kBlank = " \t\r\"";
    while (!field.empty() && kBlank.find(field.front()) != std::string_view::npos) field.remove_prefix(1);
    while (!field.empty() && kBlank.find(field.back()) != std::string_view::npos) field.remove_suffix(1);
    fields.push_back(field);
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

Result<Columns> columns_of(std::string_view header, const std::string& name) {
  constexpr std::array<std::array<std::string_view, 2>, kColumns> kNames = {
      {{"arrival", "arrival_s"}, {"prompt", "prompt_tokens"}, {"output", "output_tokens"}}};
  if (header.starts_with("\xef\xbb\xbf")) header.remove_prefix(3);
  const std::vector<std::string_view> fields = fields_of(header);
  Columns columns{};
  for (size_t c = 0; c < kColumns; ++c) {
    const auto found = std::find_first_of(fields.begin(), fields.end(), kNames[c].begin(), kNames[c].end());
    if (found == fields.end()) {
      return error(ErrorCode::kInvalidArgument,
                   "{}:1: no column '{}' (or '{}'); the first line must name the columns", name, kNames[c][0],
                   kNames[c][1]);
    }
    columns[c] = static_cast<size_t>(found - fields.begin());
  }
  return columns;
}

template <typename T>
bool parse_field(const std::vector<std::string_view>& fields, size_t column, T* out) {
  if (column >= fields.size()) return false;
  const std::string_view text = fields[column];
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return problem == std::errc() && end == text.data() + text.size();
}

Result<TraceRow> parse_row(const std::string& line, const Columns& columns, const std::string& name,
                           int64_t number) {
  const std::vector<std::string_view> fields = fields_of(line);
  TraceRow row;
  if (!parse_field(fields, columns[kArrival], &row.arrival_s) || !(std::abs(row.arrival_s) <= kMostSeconds)) {
    return error(ErrorCode::kInvalidArgument, "{}:{}: the arrival must be a number of seconds, at most {:g}",
                 name, number, kMostSeconds);
  }
  for (auto [column, length] :
       {std::pair{kPrompt, &row.lengths.prompt}, std::pair{kOutput, &row.lengths.output}}) {
    if (!parse_field(fields, columns[column], length) || *length < 1 || *length > kMaxTraceLength) {
      return error(ErrorCode::kInvalidArgument, "{}:{}: the {} must be a whole number of 1 to {} tokens",
                   name, number, column == kPrompt ? "prompt" : "output", kMaxTraceLength);
    }
  }
  return row;
}

}  // namespace

int64_t scale_length(int64_t length, double scale) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(length) * scale));
}

Lengths sharegpt_lengths(uint64_t seed, int64_t number) {
  const uint64_t stream = kLengthStream + static_cast<uint64_t>(number);
  uint64_t counter = 0;
  const auto draw = [&](double mean, double deviation) {
    return static_cast<int64_t>(
        std::llround(std::exp(mean + deviation * normal_draw(seed, stream, &counter))));
  };
  while (true) {
    const Lengths l{draw(kPromptLogMean, kPromptLogDeviation), draw(kOutputLogMean, kOutputLogDeviation)};
    if (l.prompt >= kMinPrompt && l.prompt <= kMaxPrompt && l.output >= kMinOutput &&
        l.output <= kMaxOutput && l.prompt + l.output <= kMaxTotal) {
      return l;
    }
  }
}

Result<std::vector<TraceRow>> parse_trace(std::istream& in, const std::string& name) {
  std::string line;
  if (!std::getline(in, line)) return error(ErrorCode::kInvalidArgument, "{}: the file is empty", name);
  KV_ASSIGN_OR_RETURN(const Columns columns, columns_of(line, name));
  std::vector<TraceRow> rows;
  for (int64_t number = 2; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    KV_ASSIGN_OR_RETURN(const TraceRow row, parse_row(line, columns, name, number));
    if (!rows.empty() && row.arrival_s < rows.back().arrival_s) {
      return error(ErrorCode::kInvalidArgument,
                   "{}:{}: the arrival is before that of the line above; sort by it", name, number);
    }
    rows.push_back(row);
  }
  if (in.bad()) return error(ErrorCode::kIo, "{}: reading failed", name);
  if (rows.empty()) return error(ErrorCode::kInvalidArgument, "{}: no requests in it", name);
  return rows;
}

Result<std::vector<TraceRow>> load_trace(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(ErrorCode::kNotFound, "--dataset-path {}: cannot be opened", path);
  return parse_trace(in, path);
}

}  // namespace kvasir
