// What people are shown of a cluster, from what instances say, and from what none should have said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "apps/cluster/report.h"
#include "cluster/membership/members.h"
#include "cluster/node/node_status.h"

namespace kvasir {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kEpochA = 0x694d0000aaaa1111, kEpochB = 0x694d0000bbbb2222;
constexpr uint64_t kCell = 512 << 10;

Member member(const std::string& name, uint64_t epoch) {
  Member m = test::some_member(name);
  m.id.epoch = epoch;
  m.transport_address = name + ".example:7000";
  m.transport_version = "grpc, frames 3";
  m.http_address = "http://" + name + ".example:8000";
  m.status_address = "http://" + name + ".example:9000";
  return m;
}

cluster::NodeStatus status_of(const std::string& name, uint64_t epoch) {
  cluster::NodeStatus s;
  s.self = {name, epoch};
  s.leader = "a";
  s.term = 7;
  s.location = "east/r1/" + name;
  s.free_cells = 60;
  s.total_cells = 100;
  s.lend_cap = 50;
  s.room = 10;
  s.borrowable_cells = 400;
  s.cell_bytes = kCell;
  return s;
}

// a lends 40 cells to b, leads, and has measured nothing; b has measured what a costs.
struct Pair {
  cluster::NodeStatus a = status_of("a", kEpochA), b = status_of("b", kEpochB);
  Pair() {
    a.links = {{{"b", kEpochB}, "b.example:7000", 40, 0, std::nullopt}};
    b.links = {{{"a", kEpochA}, "a.example:7000", 0, 38, PeerCost{150e-6, 2e9, 30e-6, 1.5e-6}}};
    a.ledger = {{{"a", kEpochA},
                 {60, 100, 10, 0, 0, INT64_MAX, true, "east/r1/a", {{{"b", kEpochB}, 39}}, {}, {}},
                 120 * kNanosPerMilli,
                 false},
                {{"b", kEpochB},
                 {60, 100, 0, 0, 0, INT64_MAX, false, "east/r1/b", {}, {{{"a", kEpochA}, 38}}, {}},
                 80 * kNanosPerMilli,
                 true}};
    a.counts.settlements = 3;
    a.counts.settlements_failed = 1;
    a.counts.settled_blocks = 96;
  }
  ClusterContents contents() const {
    return {{member("a", kEpochA), member("b", kEpochB)}, Leader{{"a", kEpochA}, 7}};
  }
  ClusterStatuses statuses() const { return {{"a", to_json(a)}, {"b", to_json(b)}}; }
  ClusterReport report() const { return report_of("east", contents(), statuses()); }
};

TEST(ClusterReport, TablesForPeople) {
  const Pair pair;
  EXPECT_EQ(to_table(pair.report()), R"(cluster 'east': 2 instances, gManager a (term 7)

INSTANCE  EPOCH     STATE   FREE           TOTAL           ROOM          LENT           BORROWED
a         aaaa1111  leads   60 (30.0 MiB)  100 (50.0 MiB)  10 (5.0 MiB)  40 (20.0 MiB)  0 (0.0 MiB)
b         bbbb2222  member  60 (30.0 MiB)  100 (50.0 MiB)  10 (5.0 MiB)  0 (0.0 MiB)    38 (19.0 MiB)

INSTANCE  HTTP                   TRANSPORT       ADDRESS         LOCATION   NUMERICS
a         http://a.example:8000  grpc, frames 3  a.example:7000  east/r1/a  kvasir-2/fma/q4_1/act-int8/kv-bf16/tp1
b         http://b.example:8000  grpc, frames 3  b.example:7000  east/r1/b  kvasir-2/fma/q4_1/act-int8/kv-bf16/tp1

debts
DEBTOR  CREDITOR  CELLS  MIB   BY THE CREDITOR  BY THE DEBTOR  BY THE LEDGER
b       a         40     20.0  40               38             39

the gManager's ledger
INSTANCE  FREE           TOTAL           ROOM          MEMORY  LOCATION   HEARD OF    LENDS
a         60 (30.0 MiB)  100 (50.0 MiB)  10 (5.0 MiB)  device  east/r1/a  120 ms ago  yes
b         60 (30.0 MiB)  100 (50.0 MiB)  0 (0.0 MiB)   host    east/r1/b  80 ms ago   has refused

links, as measured by the asking instance
FROM  TO  LATENCY US  MB/S  WAIT US  ATTEND US PER LEAF AND ROW
b     a   150         2000  30       1.50

1 link has carried no query yet

cycles of debts under this gManager: 3 settled (96 cells called back), 1 not
)");
}

TEST(ClusterReport, OneDocumentForPrograms) {
  const json j = json::parse(to_json(Pair().report()));
  EXPECT_EQ(j["cluster"], "east");
  EXPECT_EQ(j["leader"], (json{{"instance", "a"}, {"epoch", kEpochA}, {"term", 7}}));
  ASSERT_EQ(j["instances"].size(), 2u);
  EXPECT_EQ(j["instances"][1]["http_address"], "http://b.example:8000");
  EXPECT_EQ(j["instances"][1]["leads"], false);
  EXPECT_EQ(j["instances"][1]["status"], json::parse(to_json(Pair().b))) << "as it says";
  EXPECT_FALSE(j["instances"][1].contains("trouble"));
  EXPECT_EQ(j["ledger"][1], (json{{"instance", "b"},
                                  {"free_cells", 60},
                                  {"total_cells", 100},
                                  {"room_cells", 0},
                                  {"memory", "host"},
                                  {"location", "east/r1/b"},
                                  {"heard_ms_ago", 80},
                                  {"refused", true}}));
  EXPECT_EQ(j["debts"], (json{{{"debtor", "b"},
                               {"creditor", "a"},
                               {"cells", 40},
                               {"bytes", 40 * kCell},
                               {"by_creditor", 40},
                               {"by_debtor", 38},
                               {"by_ledger", 39}}}));
  ASSERT_EQ(j["links"].size(), 2u);
  EXPECT_FALSE(j["links"][0].contains("latency_us"));
  EXPECT_DOUBLE_EQ(j["links"][1]["bytes_per_s"], 2e9);
  EXPECT_EQ(j["incompatible"], json::array());
  EXPECT_EQ(j["settlements"], (json{{"done", 3}, {"failed", 1}, {"cells_called_back", 96}}));
}

TEST(ClusterReport, NoInstanceIsThere) {
  const ClusterReport report = report_of("west", {}, {});
  EXPECT_EQ(to_table(report), "cluster 'west': no instances, no gManager\n");
  EXPECT_EQ(json::parse(to_json(report)),
            json::parse(R"({"cluster":"west","leader":null,"instances":[],"ledger":[],
    "debts":[],"links":[],"incompatible":[],"settlements":null})"));
}

TEST(ClusterReport, AMemberThatDoesNotAnswer) {
  ClusterStatuses statuses = Pair().statuses();
  statuses.erase("a");
  EXPECT_THAT(to_table(report_of("east", Pair().contents(), statuses)),
              HasSubstr("\na: it serves no status\n"));
  statuses.emplace("a", error(ErrorCode::kUnavailable, "no status from http://a: it refuses connections"));
  const ClusterReport report = report_of("east", Pair().contents(), statuses);
  const std::string table = to_table(report);
  EXPECT_THAT(table, HasSubstr("a         aaaa1111  leads, no status  -  "));
  EXPECT_THAT(table, HasSubstr("\na: no status from http://a: it refuses connections\n"));
  EXPECT_THAT(table, HasSubstr("b       a         38     19.0  -                38             -\n"))
      << "the debtor's word, where there is no other";
  EXPECT_THAT(table, Not(HasSubstr("ledger\n")));
  const json j = json::parse(to_json(report));
  EXPECT_TRUE(j["instances"][0]["status"].is_null());
  EXPECT_EQ(j["instances"][0]["trouble"], "no status from http://a: it refuses connections");
  EXPECT_TRUE(j["settlements"].is_null());
}

TEST(ClusterReport, ADamagedStatusIsOneLineAndHarmsNoOther) {
  const Pair pair;
  const std::string good = to_json(pair.a);
  json no_links = json::parse(good), odd = no_links, negative = no_links, ledger = no_links, debts = no_links;
  no_links.erase("links");
  odd["free_cells"] = "many";
  negative["links"][0]["lent_cells"] = -1;
  ledger["ledger"][1]["lent"] = 5;
  debts["ledger"][0]["lent"]["b"] = "all";
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("\xff\xfe"),
        good.substr(0, good.size() / 2), std::string(100000, '['), "{\"a\":" + std::string(100000, '['),
        "{\"a\":" + std::string(50000, '[') + std::string(50000, ']') + "}", no_links.dump(), odd.dump(),
        negative.dump(), ledger.dump(), debts.dump()}) {
    ClusterStatuses statuses = pair.statuses();
    statuses.at("a") = text;
    const ClusterReport report = report_of("east", pair.contents(), statuses);
    const std::string table = to_table(report), said = text.substr(0, 60);
    EXPECT_THAT(table, HasSubstr("\na: its status cannot be read: ")) << said;
    EXPECT_THAT(table, HasSubstr("b         bbbb2222  member            60 (30.0 MiB)")) << said;
    const json j = json::parse(to_json(report));
    EXPECT_TRUE(j["instances"][0]["status"].is_null()) << said;
    EXPECT_EQ(j["ledger"].size(), 0u) << said;
    EXPECT_EQ(j["debts"].size(), 1u) << said;
  }
}

