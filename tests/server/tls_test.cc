// TLS, with certificates that the openssl command makes for the test, and a client of Asio's.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "server/running_server.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// A folder with NAME.crt and NAME.key, each signed by itself.
class Certificates {
 public:
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }
  void make(const std::string& name) const {
    const std::string command = fmt::format(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {0}.key "
        "-out {0}.crt -subj /CN={1} -addext subjectAltName=DNS:localhost 2>/dev/null",
        file(name), name);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  ServerOptions options(const std::string& name = "server") const {
    make(name);
    ServerOptions options = test_options();
    options.tls.certfile = file(name + ".crt");
    options.tls.keyfile = file(name + ".key");
    return options;
  }

 private:
  TempFolder folder_;
};

class TlsClient {
 public:
  explicit TlsClient(uint16_t port, const std::function<void(asio::ssl::context&)>& set = {})
      : context_(asio::ssl::context::tls_client) {
    if (set) set(context_);
    stream_.emplace(io_, context_);
    stream_->next_layer().connect(tcp::endpoint(asio::ip::make_address("127.0.0.1"), port));
    stream_->handshake(asio::ssl::stream_base::client, failed_);
  }

  bool connected() const { return !failed_; }
  SSL* native() { return stream_->native_handle(); }
  std::string common_name() {
    X509* certificate = SSL_get_peer_certificate(native());
    char name[64] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof(name));
    X509_free(certificate);
    return name;
  }
  // What comes up to `end`, or up to the end of the connection.
  std::string ask(const std::string& request, const std::string& end) {
    error_code ec;
    asio::write(*stream_, asio::buffer(request), ec);
    std::string out;
    char bytes[4096];
    while (!ec && out.find(end) == std::string::npos) {
      out.append(bytes, stream_->read_some(asio::buffer(bytes), ec));
    }
    end_ = ec;
    return out;
  }
  // Of the last ask(): the server has said that nothing more comes.
  bool closed_properly() const { return end_ == asio::error::eof; }

 private:
  asio::io_context io_;
  asio::ssl::context context_;
  std::optional<asio::ssl::stream<tcp::socket>> stream_;
  error_code failed_;
  error_code end_;
};

constexpr const char* kOk = R"({"status":"ok"})";

TEST(Tls, KeepsAliveAndStreams) {
  const Certificates certificates;
  RunningServer server(repeat("abc"), certificates.options());
  EXPECT_EQ(server->url(), "https://127.0.0.1:" + std::to_string(server.port()));
  TlsClient client(server.port(), [&](asio::ssl::context& c) {
    c.load_verify_file(certificates.file("server.crt"));
    c.set_verify_mode(asio::ssl::verify_peer);
  });
  ASSERT_TRUE(client.connected());
  EXPECT_STREQ(SSL_get_version(client.native()), "TLSv1.3");
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(client.ask(get("/health"), kOk).find("Connection: keep-alive"), std::string::npos);
    const std::string stream = client.ask(post(kChatPath, chat_body(R"("stream":true,"max_tokens":300)")),
                                          "[DONE]\n\n\r\n0\r\n\r\n");
    EXPECT_NE(stream.find("text/event-stream"), std::string::npos);
  }
  // Longer than a record, both ways.
  const std::string long_body = chat_body(R"("max_tokens":3000)") + std::string(200'000, ' ');
  EXPECT_NE(client.ask(post(kChatPath, long_body), "cached_tokens").find("abcabc"), std::string::npos);
  client.ask(get("/health", "Connection: close\r\n"), "never");
  EXPECT_TRUE(client.closed_properly());
}

