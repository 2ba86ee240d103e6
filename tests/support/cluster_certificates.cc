#include "support/cluster_certificates.h"

#include <cstdlib>
#include <filesystem>

#include "base/check.h"
#include "support/take.h"

namespace kvasir::test {

ClusterAuthority::ClusterAuthority() : own_(std::make_unique<TempFolder>()), path_(own_->path()) {}

ClusterTlsFiles ClusterAuthority::issue(const std::string& names) const {
  const std::string command =
      fmt::format(KVASIR_SOURCE_DIR "/tools/cluster_certificates.sh '{}' '{}'", path_, names);
  KV_CHECK(std::system(command.c_str()) == 0, "{}", command);
  const std::string at = path_ + "/" + names.substr(0, names.find(','));
  return {at + ".pem", at + "-key.pem", path_ + "/ca.pem"};
}

std::shared_ptr<ClusterTls> ClusterAuthority::tls(const std::string& names) const {
  const std::string at = path_ + "/" + names.substr(0, names.find(','));
  if (!std::filesystem::exists(at + ".pem")) return take(ClusterTls::load(issue(names)));
  return take(ClusterTls::load({at + ".pem", at + "-key.pem", path_ + "/ca.pem"}));
}

}  // namespace kvasir::test
