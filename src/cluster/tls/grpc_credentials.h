// gRPC's credentials from certificates that may be replaced while it runs.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <vector>

#include "cluster/tls/cluster_tls.h"

namespace kvasir {

// Of the certificates as they are now. Null: no TLS.
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const ClusterTls* tls);

// Every handshake takes the certificates as they are then, and requires the client's. Null: no TLS. They
// outlive the server.
std::shared_ptr<grpc::ServerCredentials> server_credentials(std::shared_ptr<const ClusterTls> tls);

// Whom the far end's certificate names, as Certificates::names has it. Empty: it has none.
std::vector<std::string> certified_names(const grpc::AuthContext& far_end);

}  // namespace kvasir
