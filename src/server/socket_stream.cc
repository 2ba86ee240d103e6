// Asio's stream over OpenSSL.
#include "server/socket_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <new>
#include <utility>

namespace kvasir {

namespace asio = boost::asio;
using boost::system::error_code;

struct SocketStream::Tls {
  Tls(asio::ip::tcp::socket& socket, SSL* ssl) : stream(socket, ssl) {}
  asio::ssl::stream<asio::ip::tcp::socket&> stream;
};

SocketStream::SocketStream(asio::ip::tcp::socket socket, const TlsContext& tls) : socket_(std::move(socket)) {
  if (!tls) return;
  SSL* ssl = SSL_new(tls.get());
  if (ssl == nullptr) throw std::bad_alloc();
  tls_ = std::make_unique<Tls>(socket_, ssl);
}

SocketStream::~SocketStream() = default;

void SocketStream::async_handshake(Done done) {
  tls_->stream.async_handshake(asio::ssl::stream_base::server, std::move(done));
}

bool SocketStream::is_plain_http(error_code handshake) {
  return handshake.category() == asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(handshake.value())) == SSL_R_HTTP_REQUEST;
}

void SocketStream::drop_tls() {
  tls_.reset();
}

void SocketStream::async_read_some(asio::mutable_buffer buffer, Transferred done) {
  if (tls_) return tls_->stream.async_read_some(buffer, std::move(done));
  socket_.async_read_some(buffer, std::move(done));
}

void SocketStream::async_write_some(asio::const_buffer bytes, Transferred done) {
  if (tls_) return tls_->stream.async_write_some(bytes, std::move(done));
  socket_.async_write_some(bytes, std::move(done));
}

bool SocketStream::send_now(std::string_view bytes) {
  if (bytes.empty()) return true;
  if (tls_) return false;
  const ssize_t sent =
      ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size());
}

void SocketStream::shutdown_send(std::shared_ptr<void> keep) {
  if (tls_) return tls_->stream.async_shutdown([keep = std::move(keep)](error_code) {});
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void SocketStream::reset() {
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  close();
}

void SocketStream::close() {
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace kvasir
