#include "server/traces/otlp_json.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/untrusted_text.h"
#include "server/json_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int kStatusError = 2;  // STATUS_CODE_ERROR
// SpanFlags: the low byte is that of the W3C, and these say whether the parent is in another process.
constexpr uint32_t kSampledSpan = 1, kHasIsRemote = 0x100, kIsRemote = 0x200;
constexpr int kMostDepth = 16;  // of the collector's answer

struct ValueJson {
  json operator()(const std::string& v) const { return {{"stringValue", v}}; }
  // 64 bits are text, since a number of JSON may have only 53.
  json operator()(int64_t v) const { return {{"intValue", std::to_string(v)}}; }
  json operator()(double v) const { return {{"doubleValue", v}}; }
  json operator()(const std::vector<std::string>& v) const {
    json values = json::array();
    for (const std::string& text : v) values.push_back({{"stringValue", text}});
    return {{"arrayValue", {{"values", std::move(values)}}}};
  }
};

json attributes_json(const SpanAttributes& attributes) {
  json list = json::array();
  for (const auto& [name, value] : attributes) {
    list.push_back({{"key", name}, {"value", std::visit(ValueJson(), value)}});
  }
  return list;
}

json span_json(const Span& span) {
  json out = {{"traceId", span.trace_id},
              {"spanId", span.span_id},
              {"name", span.name},
              {"kind", static_cast<int>(span.kind)},
              {"flags", kSampledSpan | kHasIsRemote | (span.remote_parent ? kIsRemote : 0)},
              {"startTimeUnixNano", std::to_string(span.begin_ns)},
              {"endTimeUnixNano", std::to_string(span.end_ns)},
              {"attributes", attributes_json(span.attributes)}};
  if (!span.parent_id.empty()) out["parentSpanId"] = span.parent_id;
  if (!span.trace_state.empty()) out["traceState"] = span.trace_state;
  if (span.failed) out["status"] = {{"code", kStatusError}};
  return out;
}

}  // namespace

std::string otlp_json(std::span<const Span> spans, const SpanAttributes& resource, std::string_view version) {
  json list = json::array();
  for (const Span& span : spans) list.push_back(span_json(span));
  json scope_spans = {{"scope", {{"name", "kvasir"}, {"version", version}}}, {"spans", std::move(list)}};
  json resource_spans = {{"resource", {{"attributes", attributes_json(resource)}}},
                         {"scopeSpans", json::array({std::move(scope_spans)})}};
  return dump_json({{"resourceSpans", json::array({std::move(resource_spans)})}});
}

uint64_t rejected_spans(std::string_view answer) {
  if (nests_deeper(answer, kMostDepth)) return 0;
  const json parsed = json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("partialSuccess")) return 0;
  const json& partial = parsed["partialSuccess"];
  if (!partial.is_object() || !partial.contains("rejectedSpans")) return 0;
  const json& rejected = partial["rejectedSpans"];
  if (rejected.is_number_unsigned()) return rejected.get<uint64_t>();
  if (!rejected.is_string()) return 0;
  return std::strtoull(rejected.get_ref<const std::string&>().c_str(), nullptr, 10);
}

}  // namespace kvasir
