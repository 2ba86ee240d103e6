// A client over a raw socket: it sends any bytes, in any pieces.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::test {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

// Every read gives up after 10 s. Not thread-safe.
class HttpClient {
 public:
  // From 127.0.0.1, or another address of this machine.
  explicit HttpClient(uint16_t port, int receive_buffer_bytes = 0, const char* from = nullptr);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False: the server has closed.
  bool send(std::string_view bytes);
  // Reads one answer, whole; nothing if the connection ends first.
  std::optional<HttpAnswer> receive(bool head_only = false);
  // Reads until what was received, framing included, contains `text` so many times; false at the end or after
  // 10 s. REQUIRES: !text.empty()
  bool receive_until(std::string_view text, int times = 1);
  // Reads to the end of the connection.
  std::string receive_all();
  // True if the server closes within `ms`.
  bool closed_within(int ms);
  // Says that nothing more comes, and goes on reading.
  void shutdown_send();
  void close();

  // Whether anything has come so far.
  bool has_received() const { return has_received_; }
  // The end of the connection was a reset, which no program takes for the end of an answer.
  bool was_reset() const { return was_reset_; }

  // What was received and not used by receive().
  const std::string& received() const { return buffer_; }

 private:
  bool fill(int timeout_ms = 60'000);
  bool need(size_t bytes);
  std::optional<std::string> line();

  int fd_ = -1;
  bool has_received_ = false;
  bool was_reset_ = false;
  std::string buffer_;
};

std::string get(std::string_view path, std::string_view extra_headers = "");
std::string post(std::string_view path, std::string_view body, std::string_view extra_headers = "");

// The payloads of the `data:` lines of an event stream, whose events may have names.
std::vector<std::string> events(std::string_view stream);

}  // namespace kvasir::test
