// Sends spans to a collector, by OTLP over HTTP with JSON.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "server/http_caller.h"
#include "server/metrics_text.h"
#include "server/traces/span.h"

namespace kvasir {

struct SpanExporterOptions {
  std::string endpoint;  // a URL; /v1/traces is added, unless it ends so
  std::string service_name = "kvasir";
  std::string version;             // of the service
  size_t max_queued_spans = 8192;  // further ones are dropped
  size_t max_batch_spans = 512;
  Nanos interval = kNanosPerSecond;      // in which a batch gathers
  Nanos timeout = 10 * kNanosPerSecond;  // of one try
  Nanos first_pause = kNanosPerSecond;   // before the second try; doubled each time
  Nanos longest_pause = 30 * kNanosPerSecond;
  int tries = 5;                              // of a batch
  Nanos flush_timeout = 2 * kNanosPerSecond;  // for what is left at the end
};

// Thread-safe. A thread of its own sends; nothing that a collector does is noticed by requests.
class SpanExporter {
 public:
  // kInvalidArgument: one line that says what is wrong with the endpoint.
  static Result<std::unique_ptr<SpanExporter>> start(SpanExporterOptions options);
  // Sends what is left, for at most flush_timeout.
  ~SpanExporter();

  // All of them, or none if the queue has too little room, or there is no memory. Throws nothing.
  void add(std::vector<Span> spans);
  // Counts spans that could not be made.
  void count_dropped(uint64_t spans) { dropped_ += spans; }

  uint64_t exported() const { return exported_; }  // taken by the collector
  uint64_t dropped() const { return dropped_; }    // no room in the queue, or no memory
  uint64_t failed() const { return failed_; }      // refused by the collector, or not sent in all tries
  std::vector<OutsideMetric> metrics() const;

 private:
  SpanExporter(SpanExporterOptions options, SpanAttributes resource);

  void run();
  // Empty: it is time to end.
  std::vector<Span> next_batch();
  void send(const std::vector<Span>& batch);
  // How many of the batch were taken; nothing: they may be sent again, after `pause`.
  std::optional<uint64_t> try_once(const std::string& body, uint64_t spans, Nanos timeout, Nanos& pause);
  void say_trouble(const std::string& what, const char* outcome);
  void say_recovery();
  // False: it is time to end.
  bool pause_for(Nanos pause);
  bool flush_is_over() const;

  const SpanExporterOptions options_;
  const SpanAttributes resource_;
  const MonotonicClock clock_;
  std::unique_ptr<HttpCaller> poster_;  // used by the thread

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Span> queue_;             // guarded by mutex_
  bool stopping_ = false;              // guarded by mutex_
  std::atomic<Nanos> flush_until_{0};  // 0: it is not stopping
  std::atomic<uint64_t> exported_{0}, dropped_{0}, failed_{0};
  Random jitter_;  // used by the thread, as the next
  bool in_trouble_ = false;
  std::thread thread_;
};

}  // namespace kvasir
