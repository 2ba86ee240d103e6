// A collector of traces that answers as a test says.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace kvasir::test {

// Thread-safe. On 127.0.0.1, one connection after the other.
class Collector {
 public:
  // What to answer to the `index`th POST; empty: nothing, the connection stays open until the test ends.
  using Answer = std::function<std::string(size_t index)>;

  explicit Collector(Answer answer = {});
  ~Collector();

  std::string url() const;
  // The heads and bodies of the POSTs that came so far.
  std::vector<std::string> heads() const;
  std::vector<nlohmann::json> bodies() const;
  // All spans of them.
  std::vector<nlohmann::json> spans() const;
  // Waits until so many POSTs, or spans, have come; false after 10 s.
  bool wait_posts(size_t count) const;
  bool wait_spans(size_t count) const;

 private:
  void run();
  void serve(int connection);

  const Answer answer_;
  int listening_ = -1;
  uint16_t port_ = 0;
  int stop_[2] = {-1, -1};  // a pipe
  mutable std::mutex mutex_;
  std::vector<std::string> heads_;   // guarded by mutex_
  std::vector<std::string> bodies_;  // guarded by mutex_
  std::vector<int> hanging_;         // used by the thread
  std::thread thread_;
};

// Whether the condition holds within 10 s.
bool eventually(const std::function<bool()>& condition);

// "HTTP/1.1 200 OK" with a body, and further headers as whole lines.
std::string http_answer(const std::string& status, const std::string& body = "{}",
                        const std::string& headers = "");

// The value of an attribute of a span or a resource, in whatever type; null: it has none.
nlohmann::json attribute(const nlohmann::json& of, const std::string& name);

}  // namespace kvasir::test
