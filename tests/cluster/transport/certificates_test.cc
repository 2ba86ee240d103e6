// Who is heard where instances have certificates: processes without one, with another's, and with new ones.
#include <filesystem>
#include <fstream>
#include <thread>

#include "cluster/transport/grpc_transport.h"
#include "cluster/transport/transport_fixture.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

const PeerId kLeft{"left", 11}, kRight{"right", 22};

std::unique_ptr<ClusterTransport> endpoint(const PeerId& self, std::shared_ptr<const ClusterTls> tls) {
  TransportOptions options;
  options.self = self;
  options.tls = std::move(tls);
  options.send_deadline = 2 * kNanosPerSecond;
  return take(make_grpc_transport(std::move(options)));
}

std::unique_ptr<ClusterTransport> endpoint(const PeerId& self) {
  return endpoint(self, authority().tls(self.instance));
}

void introduce(ClusterTransport& left, ClusterTransport& right) {
  left.introduce(kRight, right.address());
  right.introduce(kLeft, left.address());
}

// Whether what is sent arrives.
bool reaches(ClusterTransport& from, const PeerId& to_id, ClusterTransport& to) {
  if (!from.send(to_id, numbered(1, 100)).ok()) return false;
  bool arrived = false;
  eventually([&] {
    arrived = arrived || !to.receive().empty();
    return arrived || !from.lost().empty();
  });
  return arrived;
}

TEST(Certificates, OfOneAuthorityAreHeard) {
  const auto left = endpoint(kLeft), right = endpoint(kRight);
  EXPECT_EQ(left->wire(), right->wire());
  introduce(*left, *right);
  EXPECT_TRUE(reaches(*left, kRight, *right));
  EXPECT_TRUE(reaches(*right, kLeft, *left));
}

TEST(Certificates, WithoutOneNothingIsHeard) {
  const auto hostile = endpoint(kLeft, nullptr), right = endpoint(kRight);
  EXPECT_NE(hostile->wire(), right->wire());
  introduce(*hostile, *right);
  EXPECT_FALSE(reaches(*hostile, kRight, *right));
  EXPECT_FALSE(reaches(*right, kLeft, *hostile));  // nor is anything sent to it
  EXPECT_EQ(right->stats().messages_received + right->stats().unknown_frames, 0u);
}

TEST(Certificates, OfAnotherAuthorityAreNotHeard) {
  const ClusterAuthority other;
  const auto hostile = endpoint(kLeft, other.tls("left")), right = endpoint(kRight);
  introduce(*hostile, *right);
  EXPECT_FALSE(reaches(*hostile, kRight, *right));
  EXPECT_FALSE(reaches(*right, kLeft, *hostile));
  EXPECT_EQ(right->stats().messages_received + right->stats().unknown_frames, 0u);
}

// A member, but another one: it neither speaks as `left`, nor hears what is for it.
TEST(Certificates, OfAnotherInstanceAreNotHeard) {
  testing::internal::CaptureStderr();
  const auto hostile = endpoint(kLeft, authority().tls("third")), right = endpoint(kRight);
  introduce(*hostile, *right);
  EXPECT_FALSE(reaches(*hostile, kRight, *right));
  EXPECT_EQ(right->stats().rejected_frames, 1u);
  EXPECT_GE(right->stats().refused_links, 1u);
  EXPECT_FALSE(reaches(*right, kLeft, *hostile));
  EXPECT_EQ(right->stats().messages_received, 0u);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the certificate of 'third' is not that of 'left'"), std::string::npos) << log;
}

TEST(Certificates, OneThatIsNotIntroducedIsCutOff) {
  const auto left = endpoint(kLeft), third = endpoint({"third", 33});
  TransportOptions options;
  options.self = kRight;
  options.tls = authority().tls("right");
  options.unknown_deadline = kNanosPerSecond;
  const auto right = take(make_grpc_transport(std::move(options)));
  introduce(*left, *right);
  third->introduce(kRight, right->address());
  EXPECT_TRUE(eventually([&] { return !third->lost().empty(); }));
  EXPECT_TRUE(reaches(*left, kRight, *right));
  EXPECT_EQ(right->stats().refused_links, 1u);
}

void replace(const ClusterTlsFiles& by, const ClusterTlsFiles& files) {
  const auto copy = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(by.certfile, files.certfile, copy);
  std::filesystem::copy_file(by.keyfile, files.keyfile, copy);
}

void append(const std::string& file, const std::string& to) {
  std::ofstream(to, std::ios::app) << std::ifstream(file).rdbuf();
}

