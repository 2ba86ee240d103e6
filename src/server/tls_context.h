// Certificates and settings of TLS.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

struct ssl_ctx_st;  // SSL_CTX of OpenSSL

namespace kvasir {

struct TlsOptions {
  std::string certfile;  // PEM: the certificate, then those between it and the root
  std::string keyfile;   // PEM, without a passphrase
  std::string ca_certs;  // PEM: if set, a client needs a certificate that one of these has signed

  bool on() const { return !certfile.empty() || !keyfile.empty() || !ca_certs.empty(); }
};

// Never changed once it is made, so that connections share it.
using TlsContext = std::shared_ptr<ssl_ctx_st>;

// A server's: TLS 1.2 and 1.3, ciphers with forward secrecy and authenticated encryption, HTTP/1.1. Reads the
// files. An error is one line that names the flag and the file. REQUIRES: options.on().
Result<TlsContext> make_tls_context(const TlsOptions& options);

}  // namespace kvasir
