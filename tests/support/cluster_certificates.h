// An authority of a test's own, by tools/cluster_certificates.sh.
#pragma once

#include <memory>
#include <string>

#include "cluster/tls/cluster_tls.h"
#include "support/temp_file.h"

namespace kvasir::test {

class ClusterAuthority {
 public:
  // In a folder of its own, which goes with it.
  ClusterAuthority();
  // In that folder: another process's.
  explicit ClusterAuthority(std::string folder) : path_(std::move(folder)) {}

  const std::string& path() const { return path_; }
  // Makes a certificate, or another one, of these names, as "etcd,127.0.0.1". Aborts the test program if it
  // cannot.
  ClusterTlsFiles issue(const std::string& names) const;
  // What is issued already is used again.
  std::shared_ptr<ClusterTls> tls(const std::string& names) const;

 private:
  std::unique_ptr<TempFolder> own_;
  std::string path_;
};

}  // namespace kvasir::test
