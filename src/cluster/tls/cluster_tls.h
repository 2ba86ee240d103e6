// The certificates of mutual TLS between an instance, its peers and etcd. An instance is who its certificate
// says.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct ClusterTlsFiles {
  std::string certfile;  // PEM: the certificate, then those between it and the root
  std::string keyfile;   // PEM, without a passphrase
  std::string ca_certs;  // PEM: who has signed the certificates of the peers and of etcd

  bool on() const { return !certfile.empty() || !keyfile.empty() || !ca_certs.empty(); }
};

// The texts of the files, which belong together.
struct Certificates {
  std::string chain;
  std::string key;
  std::string authorities;
  // Whom the certificate names: its subject's alternative names, or, without any, its common name.
  std::vector<std::string> names;
};

// The same of a certificate in PEM form. Empty: it is none.
std::vector<std::string> names_in(const std::string& pem);

// Thread-safe.
class ClusterTls {
 public:
  // An error is one line that names the flag and the file. kInvalidArgument: a file is missing or unfit, the
  // key is another certificate's, or the certificate has expired.
  static Result<std::shared_ptr<ClusterTls>> load(ClusterTlsFiles files);

  // Reads the files again; connections that begin from now on use what they say. After an error the old
  // certificates stay, as they do where the new one no longer has `name`.
  Status reload(const std::string& name);
  std::shared_ptr<const Certificates> now() const;
  // kInvalidArgument: the certificate does not name the instance.
  Status check_name(const std::string& name) const;

 private:
  ClusterTls(ClusterTlsFiles files, std::shared_ptr<const Certificates> certificates)
      : files_(std::move(files)), now_(std::move(certificates)) {}

  const ClusterTlsFiles files_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Certificates> now_;  // guarded by mutex_
};

}  // namespace kvasir
