// What membership is made of, without a directory: the handshake, addresses, texts, and the view.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/base64.h"
#include "cluster/membership/cluster_view.h"
#include "cluster/membership/etcd_address.h"
#include "cluster/membership/member_json.h"
#include "cluster/membership/members.h"
#include "cluster/membership/membership.h"

namespace kvasir::test {
namespace {

TEST(CheckCompatible, NamesWhatDiffersAndWhatToDo) {
  const Member self = some_member("a");
  EXPECT_TRUE(check_compatible(self, some_member("b")).ok());
  struct Case {
    std::function<void(Member&)> change;
    std::vector<std::string> said;
  };
  const std::vector<Case> cases = {
      {[](Member& m) { m.wire_version = 2; },
       {"version of the cluster's messages is '1' here and '2' there"}},
      {[](Member& m) { m.kvasir_version = "0.2.0"; }, {"Kvasir version is '0.1.0' here and '0.2.0' there"}},
      {[](Member& m) { m.transport = "rdma"; },
       {"transport is 'grpc' here and 'rdma' there", "same transport"}},
      {[](Member& m) { m.transport_version = "1.22.0"; }, {"grpc version is '1.13.1' here", "same library"}},
      {[](Member& m) { m.numerics_id = "kvasir-1"; },
       {"numerics id is", "'kvasir-1' there", "same model file"}},
      {[](Member& m) { m.geometry = "cafe"; }, {"blocks is 'f00d' here and 'cafe' there", "block size"}},
  };
  for (const Case& c : cases) {
    Member other = some_member("b");
    c.change(other);
    const Status status = check_compatible(self, other);
    ASSERT_FALSE(status.ok()) << c.said[0];
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    for (const std::string& part : c.said)
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("'a' and 'b'"), std::string::npos) << status.message();
  }
}

TEST(CheckCompatible, AManagerWithoutAModelFitsEveryModelButNotEveryVersion) {
  Member manager = some_member("manager");
  manager.numerics_id = manager.geometry = "";
  EXPECT_TRUE(check_compatible(some_member("a"), manager).ok());
  EXPECT_TRUE(check_compatible(manager, some_member("a")).ok());
  manager.wire_version = 2;
  EXPECT_FALSE(check_compatible(some_member("a"), manager).ok());
}

TEST(Base64, KnownTexts) {
  for (const auto& [bytes, text] :
       std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                        {"f", "Zg=="},
                                                        {"fo", "Zm8="},
                                                        {"foo", "Zm9v"},
                                                        {"foob", "Zm9vYg=="},
                                                        {"\xff\xfe\xfb", "//77"}}) {
    EXPECT_EQ(to_base64(bytes), text);
  }
}

TEST(EtcdAddress, HostsPortsAndName) {
  const auto one = parse_etcd_address("etcd://node-1");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->endpoints, (std::vector<HostPort>{{"node-1", 2379}}));
  EXPECT_EQ(one->cluster, "default");
  const auto three = parse_etcd_address("etcd://10.0.0.1:1,[::1]:2,c.local/blue");
  ASSERT_TRUE(three.ok()) << three.status().message();
  EXPECT_EQ(three->endpoints, (std::vector<HostPort>{{"10.0.0.1", 1}, {"::1", 2}, {"c.local", 2379}}));
  EXPECT_EQ(three->cluster, "blue");
  EXPECT_EQ(three->endpoints[1].to_string(), "[::1]:2");
}

TEST(EtcdAddress, RefusesWithTheFormToWrite) {
  for (const char* text : {"",           "etcd:/",         "etcd://",      "http://a:1",  "etcd://a:",
                           "etcd://a:0", "etcd://a:65536", "etcd://a:1x",  "etcd://a,,b", "etcd://a,",
                           "etcd://a b", "etcd://::1",     "etcd://[::1",  "etcd://[]",   "etcd://[::1]x",
                           "etcd://a/",  "etcd://a/b/c",   "etcd://a/b c", "etcd://a/B",  "etcd://a@b"}) {
    const auto parsed = parse_etcd_address(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find("etcd://host:2379[,host:2379]"), std::string::npos);
  }
}

