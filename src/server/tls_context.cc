// OpenSSL's context.
#include "server/tls_context.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace kvasir {
namespace {

// As in a ClientHello: each name behind its length.
constexpr unsigned char kHttp11[] = "\x08http/1.1";

int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_bytes, const unsigned char* offered,
                    unsigned int offered_bytes, void*) {
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_bytes, kHttp11, sizeof(kHttp11) - 1, offered, offered_bytes);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// The server has no terminal at which one could ask for it.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

// Of what has just failed. Leaves no error behind.
Status wrong_file(const char* flag, const std::string& path, const char* what) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    const int reason = errno;
    ERR_clear_error();
    return error(ErrorCode::kIo, "{} {}: cannot be read: {}", flag, path, std::strerror(reason));
  }
  std::fclose(file);
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return error(ErrorCode::kInvalidArgument, "{} {}: {} ({})", flag, path, what,
               reason == nullptr ? "no reason is known" : reason);
}

Status load_files(SSL_CTX* context, const TlsOptions& o) {
  if (SSL_CTX_use_certificate_chain_file(context, o.certfile.c_str()) != 1) {
    return wrong_file("--ssl-certfile", o.certfile, "is no certificate in PEM form");
  }
  if (SSL_CTX_use_PrivateKey_file(context, o.keyfile.c_str(), SSL_FILETYPE_PEM) != 1) {
    return wrong_file("--ssl-keyfile", o.keyfile,
                      "is no private key in PEM form without a passphrase that belongs to the certificate");
  }
  if (o.ca_certs.empty()) return {};
  if (SSL_CTX_load_verify_locations(context, o.ca_certs.c_str(), nullptr) != 1) {
    return wrong_file("--ssl-ca-certs", o.ca_certs, "has no certificates in PEM form");
  }
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(o.ca_certs.c_str()));
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

}  // namespace

Result<TlsContext> make_tls_context(const TlsOptions& options) {
  if (options.certfile.empty() || options.keyfile.empty()) {
    return error(ErrorCode::kInvalidArgument, "TLS needs both --ssl-certfile and --ssl-keyfile");
  }
  const TlsContext context(SSL_CTX_new(TLS_server_method()), [](SSL_CTX* c) { SSL_CTX_free(c); });
  if (!context) return error(ErrorCode::kExhausted, "there is no memory for TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Of TLS 1.2. All ciphers of TLS 1.3 are of this kind.
  SSL_CTX_set_cipher_list(context.get(), "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL");
  SSL_CTX_set_options(context.get(),
                      SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // An idle connection then holds no buffers of OpenSSL's.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(context.get(), no_passphrase);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  // Without a name of its own a session could not be resumed where clients have certificates.
  constexpr std::string_view kName = "kvasir";
  SSL_CTX_set_session_id_context(context.get(), reinterpret_cast<const unsigned char*>(kName.data()),
                                 kName.size());
  KV_RETURN_IF_ERROR(load_files(context.get(), options));
  return context;
}

}  // namespace kvasir