// A port may have passed to another process, and 127.0.0.1 is another machine to each.
TEST(ClusterReport, AnAnswerOfAnotherLifeIsNone) {
  Pair pair;
  for (const PeerId& other : {PeerId{"a", kEpochA + 1}, PeerId{"c", kEpochA}}) {
    pair.a.self = other;
    const ClusterReport report = pair.report();
    EXPECT_EQ(report.instances[0].trouble,
              fmt::format("'{}' of epoch {} answers at http://a.example:9000", other.instance, other.epoch));
    EXPECT_TRUE(report.ledger.empty());
    EXPECT_FALSE(report.instances[0].memory);
  }
}

TEST(ClusterReport, OnlyTheLeadersLedgerCounts) {
  ClusterContents contents = Pair().contents();
  contents.leader = Leader{{"b", kEpochB}, 8};
  const ClusterReport report = report_of("east", contents, Pair().statuses());
  EXPECT_TRUE(report.ledger.empty());
  EXPECT_FALSE(report.settlements);
  EXPECT_TRUE(report.instances[1].leads);
  contents.leader = Leader{{"a", kEpochA + 1}, 8};
  EXPECT_FALSE(report_of("east", contents, Pair().statuses()).instances[0].leads)
      << "another life of it does";
}

TEST(ClusterReport, InstancesThatCannotShareMemoryAreListedWithTheReason) {
  ClusterContents contents = Pair().contents();
  contents.members[1].numerics_id = "another";
  const ClusterReport report = report_of("east", contents, Pair().statuses());
  ASSERT_EQ(report.misfits.size(), 1u);
  EXPECT_THAT(to_table(report), HasSubstr("\n'a' and 'b' cannot share memory: the numerics id is "));
  const json j = json::parse(to_json(report));
  EXPECT_EQ(j["incompatible"][0]["instances"], (json{"a", "b"}));
  // Of many the first are shown.
  contents.members.clear();
  for (int i = 0; i < 8; ++i) {
    contents.members.push_back(
        member(std::string(1, static_cast<char>('a' + i)), 10 + static_cast<uint64_t>(i)));
    contents.members.back().geometry = std::to_string(i);
  }
  EXPECT_THAT(to_table(report_of("east", contents, Pair().statuses())),
              HasSubstr("\n8 more pairs cannot share memory\n"));
}

