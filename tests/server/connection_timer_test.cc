// One connection over a real socket, its I/O thread played by the test so that the order of events is known.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "server/connection.h"
#include "server/http_client.h"
#include "server/running_server.h"

namespace kvasir {
namespace {

using boost::asio::ip::tcp;

class Context final : public ServerContext {
 public:
  using ServerContext::ServerContext;
  void request_started() override {}
  void request_ended() override {}
  void forget(Connection*) override { closed = true; }
  bool closed = false;
};

// A write that ends just when its time is over: the timer's handler is already on its way, and must not close
// a connection whose client has taken everything.
TEST(ConnectionTimer, ATimerThatFiredTooLateForItsWriteDoesNothing) {
  constexpr auto kTimeout = std::chrono::milliseconds(20);
  int stalled = 0;
  for (size_t kib = 32; kib <= 512; kib += 32) {
    ServerOptions options = test::test_options();
    options.limits.write_timeout = std::chrono::nanoseconds(kTimeout).count();
    options.model_names = {std::string(kib * 1024 / 2, 'm')};  // which the answer has twice
    Context context(options);
    boost::asio::io_context io(1);
    context.post = [&io](std::function<void()> f) { boost::asio::post(io, std::move(f)); };
    tcp::acceptor acceptor(io, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0));
    test::HttpClient client(acceptor.local_endpoint().port(), 32 * 1024);
    tcp::socket socket = acceptor.accept();
    socket.set_option(boost::asio::socket_base::send_buffer_size(64 * 1024));
    const auto connection = std::make_shared<Connection>(std::move(socket), &context);
    connection->start();
    ASSERT_TRUE(client.send(test::get("/v1/models")));
    while (connection->unsent_bytes() == 0 && io.poll() < 1000) {
      if (context.counters->by_status[0] > 0) break;
    }
    io.poll();
    const size_t unsent = connection->unsent_bytes();
    stalled += unsent > 0;
    // The I/O thread is busy elsewhere while the client reads all that the kernel has.
    std::thread reader([&] { client.receive(); });
    std::this_thread::sleep_for(2 * kTimeout);
    while (connection->unsent_bytes() > 0 && !context.closed) io.run_one_for(kTimeout / 2);
    io.poll();
    EXPECT_FALSE(context.closed) << kib << " KiB, of which " << unsent << " bytes waited";
    connection->close();
    io.poll();
    reader.join();
  }
  EXPECT_GT(stalled, 3);
}

// A reader that takes a part of its answer in each write_timeout, but at a tenth of the least rate.
TEST(ConnectionTimer, AReaderBelowTheLeastRateIsGivenUp) {
  for (const uint64_t least : {1'000'000, 0}) {
    ServerOptions options = test::test_options();
    options.limits.write_timeout = 500 * kNanosPerMilli;
    options.limits.min_send_bytes_per_s = least;
    options.model_names = {std::string(512 * 1024, 'm')};
    Context context(options);
    boost::asio::io_context io(1);
    context.post = [&io](std::function<void()> f) { boost::asio::post(io, std::move(f)); };
    tcp::acceptor acceptor(io, tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), 0));
    tcp::socket client(io);
    client.open(tcp::v4());
    client.set_option(boost::asio::socket_base::receive_buffer_size(16 * 1024));
    client.connect(acceptor.local_endpoint());
    tcp::socket socket = acceptor.accept();
    socket.set_option(boost::asio::socket_base::send_buffer_size(16 * 1024));
    const auto connection = std::make_shared<Connection>(std::move(socket), &context);
    connection->start();
    boost::asio::write(client, boost::asio::buffer(test::get("/v1/models")));
    std::string bytes(5'000, ' ');
    for (int i = 0; i < 40 && !context.closed; ++i) {  // 2 s
      io.run_for(std::chrono::milliseconds(50));
      boost::system::error_code ended;
      client.read_some(boost::asio::buffer(bytes), ended);
    }
    EXPECT_EQ(context.closed, least > 0);
    EXPECT_EQ(context.counters->slow_readers, least > 0 ? 1u : 0u);
    connection->close();
    io.poll();
  }
}

}  // namespace
}  // namespace kvasir