// Certificates, and at last the authority, are replaced while messages go to and fro: none is lost, and links
// that begin later use the new ones.
TEST(Certificates, AreReplacedUnderLoad) {
  const ClusterAuthority old_one, new_one;
  const ClusterTlsFiles left_files = old_one.issue("left"), right_files = old_one.issue("right");
  const auto left_tls = take(ClusterTls::load(left_files)), right_tls = take(ClusterTls::load(right_files));
  const auto left = endpoint(kLeft, left_tls), right = endpoint(kRight, right_tls);
  introduce(*left, *right);
  std::atomic<uint32_t> sent{0};
  std::atomic<bool> stop{false};
  std::thread load([&] {
    while (!stop) {
      ASSERT_TRUE(left->send(kRight, numbered(sent, 1000)).ok());
      const auto got = take_messages(*right, 1);
      ASSERT_EQ(got.size(), 1u);
      ASSERT_TRUE(is_numbered(got[0].bytes, sent, 1000));
      ++sent;
    }
  });
  const auto goes_on = [&] {
    const uint32_t before = sent;
    return eventually([&] { return sent > before + 10; });
  };
  const auto reload = [&] {
    EXPECT_TRUE(left_tls->reload("left").ok());
    EXPECT_TRUE(right_tls->reload("right").ok());
  };
  EXPECT_TRUE(goes_on());
  append(new_one.issue("left").ca_certs, left_files.ca_certs);  // both endpoints' file: both authorities
  reload();
  EXPECT_TRUE(goes_on());
  replace(new_one.issue("left"), left_files);
  replace(new_one.issue("right"), right_files);
  reload();
  EXPECT_TRUE(goes_on());
  std::filesystem::copy_file(new_one.path() + "/ca.pem", left_files.ca_certs,
                             std::filesystem::copy_options::overwrite_existing);
  reload();
  EXPECT_TRUE(goes_on());
  stop = true;
  load.join();
  EXPECT_TRUE(left->lost().empty());
  EXPECT_TRUE(right->lost().empty());

  // Links that begin now know the new authority alone.
  const ClusterAuthority again(new_one.path());
  const PeerId third{"third", 33}, fourth{"fourth", 44};
  const auto added = endpoint(third, again.tls("third"));
  added->introduce(kRight, right->address());
  right->introduce(third, added->address());
  EXPECT_TRUE(reaches(*added, kRight, *right));
  EXPECT_TRUE(reaches(*right, third, *added));
  const auto late = endpoint(fourth, ClusterAuthority().tls("fourth"));
  late->introduce(kRight, right->address());
  right->introduce(fourth, late->address());
  EXPECT_FALSE(reaches(*late, kRight, *right));
}

TEST(Certificates, ThatCannotServeAreNamedAndTheOldOnesStay) {
  const ClusterAuthority one;
  const ClusterTlsFiles files = one.issue("left"), other = one.issue("other");
  const auto said = [](const ClusterTlsFiles& f) { return ClusterTls::load(f).status().message(); };
  EXPECT_NE(said({files.certfile, "", files.ca_certs}).find("--cluster-ssl-keyfile"), std::string::npos);
  EXPECT_NE(said({files.certfile, files.keyfile, ""}).find("--cluster-ssl-ca-certs"), std::string::npos);
  EXPECT_NE(said({"/no/such", files.keyfile, files.ca_certs}).find("--cluster-ssl-certfile"),
            std::string::npos);
  EXPECT_NE(said({files.keyfile, files.keyfile, files.ca_certs}).find("no certificate"), std::string::npos);
  EXPECT_NE(said({files.certfile, other.keyfile, files.ca_certs}).find("belongs to the certificate"),
            std::string::npos);
  EXPECT_NE(said({files.certfile, files.keyfile, files.keyfile}).find("--cluster-ssl-ca-certs"),
            std::string::npos);
  const auto tls = take(ClusterTls::load(files));
  EXPECT_EQ(tls->now()->names, std::vector<std::string>{"left"});
  EXPECT_TRUE(tls->check_name("left").ok());
  EXPECT_NE(tls->check_name("right").message().find("the certificate of 'left' and not of 'right'"),
            std::string::npos);
  const auto before = tls->now();
  replace(other, files);
  EXPECT_FALSE(tls->reload("left").ok());
  EXPECT_EQ(tls->now(), before);
  std::filesystem::remove(files.keyfile);
  EXPECT_FALSE(tls->reload("left").ok());
  EXPECT_EQ(tls->now(), before);
  EXPECT_EQ(take(ClusterTls::load(one.issue("a,10.1.2.3,::1,b.example")))->now()->names,
            (std::vector<std::string>{"a", "10.1.2.3", "::1", "b.example"}));
}

}  // namespace
}  // namespace kvasir::test
