#include "server/access_log.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "base/clock.h"

namespace kvasir {
namespace {

constexpr size_t kMostPathBytes = 512;
constexpr size_t kMostMethodBytes = 32;

std::string_view or_dash(std::string_view text) {
  return text.empty() ? "-" : text;
}

Result<int> open_to_append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
  if (fd >= 0) return fd;
  return error(ErrorCode::kIo, "--access-log {}: cannot be written: {}", path, std::strerror(errno));
}

}  // namespace

const char* name(RequestEnd end) {
  switch (end) {
    case RequestEnd::kComplete:
      return "complete";
    case RequestEnd::kClientGone:
      return "client_gone";
    case RequestEnd::kSlowReader:
      return "slow_reader";
    case RequestEnd::kFailed:
      return "failed";
    case RequestEnd::kStopped:
      return "stopped";
  }
  return "";
}

void ExchangeRecord::add_timeline(GenerationRequest& request, size_t index) {
  if (!wants_times || request.timeline || index >= GenerationRecord::kMostTimelines) return;
  request.timeline = std::make_shared<RequestTimeline>();
  generation.timelines.push_back({index, request.timeline});
}

std::string access_line(LogFormat format, int64_t time_ns, const EndedRequest& r) {
  const ExchangeRecord& record = r.record;
  const GenerationRecord& g = record.generation;
  const std::set<std::string_view> reasons(g.finish_reasons.begin(), g.finish_reasons.end());
  const std::string finish = fmt::format("{}", fmt::join(reasons, ","));
  const double ttft_ms = g.first_token == 0 ? 0.0 : to_millis(g.first_token - record.begin);
  return format_log_line(format, LogLevel::kInfo, time_ns, "request",
                         {{"request_id", r.id},
                          {"key", or_dash(r.key)},
                          {"peer", or_dash(r.peer)},
                          {"method", or_dash(r.method.substr(0, kMostMethodBytes))},
                          {"path", or_dash(r.path.substr(0, kMostPathBytes))},
                          {"status", static_cast<uint64_t>(record.status)},
                          {"end", std::string_view(name(record.end))},
                          {"error", or_dash(record.error)},
                          {"finish_reason", or_dash(finish)},
                          {"prompt_tokens", g.prompt_tokens},
                          {"cached_tokens", g.cached_tokens},
                          {"output_tokens", g.output_tokens},
                          {"ttft_ms", ttft_ms},
                          {"duration_ms", to_millis(r.now - record.begin)},
                          {"bytes", record.sent_bytes},
                          {"trace_id", or_dash(record.trace.trace_id)}});
}

AccessLog::AccessLog(std::string path, LogFormat format, int fd)
    : path_(std::move(path)), format_(format), fd_(fd) {
  if (path_ != "-") file_.emplace(fd_);
}

Result<std::unique_ptr<AccessLog>> AccessLog::open(std::string path, LogFormat format) {
  int fd = STDERR_FILENO;
  if (path != "-") {
    KV_ASSIGN_OR_RETURN(fd, open_to_append(path));
  }
  return std::unique_ptr<AccessLog>(new AccessLog(std::move(path), format, fd));
}

AccessLog::~AccessLog() {
  if (!file_) return;
  file_.reset();
  close(fd_);
}

void AccessLog::add(const EndedRequest& request) noexcept {
  if (!file_ && !logs(LogLevel::kInfo)) return;
  try {
    std::string line = access_line(format_, unix_time_ns(), request);
    return file_ ? file_->add(std::move(line)) : write_log_line(std::move(line));
  } catch (const std::bad_alloc&) {
    return file_ ? file_->count_dropped() : count_lost_log_line();
  }
}

Status AccessLog::reopen() {
  if (!file_) return {};
  KV_ASSIGN_OR_RETURN(const int fd, open_to_append(path_));
  // fd_ is the new file from here on, with no moment between in which it is none: the thread needs no lock.
  const bool replaced = dup3(fd, fd_, O_CLOEXEC) >= 0;
  const int why = errno;
  close(fd);
  if (!replaced) return error(ErrorCode::kIo, "--access-log {}: {}", path_, std::strerror(why));
  return {};
}

uint64_t AccessLog::dropped() const {
  return file_ ? file_->dropped() : log_lines_dropped();
}

std::vector<OutsideMetric> AccessLog::metrics() const {
  return {
      {"access_log_lines_dropped_total", "counter", static_cast<double>(dropped()),
       "Lines of the access log that were not written, because its file or reader was too slow or full; on "
       "standard error, of all lines there."}};
}

}  // namespace kvasir
