#include "server/access_log.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include "base/clock.h"

namespace kvasir {
namespace {

constexpr size_t kMostPathBytes = 512;
constexpr size_t kMostMethodBytes = 32;
constexpr int kPollMs = 100;
constexpr Nanos kFlushTimeout = kNanosPerSecond;

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
    : path_(std::move(path)), format_(format), fd_(fd), thread_([this] { run(); }) {}

Result<std::unique_ptr<AccessLog>> AccessLog::open(std::string path, LogFormat format) {
  int fd = STDERR_FILENO;
  if (path != "-") {
    KV_ASSIGN_OR_RETURN(fd, open_to_append(path));
  }
  return std::unique_ptr<AccessLog>(new AccessLog(std::move(path), format, fd));
}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    give_up_at_ = MonotonicClock().now() + kFlushTimeout;
  }
  wake_.notify_all();
  thread_.join();
  if (!is_stderr()) close(fd_);
}

void AccessLog::add(const EndedRequest& request) {
  if (is_stderr() && !logs(LogLevel::kInfo)) return;
  std::string line = access_line(format_, unix_time_ns(), request);
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMostWaiting) {
      ++dropped_;
      return;
    }
    waiting_.push_back(std::move(line));
  }
  wake_.notify_all();
}

Status AccessLog::reopen() {
  if (is_stderr()) return {};
  KV_ASSIGN_OR_RETURN(const int fd, open_to_append(path_));
  // fd_ is the new file from here on, with no moment between in which it is none: the thread needs no lock.
  const bool replaced = dup3(fd, fd_, O_CLOEXEC) >= 0;
  const int why = errno;
  close(fd);
  if (!replaced) return error(ErrorCode::kIo, "--access-log {}: {}", path_, std::strerror(why));
  return {};
}

std::vector<OutsideMetric> AccessLog::metrics() const {
  return {
      {"access_log_lines_dropped_total", "counter", static_cast<double>(dropped_),
       "Lines of the access log that were not written, because its file or reader was too slow or full."}};
}

void AccessLog::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::string line = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const bool goes_on = write_line(line);
    lock.lock();
    if (goes_on) continue;
    dropped_ += waiting_.size();
    return;
  }
}

// False: it has given up. A pipe that polls as writable takes PIPE_BUF bytes at once, which no line exceeds,
// so that nothing here waits longer than it will.
bool AccessLog::write_line(const std::string& line) {
  for (;;) {
    const Nanos give_up_at = give_up_at_;
    if (give_up_at != 0 && MonotonicClock().now() >= give_up_at) break;
    pollfd writable{fd_, POLLOUT, 0};
    if (poll(&writable, 1, kPollMs) <= 0) continue;
    const std::array<iovec, 2> parts = {
        {{const_cast<char*>("\n"), torn_ ? size_t{1} : 0}, {const_cast<char*>(line.data()), line.size()}}};
    const size_t bytes = parts[0].iov_len + parts[1].iov_len;
    const ssize_t written = writev(fd_, parts.data(), parts.size());
    if (written != static_cast<ssize_t>(bytes)) ++dropped_;
    if (written > 0) torn_ = static_cast<size_t>(written) < bytes;
    return true;
  }
  ++dropped_;
  return false;
}

}  // namespace kvasir
