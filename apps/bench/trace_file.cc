#include "apps/bench/trace_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace kvasir {
namespace {

constexpr int64_t kMaxTraceLength = 10'000'000;
constexpr double kMostSeconds = 1e9;
constexpr size_t kMostTraceClasses = 100;

enum TraceColumn { kArrival, kPrompt, kOutput, kClass, kTraceColumns };
struct ColumnName {
  std::string_view name, other;
  bool needed;
};
constexpr std::array<ColumnName, kTraceColumns> kColumnNames = {{{"arrival", "arrival_s", false},
                                                                 {"prompt", "prompt_tokens", true},
                                                                 {"output", "output_tokens", true},
                                                                 {"class", "slo_class", false}}};
using Columns = std::array<std::optional<size_t>, kTraceColumns>;  // which field of a line each is

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
  if (header.starts_with("\xef\xbb\xbf")) header.remove_prefix(3);
  const std::vector<std::string_view> fields = fields_of(header);
  Columns columns{};
  for (size_t c = 0; c < kTraceColumns; ++c) {
    const auto found = std::find_if(fields.begin(), fields.end(), [&](std::string_view field) {
      return field == kColumnNames[c].name || field == kColumnNames[c].other;
    });
    if (found != fields.end()) {
      columns[c] = static_cast<size_t>(found - fields.begin());
    } else if (kColumnNames[c].needed) {
      return error(ErrorCode::kInvalidArgument,
                   "{}:1: no column '{}' (or '{}'); the first line must name the columns", name,
                   kColumnNames[c].name, kColumnNames[c].other);
    }
  }
  return columns;
}

// One line of the file, and what its errors begin with.
class Line {
 public:
  Line(std::string_view text, const std::string& name, int64_t number)
      : fields_(fields_of(text)), name_(name), number_(number) {}

  // kInvalidArgument: the line ends before it, or it is empty.
  Result<std::string_view> field(TraceColumn column, const Columns& columns) const {
    const size_t index = *columns[column];
    if (index < fields_.size() && !fields_[index].empty()) return fields_[index];
    return error(ErrorCode::kInvalidArgument, "{}:{}: the {} is missing", name_, number_,
                 kColumnNames[column].name);
  }

  Result<double> arrival(const Columns& columns) const {
    KV_ASSIGN_OR_RETURN(const std::string_view text, field(kArrival, columns));
    double seconds = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (problem == std::errc() && end == text.data() + text.size() && seconds >= 0 && seconds <= kMostSeconds)
      return seconds;
    return error(ErrorCode::kInvalidArgument,
                 "{}:{}: the arrival must be a number of seconds from 0 to {:g}, not '{}'", name_, number_,
                 kMostSeconds, text.substr(0, 40));
  }

  Result<int64_t> length(TraceColumn column, const Columns& columns) const {
    KV_ASSIGN_OR_RETURN(const std::string_view text, field(column, columns));
    int64_t tokens = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), tokens);
    if (problem == std::errc() && end == text.data() + text.size() && tokens >= 1 &&
        tokens <= kMaxTraceLength)
      return tokens;
    return error(ErrorCode::kInvalidArgument,
                 "{}:{}: the {} must be a whole number of 1 to {} tokens, not '{}'", name_, number_,
                 kColumnNames[column].name, kMaxTraceLength, text.substr(0, 40));
  }

  // The index of the class that the line names, which is added when it is new.
  Result<uint32_t> slo_class(const Columns& columns, std::vector<Trace::Class>* classes) const {
    KV_ASSIGN_OR_RETURN(const std::string_view text, field(kClass, columns));
    const auto found =
        std::find_if(classes->begin(), classes->end(), [&](const Trace::Class& c) { return c.name == text; });
    if (found != classes->end()) return static_cast<uint32_t>(found - classes->begin());
    if (classes->size() == kMostTraceClasses) {
      return error(ErrorCode::kInvalidArgument, "{}:{}: more than {} classes", name_, number_,
                   kMostTraceClasses);
    }
    classes->push_back({std::string(text), number_});
    return static_cast<uint32_t>(classes->size() - 1);
  }

 private:
  const std::vector<std::string_view> fields_;
  const std::string& name_;
  const int64_t number_;
};

Result<TraceRow> parse_row(const Line& line, const Columns& columns, std::vector<Trace::Class>* classes) {
  TraceRow row;
  if (columns[kArrival].has_value()) {
    KV_ASSIGN_OR_RETURN(row.arrival_s, line.arrival(columns));
  }
  KV_ASSIGN_OR_RETURN(row.lengths.prompt, line.length(kPrompt, columns));
  KV_ASSIGN_OR_RETURN(row.lengths.output, line.length(kOutput, columns));
  if (columns[kClass].has_value()) {
    KV_ASSIGN_OR_RETURN(row.slo_class, line.slo_class(columns, classes));
  }
  return row;
}

}  // namespace

Result<Trace> parse_trace(std::istream& in, const std::string& name) {
  std::string text;
  if (!std::getline(in, text)) return error(ErrorCode::kInvalidArgument, "{}: the file is empty", name);
  KV_ASSIGN_OR_RETURN(const Columns columns, columns_of(text, name));
  Trace trace;
  trace.has_arrivals = columns[kArrival].has_value();
  for (int64_t number = 2; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    KV_ASSIGN_OR_RETURN(const TraceRow row, parse_row(Line(text, name, number), columns, &trace.classes));
    if (!trace.rows.empty() && row.arrival_s < trace.rows.back().arrival_s) {
      return error(ErrorCode::kInvalidArgument,
                   "{}:{}: the arrival is before that of the line above; sort by it", name, number);
    }
    trace.rows.push_back(row);
  }
  if (in.bad()) return error(ErrorCode::kIo, "{}: reading failed", name);
  if (trace.rows.empty()) return error(ErrorCode::kInvalidArgument, "{}: no requests in it", name);
  return trace;
}

Result<Trace> load_trace(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(ErrorCode::kNotFound, "--dataset-path {}: cannot be opened", path);
  return parse_trace(in, path);
}

}  // namespace kvasir