TEST(Tls, OldProtocolsAndWeakCiphersAreRefused) {
  const Certificates certificates;
  RunningServer server(say("x"), certificates.options());
  const auto connects = [&](int version, const char* ciphers) {
    return TlsClient(server.port(),
                     [&](asio::ssl::context& c) {
                       SSL_CTX_set_security_level(c.native_handle(), 0);
                       SSL_CTX_set_min_proto_version(c.native_handle(), version);
                       SSL_CTX_set_max_proto_version(c.native_handle(), version);
                       if (ciphers != nullptr) SSL_CTX_set_cipher_list(c.native_handle(), ciphers);
                     })
        .connected();
  };
  EXPECT_TRUE(connects(TLS1_2_VERSION, nullptr));
  EXPECT_TRUE(connects(TLS1_2_VERSION, "ECDHE-ECDSA-AES128-GCM-SHA256"));
  EXPECT_FALSE(connects(TLS1_1_VERSION, nullptr));
  EXPECT_FALSE(connects(TLS1_VERSION, nullptr));
  EXPECT_FALSE(connects(TLS1_2_VERSION, "ECDHE-ECDSA-AES128-SHA")) << "no authenticated encryption";
  EXPECT_FALSE(connects(TLS1_2_VERSION, "aNULL@SECLEVEL=0"));
}

TEST(Tls, Http11IsWhatItSpeaks) {
  const Certificates certificates;
  RunningServer server(say("x"), certificates.options());
  const auto offer = [](std::string protocols) {
    return [protocols = std::move(protocols)](asio::ssl::context& c) {
      SSL_CTX_set_alpn_protos(c.native_handle(), reinterpret_cast<const unsigned char*>(protocols.data()),
                              static_cast<unsigned>(protocols.size()));
    };
  };
  TlsClient both(server.port(), offer("\x02h2\x08http/1.1"));
  ASSERT_TRUE(both.connected());
  const unsigned char* chosen = nullptr;
  unsigned bytes = 0;
  SSL_get0_alpn_selected(both.native(), &chosen, &bytes);
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(chosen), bytes), "http/1.1");
  EXPECT_FALSE(TlsClient(server.port(), offer("\x02h2")).connected());
}

TEST(Tls, PlainHttpGets400AndNoiseTheEnd) {
  const Certificates certificates;
  RunningServer server(say("x"), certificates.options());
  HttpClient plain(server.port());
  ASSERT_TRUE(plain.send(get("/health")));
  const auto answer = plain.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_NE(answer->body.find("https://"), std::string::npos);
  EXPECT_EQ(plain.receive_all(), "");
  HttpClient noise(server.port());
  ASSERT_TRUE(noise.send(std::string(3000, '\x16')));
  EXPECT_TRUE(noise.closed_within(5000) || !noise.receive());
  HttpClient left(server.port());
  ASSERT_TRUE(left.send("\x16\x03\x01"));
  left.close();
  EXPECT_NE(TlsClient(server.port()).ask(get("/health"), kOk).find(" 200 "), std::string::npos);
}

TEST(Tls, AHandshakeHasATimeAndMakesWay) {
  const Certificates certificates;
  ServerOptions options = certificates.options();
  options.limits.header_timeout = 50 * kNanosPerMilli;
  RunningServer server(say("x"), options);
  HttpClient silent(server.port());
  EXPECT_TRUE(silent.closed_within(5000));
  options.limits.header_timeout = 100 * kNanosPerSecond;
  options.limits.max_connections = 2;
  options.limits.max_connections_per_address = 2;
  RunningServer small(say("x"), options);
  HttpClient first(small.port()), second(small.port());
  EXPECT_NE(TlsClient(small.port()).ask(get("/health"), kOk).find(" 200 "), std::string::npos);
  EXPECT_TRUE(first.closed_within(5000));
}

TEST(Tls, ClientsNeedACertificateWhereOneIsAskedFor) {
  const Certificates certificates;
  ServerOptions options = certificates.options();
  certificates.make("client");
  certificates.make("stranger");
  options.tls.ca_certs = certificates.file("client.crt");
  options.admin_port = 0;
  RunningServer server(say("x"), options);
  const auto shows = [&](const std::string& name) {
    return [&, name](asio::ssl::context& c) {
      c.use_certificate_chain_file(certificates.file(name + ".crt"));
      c.use_private_key_file(certificates.file(name + ".key"), asio::ssl::context::pem);
    };
  };
  for (const uint16_t port : {server.port(), server->admin_port()}) {
    EXPECT_NE(TlsClient(port, shows("client")).ask(get("/health"), kOk).find(" 200 "), std::string::npos);
    // With TLS 1.3 a client learns of it behind its handshake.
    EXPECT_EQ(TlsClient(port).ask(get("/health"), kOk), "");
    EXPECT_EQ(TlsClient(port, shows("stranger")).ask(get("/health"), kOk), "");
  }
}

