// The bytes of a connection: over TCP, or over TLS on top of it. Internal to src/server.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string_view>

#include "server/tls_context.h"

namespace kvasir {

// Used on the I/O thread. At most one read and one write at a time; a function that is called when one is
// done keeps the stream alive.
class SocketStream {
 public:
  using Transferred = std::function<void(boost::system::error_code, size_t bytes)>;
  using Done = std::function<void(boost::system::error_code)>;

  // `tls` is null: plain TCP.
  SocketStream(boost::asio::ip::tcp::socket socket, const TlsContext& tls);
  ~SocketStream();

  bool is_tls() const { return tls_ != nullptr; }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

  // REQUIRES: is_tls(). Reads and writes come after it.
  void async_handshake(Done done);
  // Whether a handshake failed because the client speaks HTTP without TLS.
  static bool is_plain_http(boost::system::error_code handshake);
  // From now on there is no TLS. REQUIRES: the handshake failed.
  void drop_tls();

  void async_read_some(boost::asio::mutable_buffer buffer, Transferred done);
  void async_write_some(boost::asio::const_buffer bytes, Transferred done);
  // Sends this without memory of its own. False: the socket does not take all of it at once, or speaks TLS.
  // REQUIRES: no async_write_some() is pending
  bool send_now(std::string_view bytes);
  // Tells the client that nothing more comes. `keep` is held as long as that takes.
  void shutdown_send(std::shared_ptr<void> keep);
  void close();
  // Closes, and tells the client that what it has got is not all.
  void reset();

 private:
  struct Tls;

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<Tls> tls_;  // null: plain TCP
};

}  // namespace kvasir