TEST(EtcdAddress, WithoutTlsOnlyThisMachineIsAsked) {
  for (const char* here : {"etcd://127.0.0.1", "etcd://127.9.8.7:1,localhost:2", "etcd://[::1]:2/x"}) {
    EXPECT_TRUE(check_endpoints(*parse_etcd_address(here), false).ok()) << here;
  }
  for (const char* elsewhere : {"etcd://10.0.0.1", "etcd://localhost,node-1", "etcd://127.0.0.1.example",
                                "etcd://127.example", "etcd://[fe80::1]:2"}) {
    EXPECT_FALSE(check_endpoints(*parse_etcd_address(elsewhere), false).ok()) << elsewhere;
    EXPECT_TRUE(check_endpoints(*parse_etcd_address(elsewhere), true).ok()) << elsewhere;
  }
}

TEST(MemberJson, ComesBackAsItWas) {
  Member member = some_member("a");
  member.id.epoch = 7;
  member.http_address = "http://\xc3\xa9:1 \"quoted\"";
  member.status_address = "http://10.0.0.1:9000";
  const auto back = member_from_json(member_to_json(member), member.id);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, member);
}

TEST(MemberJson, RefusesAnyFieldThatIsMissingOrOfAnotherKind) {
  const std::string whole = member_to_json(some_member("a"));
  for (const char* field : {"transport", "transport_version", "transport_address", "wire_version",
                            "kvasir_version", "numerics_id", "geometry", "http_address"}) {
    std::string without = whole, other = whole;
    const size_t at = without.find('"' + std::string(field) + '"');
    ASSERT_NE(at, std::string::npos) << field;
    without.replace(at + 1, 1, "#");
    EXPECT_FALSE(member_from_json(without, {"a", 1}).ok()) << field;
    const size_t value = other.find(':', at) + 1;
    const size_t end =
        other[value] == '"' ? other.find('"', value + 1) + 1 : other.find_first_of(",}", value);
    other.replace(value, end - value, "[]");
    EXPECT_FALSE(member_from_json(other, {"a", 1}).ok()) << other;
  }
  const size_t lends = whole.find("\"lends_cells\":300");
  ASSERT_NE(lends, std::string::npos);
  for (const char* value : {"-1", "1.5", "4294967296", "true", "\"300\""}) {
    std::string other = whole;
    other.replace(lends + 14, 3, value);
    EXPECT_FALSE(member_from_json(other, {"a", 1}).ok()) << other;
  }
  std::string unsaid = whole;
  unsaid.replace(lends + 1, 5, "lent_");
  EXPECT_EQ(member_from_json(unsaid, {"a", 1}).value().lends_cells, 0u);
  std::string elsewhere = whole;
  const size_t status = elsewhere.find("\"status_address\":\"\"");
  ASSERT_NE(status, std::string::npos) << whole;
  elsewhere.replace(status + 17, 2, "{}");
  EXPECT_FALSE(member_from_json(elsewhere, {"a", 1}).ok()) << "a text, if it is there";
  elsewhere.replace(status + 1, 6, "former");
  EXPECT_EQ(member_from_json(elsewhere, {"a", 1}).value().status_address, "");
  for (const std::string& text :
       {std::string(), std::string("7"), std::string("{"), std::string(1 << 20, '[')}) {
    EXPECT_EQ(member_from_json(text, {"a", 1}).status().code(), ErrorCode::kCorrupt);
  }
}

TEST(ClusterView, EventsLeadFromOneViewToTheNext) {
  ClusterView view("me");
  std::vector<MembershipEvent> events;
  const auto member = [](const char* name, uint64_t epoch) {
    Member m = some_member(name);
    m.id.epoch = epoch;
    return m;
  };
  const Leader leader{{"me", 1}, 5};
  view.replace({member("me", 1), member("a", 2), member("b", 3)}, leader, events);
  EXPECT_EQ(describe(events), "+a/2 +b/3 leader=me/1@5");
  events.clear();
  view.replace({member("a", 2), member("b", 3), member("me", 1)}, leader, events);
  EXPECT_EQ(describe(events), "");
  view.put(member("b", 3), events);
  view.remove("c", events);
  view.lead(leader, events);
  EXPECT_EQ(describe(events), "");
  view.put(member("b", 4), events);
  view.put(member("me", 9), events);
  EXPECT_EQ(describe(events), "-b/3 +b/4");
  events.clear();
  view.replace({member("b", 5), member("c", 6)}, std::nullopt, events);
  EXPECT_EQ(describe(events), "-a/2 -b/4 +b/5 +c/6 leader=none");
  ASSERT_EQ(view.members().size(), 2u);
  EXPECT_EQ(view.members()[0].id, (PeerId{"b", 5}));
}

}  // namespace
}  // namespace kvasir::test
