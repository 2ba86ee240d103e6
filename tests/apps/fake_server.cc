#include "apps/fake_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

class SocketConnection final : public FakeConnection {
 public:
  explicit SocketConnection(tcp::socket socket) : socket_(std::move(socket)) {
    beast::error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void raw(std::string_view bytes) override {
    beast::error_code ignored;
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), ignored);
  }

  void hold() override {
    beast::error_code ec;
    char byte = 0;
    while (!ec) socket_.read_some(asio::buffer(&byte, 1), ec);
  }

  bool read(FakeRequest* out) {
    beast::error_code ec;
    http::request_parser<http::string_body> parser;
    parser.body_limit(uint64_t{64} << 20);
    http::read(socket_, buffer_, parser, ec);
    if (ec) return false;
    const auto& request = parser.get();
    const auto text = [](auto view) { return std::string(view.data(), view.size()); };
    out->method = text(request.method_string());
    out->path = text(request.target());
    out->authorization = text(request[http::field::authorization]);
    out->body = request.body();
    return true;
  }

  void close() {
    beast::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

 private:
  tcp::socket socket_;
  beast::flat_buffer buffer_;
};

}  // namespace

void FakeConnection::answer(int status, std::string_view type, std::string_view body) {
  raw(fmt::format("HTTP/1.1 {} Scripted\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n{}", status, type,
                  body.size(), body));
}

void FakeConnection::begin_stream() {
  raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: "
      "chunked\r\n\r\n");
}

void FakeConnection::chunk(std::string_view bytes) {
  raw(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
}

struct FakeServer::State {
  State(Script s, bool m)
      : script(std::move(s)), script_models(m), acceptor(io, {asio::ip::address_v4::loopback(), 0}) {}

  void accept_all() {
    while (true) {
      tcp::socket socket(io);
      beast::error_code ec;
      acceptor.accept(socket, ec);
      if (stopping) return;
      if (ec) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      connections.emplace_back([this, s = std::move(socket)]() mutable { serve(std::move(s)); });
    }
  }

  void serve(tcp::socket socket) {
    SocketConnection connection(std::move(socket));
    FakeRequest request;
    if (!connection.read(&request)) return;
    if (request.method == "GET" && !script_models) {
      connection.answer(200, "application/json", R"({"object":"list","data":[{"id":"fake/tiny"}]})");
    } else if (request.method == "POST") {
      enter(&request);
      script(request, connection);
      const std::lock_guard<std::mutex> lock(mutex);
      --running;
    } else {
      script(request, connection);
    }
    connection.close();
  }

  void enter(FakeRequest* request) {
    const std::lock_guard<std::mutex> lock(mutex);
    request->number = posts++;
    max_running = std::max(max_running, ++running);
  }

  const Script script;
  const bool script_models;
  asio::io_context io;
  tcp::acceptor acceptor;
  std::atomic<bool> stopping{false};
  std::thread accepting;

  mutable std::mutex mutex;  // guards what follows
  std::vector<std::thread> connections;
  int64_t posts = 0;
  int64_t running = 0;
  int64_t max_running = 0;
};

FakeServer::FakeServer(Script script, bool script_models)
    : state_(std::make_unique<State>(std::move(script), script_models)) {
  state_->accepting = std::thread([this] { state_->accept_all(); });
}

FakeServer::~FakeServer() {
  state_->stopping = true;
  // A connection of our own wakes the accepting thread.
  tcp::socket waker(state_->io);
  beast::error_code ignored;
  waker.connect(state_->acceptor.local_endpoint(), ignored);
  state_->accepting.join();
  for (std::thread& connection : state_->connections) connection.join();
}

std::string FakeServer::port() const {
  return std::to_string(state_->acceptor.local_endpoint().port());
}

std::string FakeServer::base_url() const {
  return "http://127.0.0.1:" + port();
}

int64_t FakeServer::posts() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->posts;
}

int64_t FakeServer::max_concurrent() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->max_running;
}

std::string text_event(std::string_view text) {
  return fmt::format("data: {{\"choices\":[{{\"index\":0,\"text\":\"{}\",\"finish_reason\":null}}]}}\n\n",
                     text);
}

std::string finish_event() {
  return "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n";
}

std::string usage_event(int64_t prompt_tokens, int64_t completion_tokens) {
  return fmt::format(
      "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{}}}}}\n\n",
      prompt_tokens, completion_tokens);
}

void stream_plainly(FakeConnection& connection, int64_t chunks) {
  connection.begin_stream();
  for (int64_t i = 0; i < chunks; ++i) connection.chunk(text_event(" word"));
  connection.chunk(finish_event());
  connection.chunk(usage_event(7, chunks));
  connection.chunk(kDoneEvent);
  connection.end_stream();
}

}  // namespace kvasir