TEST(Tls, TheAdminPortMayDoWithoutCertificatesOfClients) {
  const Certificates certificates;
  ServerOptions options = certificates.options();
  certificates.make("client");
  options.tls.ca_certs = certificates.file("client.crt");
  options.admin_port = 0;
  options.admin_client_certs = false;
  RunningServer server(say("x"), options);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(TlsClient(server->admin_port()).ask(get("/livez"), kOk).find(" 200 "), std::string::npos);
    EXPECT_EQ(TlsClient(server.port()).ask(get("/livez"), kOk), "");
    ASSERT_TRUE(server->reload().ok());
  }
}

TEST(Tls, ReloadTakesANewCertificateAndKeepsTheOldOneIfItIsWrong) {
  const Certificates certificates;
  const ServerOptions options = certificates.options();
  RunningServer server(say("x"), options);
  TlsClient before(server.port());
  EXPECT_EQ(before.common_name(), "server");
  certificates.make("next");
  std::filesystem::rename(certificates.file("next.crt"), options.tls.certfile);
  const Status mismatch = server->reload();
  EXPECT_FALSE(mismatch.ok());
  EXPECT_NE(mismatch.message().find(options.tls.keyfile), std::string::npos) << mismatch.message();
  EXPECT_EQ(TlsClient(server.port()).common_name(), "server");
  std::filesystem::rename(certificates.file("next.key"), options.tls.keyfile);
  ASSERT_TRUE(server->reload().ok());
  EXPECT_EQ(TlsClient(server.port()).common_name(), "next");
  EXPECT_NE(before.ask(get("/health"), kOk).find(" 200 "), std::string::npos) << "it goes on";
}

TEST(Tls, ErrorsNameTheFlagAndTheFile) {
  const Certificates certificates;
  const ServerOptions good = certificates.options();
  std::ofstream(certificates.file("empty")).close();
  const auto problem = [](ServerOptions options) {
    const auto started = Server::start(std::move(options));
    return started.ok() ? std::string() : started.status().message();
  };
  for (const char* name : {"empty", "nothing"}) {
    const std::string file = certificates.file(name);
    ServerOptions options = good;
    options.tls.certfile = file;
    EXPECT_NE(problem(options).find("--ssl-certfile " + file + ": "), std::string::npos) << problem(options);
    options = good;
    options.tls.keyfile = file;
    EXPECT_NE(problem(options).find("--ssl-keyfile " + file + ": "), std::string::npos) << problem(options);
    options = good;
    options.tls.ca_certs = file;
    EXPECT_NE(problem(options).find("--ssl-ca-certs " + file + ": "), std::string::npos) << problem(options);
  }
  ServerOptions half = good;
  half.tls.keyfile.clear();
  EXPECT_NE(problem(half).find("both --ssl-certfile and --ssl-keyfile"), std::string::npos);
}

TEST(Tls, ClientsThatLeaveAtAnyMomentEndNothing) {
  const Certificates certificates;
  RunningServer server(repeat("ab"), certificates.options());
  server.backend().set_round_time(kNanosPerMilli);
  for (int i = 0; i < 5; ++i) {
    TlsClient client(server.port());
    client.ask(post(kChatPath, chat_body(R"("stream":true)")), i % 2 == 0 ? "HTTP" : "\"a\"");
  }
  EXPECT_TRUE(server.backend().wait_for([](const FakeBackend& b) { return b.live() == 0; }));
  TlsClient stays(server.port());
  EXPECT_NE(stays.ask(get("/health"), kOk).find(" 200 "), std::string::npos);
  server->stop(0);
}

}  // namespace
}  // namespace kvasir::test
