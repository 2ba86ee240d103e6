// What a handler may rely on, with a table of endpoints made for the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cctype>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/connection.h"
#include "server/http_client.h"
#include "server/running_server.h"

namespace kvasir::test {
namespace {

using boost::asio::ip::tcp;

bool becomes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

// Connections over a table, and the I/O thread that they need.
class TableServer final : public ServerContext {
 public:
  explicit TableServer(std::span<const Endpoint> table, ServerOptions server_options = test_options())
      : ServerContext(std::move(server_options)),
        acceptor_(io_, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0)) {
    endpoints = table;
    post = [this](std::function<void()> f) { boost::asio::post(io_, std::move(f)); };
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~TableServer() override {
    boost::asio::post(io_, [this] {
      acceptor_.close();
      const auto all = connections_;
      for (const auto& connection : all) connection->close();
    });
    stop_workers();
    thread_.join();
  }

  uint16_t port() const { return port_; }
  HttpAnswer ask(const std::string& request) {
    HttpClient client(port());
    EXPECT_TRUE(client.send(request));
    return client.receive().value_or(HttpAnswer{});
  }
  uint64_t answers(int status) const {
    const auto* at = std::find(kCountedStatuses.begin(), kCountedStatuses.end(), status);
    return counters->by_status[static_cast<size_t>(at - kCountedStatuses.begin())];
  }

  void request_started() override { ++active; }
  void request_ended() override { --active; }
  void forget(Connection* closed) override {
    boost::asio::post(io_, [this, closed] {
      std::erase_if(connections_, [closed](const auto& connection) { return connection.get() == closed; });
    });
  }

  std::atomic<int> active{0};

 private:
  void accept() {
    acceptor_.async_accept([this](boost::system::error_code ec, tcp::socket socket) {
      if (ec) return;
      connections_.push_back(std::make_shared<Connection>(std::move(socket), this));
      connections_.back()->start();
      accept();
    });
  }

  boost::asio::io_context io_{1};
  tcp::acceptor acceptor_;
  const uint16_t port_ = acceptor_.local_endpoint().port();
  std::vector<std::shared_ptr<Connection>> connections_;
  std::thread thread_;
};

HttpResponse text(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

void handle_echo(Exchange& exchange) {
  const Request& r = exchange.request();
  std::string out = fmt::format("{} {} '{}' {}", r.method, r.target, r.parameter, r.body);
  for (const auto& [name, value] : r.headers) out += fmt::format("|{}={}", name, value);
  exchange.respond(text(out + "|" + std::string(r.header("x-THING"))));
}

// Upper case, by a worker. "throw" throws; "throw later" throws on the I/O thread; "wait" waits until its
// client has disconnected.
std::atomic<int> waiting{0}, abandoned_jobs{0};
void handle_upper(Exchange& exchange) {
  exchange.run_on_worker([](std::string body, const std::atomic<bool>& abandoned) -> Exchange::Then {
    if (body == "throw") throw std::runtime_error("a fault of the handler");
    if (body == "wait") {
      ++waiting;
      if (becomes_true([&] { return abandoned.load(); })) ++abandoned_jobs;
    }
    for (char& c : body) c = static_cast<char>(std::toupper(c));
    return [body](Exchange& x) {
      if (body == "THROW LATER") throw std::runtime_error("a fault of the handler");
      x.respond(text(body));
    };
  });
}

// Streams one event, and then nothing until it is aborted.
struct Silence final : Activity {
  void on_drained() override { ++drained; }
  void abort() override { ++aborted; }
  static inline std::atomic<int> drained{0}, aborted{0};
};
void handle_silence(Exchange& exchange) {
  exchange.attach(std::make_shared<Silence>());
  exchange.begin_stream("data: broken off\n\n");
  exchange.stream(server_sent_event("only"));
}

// Streams one event, and throws when it was sent.
struct Fault final : Activity {
  void on_drained() override { throw std::runtime_error("a fault of the activity"); }
  void abort() override { ++aborted; }
  static inline std::atomic<int> aborted{0};
};
void handle_fault(Exchange& exchange) {
  exchange.attach(std::make_shared<Fault>());
  exchange.begin_stream("data: broken off\n\n");
  exchange.stream(server_sent_event("only"));
}

// Streams one event, and throws before it was sent.
void handle_fault_at_once(Exchange& exchange) {
  handle_silence(exchange);
  throw std::bad_alloc();
}

constexpr Endpoint kTable[] = {
    {"POST", "/echo", Endpoint::Key::kNoKey, 100, Endpoint::Model::kNoModel, handle_echo},
    {"GET", "/echo/*", Endpoint::Key::kNoKey, Endpoint::kNoBody, Endpoint::Model::kNoModel, handle_echo},
    {"PUT", "/upper", Endpoint::Key::kNeedsKey, Endpoint::kServerLimit, Endpoint::Model::kNoModel,
     handle_upper},
    {"GET", "/silence", Endpoint::Key::kNoKey, Endpoint::kNoBody, Endpoint::Model::kNoModel, handle_silence},
    {"GET", "/fault_at_once", Endpoint::Key::kNoKey, Endpoint::kNoBody, Endpoint::Model::kNoModel,
     handle_fault_at_once},
    {"GET", "/fault", Endpoint::Key::kNoKey, Endpoint::kNoBody, Endpoint::Model::kNoModel, handle_fault},
    {"POST", "/model", Endpoint::Key::kNoKey, 100, Endpoint::Model::kNeedsModel, handle_echo}};

std::string request_for(const std::string& method, const std::string& path, const std::string& body,
                        const std::string& headers = "") {
  return fmt::format("{} {} HTTP/1.1\r\nHost: t\r\n{}Content-Length: {}\r\n\r\n{}", method, path, headers,
                     body.size(), body);
}

TEST(Handler, SeesTheRequestAndMayAnswerAtOnce) {
  TableServer server(kTable);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(request_for("POST", "/echo?q=1", "hello", "X-Thing: a\r\n") +
                          "GET /echo/a%20b HTTP/1.1\r\nHost: t\r\n\r\n"));
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).body,
            "POST /echo?q=1 '' hello|Host=t|X-Thing=a|Content-Length=5|a");
  EXPECT_EQ(client.receive().value_or(HttpAnswer{}).body, "GET /echo/a%20b 'a b' |Host=t|");
  EXPECT_EQ(server.active, 0);
}

