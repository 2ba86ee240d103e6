#include "server/traces/request_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace kvasir {
namespace {

// As names of a span and of an attribute; what clients make up would be too many names.
std::string known_method(std::string_view method) {
  for (const std::string_view known : {"GET", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS"}) {
    if (method == known) return std::string(known);
  }
  return "_OTHER";
}

int64_t signed_of(uint64_t value) {
  return static_cast<int64_t>(value);
}

void add_gen_ai(SpanAttributes& a, const ExchangeRecord& record) {
  const GenerationRecord& g = record.generation;
  if (*g.operation == '\0') return;
  a.emplace_back("gen_ai.operation.name", std::string(g.operation));
  a.emplace_back("gen_ai.provider.name", std::string("kvasir"));
  a.emplace_back("gen_ai.request.model", g.model);
  a.emplace_back("gen_ai.response.model", g.model);
  if (g.choices > 1) a.emplace_back("gen_ai.request.choice.count", signed_of(g.choices));
  if (g.max_tokens > 0) a.emplace_back("gen_ai.request.max_tokens", signed_of(g.max_tokens));
  a.emplace_back("gen_ai.usage.input_tokens", signed_of(g.prompt_tokens));
  a.emplace_back("gen_ai.usage.cache_read.input_tokens", signed_of(g.cached_tokens));
  if (std::string_view(g.operation) == "embeddings") return;
  a.emplace_back("gen_ai.request.temperature", g.temperature);
  a.emplace_back("gen_ai.request.top_p", g.top_p);
  a.emplace_back("gen_ai.usage.output_tokens", signed_of(g.output_tokens));
  if (!g.finish_reasons.empty()) a.emplace_back("gen_ai.response.finish_reasons", g.finish_reasons);
  if (g.first_token != 0) {
    a.emplace_back("gen_ai.response.time_to_first_chunk", to_seconds(g.first_token - record.begin));
  }
}

SpanAttributes server_attributes(const EndedRequest& r) {
  const ExchangeRecord& record = r.record;
  SpanAttributes a;
  a.emplace_back("http.request.method", known_method(r.method));
  a.emplace_back("http.route", std::string(r.route));
  a.emplace_back("url.path", std::string(r.path));
  a.emplace_back("http.response.status_code", int64_t{record.status});
  const size_t colon = r.peer.rfind(':');
  a.emplace_back("client.address", std::string(r.peer.substr(0, colon)));
  a.emplace_back("kvasir.request_id", std::string(r.id));
  a.emplace_back("kvasir.key", std::string(r.key));
  a.emplace_back("kvasir.end", std::string(name(record.end)));
  a.emplace_back("http.response.size", signed_of(record.sent_bytes));
  add_gen_ai(a, record);
  if (!record.error.empty()) {
    a.emplace_back("error.type", record.error);
  } else if (record.end != RequestEnd::kComplete) {
    a.emplace_back("error.type", std::string(name(record.end)));
  }
  return a;
}

// Makes spans of one request.
class Maker {
 public:
  // The clocks of the request and of the world, at its end.
  Maker(const EndedRequest& request, int64_t time_ns)
      : trace_(request.record.trace), to_unix_(time_ns - request.now), now_(request.now) {}

  Span span(std::string name, Nanos begin, Nanos end) const {
    Span s;
    s.trace_id = trace_.trace_id;
    s.span_id = new_span_id();
    s.parent_id = trace_.span_id;
    s.trace_state = trace_.state;
    s.name = std::move(name);
    s.begin_ns = begin + to_unix_;
    s.end_ns = (end == 0 ? now_ : std::max(begin, end)) + to_unix_;
    return s;
  }

  // `choice` counts prompts and choices from 0.
  void add_stages(std::vector<Span>& out, const RequestTimes& t, int64_t choice) const {
    const size_t first = out.size();
    if (t.arrival != 0) out.push_back(span("queue", t.arrival, t.first_run != 0 ? t.first_run : t.end));
    if (t.first_run != 0)
      out.push_back(span("prefill", t.first_run, t.first_token != 0 ? t.first_token : t.end));
    if (t.first_token != 0) {
      out.push_back(span("decode", t.first_token, t.end));
      out.back().attributes.emplace_back("kvasir.preemptions", int64_t{t.preemptions});
    }
    for (const RequestTimes::Stall& stall : t.stalls) out.push_back(span("stall", stall.begin, stall.end));
    for (size_t i = first; i < out.size(); ++i) out[i].attributes.emplace_back("kvasir.choice", choice);
  }

 private:
  const TraceContext& trace_;
  const int64_t to_unix_;
  const Nanos now_;
};

}  // namespace

std::vector<Span> request_spans(const EndedRequest& r, int64_t time_ns) {
  const ExchangeRecord& record = r.record;
  const Maker maker(r, time_ns);
  std::vector<Span> spans;
  Span server = maker.span(fmt::format("{} {}", known_method(r.method), r.route), record.begin, r.now);
  server.span_id = record.trace.span_id;
  server.parent_id = record.trace.parent_id;
  server.kind = Span::Kind::kServer;
  server.remote_parent = !record.trace.parent_id.empty();
  server.attributes = server_attributes(r);
  // What is wrong with a request is its client's business.
  server.failed = record.status >= 500 || record.end == RequestEnd::kFailed;
  spans.push_back(std::move(server));
  for (const auto& [index, timeline] : record.generation.timelines) {
    maker.add_stages(spans, timeline->times(), static_cast<int64_t>(index));
  }
  return spans;
}

}  // namespace kvasir
