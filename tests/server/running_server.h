// A server on a free port over a fake backend.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "server/http_client.h"
#include "server/server.h"
#include "server/test_service.h"

namespace kvasir::test {

inline ServerOptions test_options() {
  ServerOptions options;
  options.port = 0;
  options.model_names = {"test-model", "alias"};
  options.version = "1.2.3";
  return options;
}

// Holds the service, then the server, so that the server ends first.
class RunningServer {
 public:
  explicit RunningServer(FakeBackend::Script script, ServerOptions options = test_options(),
                         bool ready = true, const OutputFormats& formats = {})
      : service_(std::move(script)) {
    service_.formats = formats;
    Result<std::unique_ptr<Server>> started = Server::start(std::move(options));
    KV_CHECK(started.ok(), "{}", started.status().message());
    server_ = std::move(started).value();
    if (ready) server_->serve(service_.service());
  }
  Server& operator*() { return *server_; }
  Server* operator->() { return server_.get(); }
  FakeBackend& backend() { return service_.backend; }
  ModelService service() { return service_.service(); }
  uint16_t port() const { return server_->port(); }

  // One request over a connection of its own.
  HttpAnswer ask(const std::string& request) {
    HttpClient client(port());
    EXPECT_TRUE(client.send(request));
    auto answer = client.receive(request.starts_with("HEAD"));
    EXPECT_TRUE(answer.has_value()) << request.substr(0, 200);
    return answer.value_or(HttpAnswer{});
  }

 private:
  TestService service_;
  std::unique_ptr<Server> server_;
};

constexpr const char* kChatPath = "/v1/chat/completions";

inline std::string chat_body(const std::string& fields = "") {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) + "}";
}

}  // namespace kvasir::test