TEST(Handler, HasABodyWithinItsOwnLimit) {
  TableServer server(kTable);
  EXPECT_EQ(server.ask(request_for("POST", "/echo", std::string(100, 'x'))).status, 200);
  // Refused by its head: the body does not come.
  const HttpAnswer announced = server.ask("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 101\r\n\r\n");
  EXPECT_EQ(announced.status, 413);
  EXPECT_NE(announced.body.find("larger than 100 bytes"), std::string::npos) << announced.body;
  EXPECT_EQ(announced.headers.at("connection"), "close");
  const std::string chunk = "33\r\n" + std::string(0x33, 'x') + "\r\n";
  const std::string chunked = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk;
  EXPECT_EQ(server.ask(chunked + "0\r\n\r\n").status, 200);
  EXPECT_EQ(server.ask(chunked + chunk).status, 413);

  ServerOptions small = test_options();
  small.limits.max_body_bytes = 50;
  TableServer strict(kTable, small);
  EXPECT_EQ(strict.ask(request_for("POST", "/echo", std::string(51, 'x'))).status, 413);
  EXPECT_EQ(strict.ask(request_for("PUT", "/upper", std::string(50, 'x'))).status, 200);
}

TEST(Handler, WithoutABodyRunsByTheHead) {
  TableServer server(kTable);
  const HttpAnswer answer = server.ask("GET /echo/x HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("connection"), "close");
}

TEST(Handler, MayUseAWorker) {
  ServerOptions options = test_options();
  options.api_keys = {"k"};
  TableServer server(kTable, options);
  EXPECT_EQ(server.ask(request_for("PUT", "/upper", "abc")).status, 401);
  const std::string key = "Authorization: Bearer k\r\n";
  EXPECT_EQ(server.ask(request_for("PUT", "/upper", "abc", key)).body, "ABC");
  EXPECT_EQ(server.ask(request_for("PUT", "/upper", "throw", key)).status, 500);
  EXPECT_EQ(server.ask(request_for("PUT", "/upper", "def", key)).body, "DEF");
  EXPECT_EQ(server.answers(500), 1u);
  EXPECT_EQ(server.ask(request_for("PUT", "/upper", "throw later", key)).status, 500);
  EXPECT_TRUE(becomes_true([&] { return server.active == 0; }));
  EXPECT_EQ(server.answers(500), 2u);
  EXPECT_EQ(server.answers(499), 0u) << "a request has one status";
}

TEST(Handler, OnAWorkerHearsThatItsClientHasDisconnected) {
  TableServer server(kTable);
  waiting = 0;
  abandoned_jobs = 0;
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(request_for("PUT", "/upper", "wait")));
  ASSERT_TRUE(becomes_true([] { return waiting == 1; }));
  EXPECT_EQ(server.active, 1);
  // Dropped before it begins.
  HttpClient second(server.port());
  ASSERT_TRUE(second.send(request_for("PUT", "/upper", "wait")));
  ASSERT_TRUE(becomes_true([&] { return server.active == 2; }));
  second.close();
  ASSERT_TRUE(becomes_true([&] { return server.answers(499) == 1; }));
  client.close();
  ASSERT_TRUE(becomes_true([] { return abandoned_jobs == 1; }));
  EXPECT_TRUE(becomes_true([&] { return server.answers(499) == 2 && server.active == 0; }));
  EXPECT_EQ(server.ask(request_for("PUT", "/upper", "abc")).body, "ABC");
  EXPECT_EQ(waiting, 1);
}

