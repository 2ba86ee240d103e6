#include "cluster/tls/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/heap.h"

namespace kvasir {
namespace {

// gRPC's C++ interface reads a server's certificates once; that of C asks for them at every handshake.
class ServerTls final : public grpc::ServerCredentials {
 public:
  explicit ServerTls(std::shared_ptr<const ClusterTls> tls)
      : tls_(std::move(tls)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &fetch, this))) {}
  ~ServerTls() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config) {
    const WaitsForMemory patient;
    return static_cast<ServerTls*>(self)->give(config);
  }
  grpc_ssl_certificate_config_reload_status give(grpc_ssl_server_certificate_config** config) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Certificates> now = tls_->now();
    if (now == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{now->key.c_str(), now->chain.c_str()};
    *config = grpc_ssl_server_certificate_config_create(now->authorities.c_str(), &pair, 1);
    given_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<const ClusterTls> tls_;
  std::mutex mutex_;
  std::shared_ptr<const Certificates> given_;  // guarded by mutex_
  grpc_server_credentials* const credentials_;
};

// gRPC would write to standard error of every stranger that calls. What matters is in the status of calls.
// And it stays until the process ends: with its last object gone it would wait up to 10 s for connections
// whose far end hangs.
void prepare_grpc() {
  static const bool prepared = [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
    grpc_init();
    return true;
  }();
  static_cast<void>(prepared);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const ClusterTls* tls) {
  prepare_grpc();
  if (tls == nullptr) return grpc::InsecureChannelCredentials();
  const std::shared_ptr<const Certificates> now = tls->now();
  return grpc::SslCredentials({now->authorities, now->key, now->chain});
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(std::shared_ptr<const ClusterTls> tls) {
  prepare_grpc();
  if (!tls) return grpc::InsecureServerCredentials();
  return std::make_shared<ServerTls>(std::move(tls));
}

std::vector<std::string> certified_names(const grpc::AuthContext& far_end) {
  if (!far_end.IsPeerAuthenticated()) return {};
  const std::vector<grpc::string_ref> pem = far_end.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return pem.size() == 1 ? names_in({pem[0].data(), pem[0].size()}) : std::vector<std::string>();
}

}  // namespace kvasir
