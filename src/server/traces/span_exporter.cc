#include "server/traces/span_exporter.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <optional>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/patiently.h"
#include "server/http_message.h"
#include "server/traces/otlp_json.h"

namespace kvasir {
namespace {

constexpr std::string_view kPath = "/v1/traces";
// However long a collector asks for, it is tried again after this.
constexpr int kLongestRetryAfter = 3600;  // seconds

// What becomes of spans.
constexpr const char* kTriedAgain =
    "spans are sent again, at most a few times, and those that find no room meanwhile are dropped";
constexpr const char* kRefused = "it is not asked again for these spans, which are lost";

// Those statuses after which OTLP has a client try again. All others mean that it must not.
bool may_try_again(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

std::string this_host() {
  char host[256] = "";
  return gethostname(host, sizeof(host) - 1) == 0 ? host : "";
}

}  // namespace

SpanExporter::SpanExporter(SpanExporterOptions options, SpanAttributes resource)
    : options_(std::move(options)), resource_(std::move(resource)), jitter_(std::random_device{}()) {}

Result<std::unique_ptr<SpanExporter>> SpanExporter::start(SpanExporterOptions options) {
  KV_ASSIGN_OR_RETURN(HttpUrl url, parse_http_url(options.endpoint));
  if (!url.path.ends_with(kPath)) {
    while (url.path.ends_with('/')) url.path.pop_back();
    url.path += kPath;
  }
  SpanAttributes resource = {{"service.name", options.service_name},
                             {"service.version", options.version},
                             {"service.instance.id", secret_hex_id()},
                             {"host.name", this_host()},
                             {"process.pid", int64_t{getpid()}}};
  std::unique_ptr<SpanExporter> exporter(new SpanExporter(std::move(options), std::move(resource)));
  KV_ASSIGN_OR_RETURN(exporter->poster_, HttpCaller::create(std::move(url), [e = exporter.get()] {
                        return e->flush_is_over();
                      }));
  exporter->thread_ = std::thread([e = exporter.get()] { e->run(); });
  return exporter;
}

SpanExporter::~SpanExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    flush_until_ = clock_.now() + options_.flush_timeout;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SpanExporter::add(std::vector<Span> spans) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() + spans.size() > options_.max_queued_spans) {
      dropped_ += spans.size();
      return;
    }
    const size_t before = queue_.size();
    try {
      std::move(spans.begin(), spans.end(), std::back_inserter(queue_));
    } catch (const std::bad_alloc&) {
      while (queue_.size() > before) queue_.pop_back();
      dropped_ += spans.size();
      return;
    }
  }
  wake_.notify_all();
}

std::vector<OutsideMetric> SpanExporter::metrics() const {
  return {{"trace_spans_exported_total", "counter", static_cast<double>(exported_),
           "Spans that the collector of traces has taken."},
          {"trace_spans_dropped_total", "counter", static_cast<double>(dropped_),
           "Spans that were not sent because too many waited for the collector, or memory was short."},
          {"trace_spans_failed_total", "counter", static_cast<double>(failed_),
           "Spans that the collector refused, or that it could not be given in several tries."}};
}

bool SpanExporter::flush_is_over() const {
  const Nanos until = flush_until_;
  return until != 0 && clock_.now() >= until;
}

void SpanExporter::run() {
  for (;;) {
    const std::vector<Span> batch = patiently([this] { return next_batch(); });
    if (batch.empty()) return;
    try {
      send(batch);
    } catch (const std::exception& e) {
      failed_ += batch.size();
      log_error("traces: {} spans are lost: {}", batch.size(), e.what());
    }
  }
}

std::vector<Span> SpanExporter::next_batch() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
  wake_.wait_for(lock, std::chrono::nanoseconds(options_.interval),
                 [this] { return stopping_ || queue_.size() >= options_.max_batch_spans; });
  const size_t count = std::min(queue_.size(), options_.max_batch_spans);
  std::vector<Span> batch(std::move_iterator(queue_.begin()),
                          std::move_iterator(queue_.begin() + static_cast<ptrdiff_t>(count)));
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count));
  return batch;
}

void SpanExporter::send(const std::vector<Span>& batch) {
  const std::string body = otlp_json(batch, resource_, options_.version);
  Nanos next_pause = options_.first_pause;
  for (int i = 0; i < options_.tries && !flush_is_over(); ++i) {
    // Many servers shall not come back at the same time.
    const Nanos half = next_pause / 2;
    Nanos pause = half + static_cast<Nanos>(jitter_.unit() * static_cast<double>(half));
    const std::optional<uint64_t> taken = try_once(body, batch.size(), options_.timeout, pause);
    if (taken) {
      exported_ += *taken;
      failed_ += batch.size() - *taken;
      return;
    }
    next_pause = std::min(2 * next_pause, options_.longest_pause);
    if (i + 1 < options_.tries && !pause_for(pause)) break;
  }
  failed_ += batch.size();
}

std::optional<uint64_t> SpanExporter::try_once(const std::string& body, uint64_t spans, Nanos timeout,
                                               Nanos& pause) {
  const Result<HttpCallerReply> answer = poster_->post(body, timeout);
  if (!answer.ok()) {
    say_trouble(answer.status().message(), kTriedAgain);
    return std::nullopt;
  }
  if (answer->status >= 200 && answer->status < 300) {
    say_recovery();
    return spans - std::min(spans, rejected_spans(answer->body));
  }
  const bool again = may_try_again(answer->status);
  say_trouble(fmt::format("it answers {}", answer->status), again ? kTriedAgain : kRefused);
  if (!again) return 0;
  if (answer->retry_after_s > 0) {
    pause = Nanos{std::min(answer->retry_after_s, kLongestRetryAfter)} * kNanosPerSecond;
  }
  return std::nullopt;
}

void SpanExporter::say_trouble(const std::string& what, const char* outcome) {
  if (std::exchange(in_trouble_, true)) return;
  log_warning("traces: the collector at {}: {}; {}", options_.endpoint, what, outcome);
}

void SpanExporter::say_recovery() {
  if (std::exchange(in_trouble_, false)) log_info("traces: the collector takes spans again");
}

bool SpanExporter::pause_for(Nanos pause) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::nanoseconds(pause), [this] { return stopping_; });
}

}  // namespace kvasir