TEST(Handler, HasAnActivityThatEndsWithItsClient) {
  TableServer server(kTable);
  Silence::drained = 0;
  Silence::aborted = 0;
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(get("/silence")));
  ASSERT_TRUE(client.receive_until("data: only\n\n"));
  EXPECT_TRUE(becomes_true([] { return Silence::drained > 0; }));
  EXPECT_EQ(Silence::aborted, 0);
  EXPECT_EQ(server.active, 1);
  client.close();
  EXPECT_TRUE(becomes_true([&] { return Silence::aborted == 1 && server.active == 0; }));
  EXPECT_EQ(server.answers(499), 1u);
}

TEST(Handler, AnActivityThatFailsInMidStreamCountsAsOurFault) {
  TableServer server(kTable);
  Fault::aborted = 0;
  HttpClient client(server.port());
  ASSERT_TRUE(client.send(get("/fault")));
  ASSERT_TRUE(client.receive_until("data: only\n\n"));
  EXPECT_TRUE(becomes_true([&] { return Fault::aborted == 1 && server.active == 0; }));
  EXPECT_EQ(server.answers(500), 1u);
  EXPECT_EQ(server.answers(499), 0u) << "the client has not left";
}

// A stream that a fault breaks off has its last words and its end, whatever of it waits to be sent.
TEST(Handler, AStreamThatFailsSaysSo) {
  TableServer server(kTable);
  for (const char* path : {"/fault", "/fault_at_once"}) {
    HttpClient client(server.port());
    ASSERT_TRUE(client.send(get(path)));
    const auto answer = client.receive();
    ASSERT_TRUE(answer.has_value()) << path << ": the stream has no end: " << client.received();
    EXPECT_EQ(answer->body, "data: only\n\ndata: broken off\n\n") << path;
    HttpClient old(server.port());
    ASSERT_TRUE(old.send(fmt::format("GET {} HTTP/1.0\r\nHost: localhost\r\n\r\n", path)));
    EXPECT_TRUE(old.receive_all().ends_with("\r\n\r\ndata: only\n\ndata: broken off\n\n")) << path;
    EXPECT_FALSE(old.was_reset()) << path;
  }
  EXPECT_TRUE(becomes_true([&] { return server.active == 0; }));
}

// Without an end of its own, as in HTTP/1.0, a stream that is cut off would look as if it were whole.
TEST(Handler, AStreamThatIsCutOffEndsInAReset) {
  TableServer server(kTable);
  HttpClient client(server.port());
  ASSERT_TRUE(client.send("GET /silence HTTP/1.0\r\nHost: localhost\r\n\r\n"));
  ASSERT_TRUE(client.receive_until("data: only\n\n"));
  client.shutdown_send();  // which the server takes for the end of the client
  client.receive_all();
  EXPECT_TRUE(client.was_reset());
}

TEST(Handler, ThatNeedsTheModelIsNotRunWithoutIt) {
  TableServer server(kTable);
  EXPECT_EQ(server.ask(request_for("POST", "/model", "x")).status, 503);
  EXPECT_EQ(server.counters->requests_refused, 1u);
  EXPECT_EQ(server.ask(request_for("POST", "/echo", "x")).status, 200);
}

}  // namespace
}  // namespace kvasir::test
