// Each allocation of the exporter of spans fails once: it lives, and each span is counted.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memory/failing_new.h"
#include "server/traces/span_exporter.h"

namespace kvasir::test {
namespace {

// With texts that take memory of their own.
std::vector<Span> some_spans() {
  Span span;
  span.trace_id = std::string(32, 'a');
  span.span_id = std::string(16, 'b');
  span.name = "a span with a name of some length";
  span.attributes = {{"http.route", std::string("/v1/chat/completions of some length")},
                     {"gen_ai.usage.input_tokens", int64_t{7}},
                     {"gen_ai.response.finish_reasons", std::vector<std::string>{"stop", "length"}}};
  return {3, span};
}

uint64_t counted(const SpanExporter& exporter) {
  return exporter.exported() + exporter.dropped() + exporter.failed();
}

TEST(TracesMemory, EachAllocationOfTheExporterMayFail) {
  const Spared spared;
  SpanExporterOptions options;
  options.endpoint = "http://127.0.0.1:1";  // refuses connections: each batch comes to its end
  options.interval = kNanosPerMilli;
  options.tries = 1;
  const std::unique_ptr<SpanExporter> exporter = SpanExporter::start(options).value();
  uint64_t added = 0, k = 1;
  for (;; k = next_failing(k)) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    std::vector<Span> spans = some_spans();
    fail_allocations(k, 1, Counted::kEveryThread);
    {
      const Enlisted enlisted;
      exporter->add(std::move(spans));
    }
    added += 3;
    for (int i = 0; i < 10'000 && counted(*exporter) < added; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const Failures failures = fail_no_more();
    ASSERT_EQ(counted(*exporter), added);
    if (!failures.any()) break;
  }
  EXPECT_GT(k, 50u);
  EXPECT_EQ(exporter->exported(), 0u);
}

}  // namespace
}  // namespace kvasir::test
