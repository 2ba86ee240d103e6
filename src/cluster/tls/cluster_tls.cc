#include "cluster/tls/cluster_tls.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/file.h"

namespace kvasir {
namespace {

using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;

// There is no terminal at which one could ask for it.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

BioPtr reader(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free};
}

X509Ptr next_certificate(BIO* from) {
  return {PEM_read_bio_X509(from, nullptr, no_passphrase, nullptr), &X509_free};
}

std::string text_of(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

std::string name_of(const GENERAL_NAME& name) {
  if (name.type == GEN_DNS) return text_of(name.d.dNSName);
  if (name.type != GEN_IPADD) return {};
  std::array<char, INET6_ADDRSTRLEN> out{};
  const int family = ASN1_STRING_length(name.d.iPAddress) == sizeof(in_addr) ? AF_INET : AF_INET6;
  inet_ntop(family, ASN1_STRING_get0_data(name.d.iPAddress), out.data(), out.size());
  return out.data();
}

std::vector<std::string> names_of(const X509* certificate) {
  std::vector<std::string> out;
  auto* names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    std::string name = name_of(*sk_GENERAL_NAME_value(names, i));
    if (!name.empty()) out.push_back(std::move(name));
  }
  GENERAL_NAMES_free(names);
  if (!out.empty()) return out;
  const X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) out.push_back(text_of(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
  return out;
}

Status unfit(const char* flag, const std::string& path, const char* why) {
  ERR_clear_error();
  return error(ErrorCode::kInvalidArgument, "{} {}: {}", flag, path, why);
}

Result<std::string> text_of_file(const char* flag, const std::string& path) {
  if (path.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "TLS in the cluster needs {}, too: give --cluster-ssl-certfile, --cluster-ssl-keyfile and "
                 "--cluster-ssl-ca-certs",
                 flag);
  }
  Result<std::string> text = read_file(path);
  if (!text.ok()) return error(ErrorCode::kInvalidArgument, "{}: {}", flag, text.status().message());
  return text;
}

Result<std::shared_ptr<const Certificates>> read_certificates(const ClusterTlsFiles& files) {
  auto out = std::make_shared<Certificates>();
  KV_ASSIGN_OR_RETURN(out->chain, text_of_file("--cluster-ssl-certfile", files.certfile));
  KV_ASSIGN_OR_RETURN(out->key, text_of_file("--cluster-ssl-keyfile", files.keyfile));
  KV_ASSIGN_OR_RETURN(out->authorities, text_of_file("--cluster-ssl-ca-certs", files.ca_certs));
  const X509Ptr own = next_certificate(reader(out->chain).get());
  if (!own) return unfit("--cluster-ssl-certfile", files.certfile, "it is no certificate in PEM form");
  if (X509_cmp_current_time(X509_get0_notAfter(own.get())) < 0)
    return unfit("--cluster-ssl-certfile", files.certfile, "the certificate has expired");
  const KeyPtr key(PEM_read_bio_PrivateKey(reader(out->key).get(), nullptr, no_passphrase, nullptr),
                   &EVP_PKEY_free);
  if (!key || X509_check_private_key(own.get(), key.get()) != 1) {
    return unfit("--cluster-ssl-keyfile", files.keyfile,
                 "it is no private key in PEM form without a passphrase that belongs to the certificate");
  }
  if (!next_certificate(reader(out->authorities).get()))
    return unfit("--cluster-ssl-ca-certs", files.ca_certs, "it has no certificate in PEM form");
  out->names = names_of(own.get());
  ERR_clear_error();
  return std::shared_ptr<const Certificates>(std::move(out));
}

Status check_name_in(const Certificates& certificates, const std::string& path, const std::string& name) {
  const auto& names = certificates.names;
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  return error(ErrorCode::kInvalidArgument,
               "--cluster-ssl-certfile {}: it is the certificate of '{}' and not of '{}', which is this "
               "instance's --cluster-name",
               path, fmt::join(names, "', '"), name);
}

}  // namespace

std::vector<std::string> names_in(const std::string& pem) {
  const X509Ptr certificate = next_certificate(reader(pem).get());
  ERR_clear_error();
  return certificate ? names_of(certificate.get()) : std::vector<std::string>();
}

Result<std::shared_ptr<ClusterTls>> ClusterTls::load(ClusterTlsFiles files) {
  KV_ASSIGN_OR_RETURN(auto certificates, read_certificates(files));
  return std::shared_ptr<ClusterTls>(new ClusterTls(std::move(files), std::move(certificates)));
}

Status ClusterTls::reload(const std::string& name) {
  KV_ASSIGN_OR_RETURN(auto certificates, read_certificates(files_));
  KV_RETURN_IF_ERROR(check_name_in(*certificates, files_.certfile, name));
  const std::lock_guard lock(mutex_);
  now_ = std::move(certificates);
  return {};
}

std::shared_ptr<const Certificates> ClusterTls::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

Status ClusterTls::check_name(const std::string& name) const {
  return check_name_in(*now(), files_.certfile, name);
}

}  // namespace kvasir