TEST(ClusterReport, AManagerRunsNoModelAndStatesAreNamed) {
  Pair pair;
  pair.a.cell_bytes = 0;
  pair.a.free_cells = pair.a.total_cells = pair.a.room = 0;
  pair.a.links.clear();
  pair.b.leaving = true;
  pair.b.settling = true;
  ClusterContents contents = pair.contents();
  contents.members[0].numerics_id.clear();
  contents.members[0].http_address.clear();
  const std::string table = to_table(report_of("east", contents, pair.statuses()));
  EXPECT_THAT(table, HasSubstr("a         aaaa1111  leads                      0 "));
  EXPECT_THAT(table, HasSubstr("  member, leaving, settling  "));
  EXPECT_THAT(table, HasSubstr("a         -                      grpc, frames 3  a.example:7000  east/r1/a  "
                               "runs no model\n"));
}

TEST(ClusterReport, WhatOthersWroteDoesNotReachTheTerminalAsItIs) {
  Pair pair;
  pair.b.location = "x\x1b[2J\ny";
  ClusterContents contents = pair.contents();
  contents.members[1].http_address = "h\x07\r";
  const ClusterReport report = report_of("east", contents, pair.statuses());
  const std::string table = to_table(report);
  EXPECT_THAT(table, HasSubstr("x?[2J?y"));
  EXPECT_THAT(table, HasSubstr("h??"));
  EXPECT_EQ(table.find_first_of("\x1b\x07\r"), std::string::npos);
  EXPECT_EQ(json::parse(to_json(report))["instances"][1]["status"]["location"], pair.b.location);
}

}  // namespace
}  // namespace kvasir
