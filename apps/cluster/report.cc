#include "apps/cluster/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

// The status of an instance has four levels; another program has written a deeper one.
constexpr int kDeepest = 16;

// Nothing if it is no object, or too deep to be walked through.
std::optional<Json> parse_status(const std::string& text) {
  bool deep = false;
  const Json parsed = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, Json&) {
        deep = deep || depth > kDeepest;
        return depth <= kDeepest;
      },
      /*allow_exceptions=*/false);
  if (deep || !parsed.is_object()) return std::nullopt;
  return parsed;
}

// These throw, as the library does, if a field is missing or of another type.
uint64_t count_in(const Json& object, const char* name) {
  const Json& field = object.at(name);
  if (!field.is_number_unsigned()) throw std::invalid_argument(fmt::format("'{}' is no count", name));
  return field.get<uint64_t>();
}

std::string text_in(const Json& object, const char* name) {
  return object.at(name).get_ref<const std::string&>();
}

const Json& list_in(const Json& object, const char* name) {
  const Json& field = object.at(name);
  if (!field.is_array()) throw std::invalid_argument(fmt::format("'{}' is no list", name));
  return field;
}

const Json& object_in(const Json& object, const char* name) {
  const Json& field = object.at(name);
  if (!field.is_object()) throw std::invalid_argument(fmt::format("'{}' is no object", name));
  return field;
}

ClusterReport::Link link_in(const std::string& from, const Json& object) {
  ClusterReport::Link link;
  link.from = from;
  link.to = text_in(object, "peer");
  link.address = text_in(object, "address");
  link.lent = count_in(object, "lent_cells");
  link.borrowed = count_in(object, "borrowed_cells");
  if (!object.contains("latency_us")) return link;
  link.cost = {object.at("latency_us").get<double>(), object.at("bytes_per_s").get<double>(),
               object.at("wait_us").get<double>(), object.at("attend_us_per_leaf_row").get<double>()};
  return link;
}

// What one status adds to the report.
struct Said {
  ClusterReport::Memory memory;
  std::string location;
  bool leaving = false, settling = false;
  std::vector<ClusterReport::Link> links;
};

Said read_status(const std::string& instance, const Json& status) {
  Said said;
  ClusterReport::Memory& m = said.memory;
  m.cell_bytes = count_in(status, "cell_bytes");
  m.free = count_in(status, "free_cells");
  m.total = count_in(status, "total_cells");
  m.room = count_in(status, "room_cells");
  m.lend_cap = count_in(status, "lend_cap");
  m.borrowable = count_in(status, "borrowable_cells");
  said.location = text_in(status, "location");
  said.leaving = status.at("leaving").get<bool>();
  said.settling = status.at("settling").get<bool>();
  for (const Json& object : list_in(status, "links")) {
    said.links.push_back(link_in(instance, object));
    m.lent += said.links.back().lent;
    m.borrowed += said.links.back().borrowed;
  }
  return said;
}

// The ledger of one leader is taken as a whole, or not at all.
struct Led {
  std::vector<ClusterReport::LedgerLine> lines;
  std::map<std::pair<std::string, std::string>, uint64_t> debts;
  ClusterReport::Settlements settlements;
};

std::optional<Led> read_ledger(const Json& status) {
  if (!status.contains("ledger")) return std::nullopt;
  Led led;
  for (const Json& object : list_in(status, "ledger")) {
    ClusterReport::LedgerLine line;
    line.instance = text_in(object, "instance");
    line.free = count_in(object, "free");
    line.total = count_in(object, "total");
    line.room = count_in(object, "room");
    line.memory = text_in(object, "memory");
    line.location = text_in(object, "location");
    line.heard_ms_ago = static_cast<uint64_t>(std::max<int64_t>(0, object.at("heard_ms_ago").get<int64_t>()));
    line.refused = object.at("refused").get<bool>();
    const Json& lent = object_in(object, "lent");
    for (const auto& entry : lent.items()) {
      led.debts[{entry.key(), line.instance}] = count_in(lent, entry.key().c_str());
    }
    led.lines.push_back(std::move(line));
  }
  const Json& counts = object_in(status, "gmanager");
  led.settlements = {count_in(counts, "settlements"), count_in(counts, "settlements_failed"),
                     count_in(counts, "settled_blocks")};
  return led;
}

void add_debts(const Said& said, ClusterReport& report) {
  for (const ClusterReport::Link& link : said.links) {
    if (link.lent > 0) report.debts[{link.to, link.from}].by_creditor = link.lent;
    if (link.borrowed > 0) report.debts[{link.from, link.to}].by_debtor = link.borrowed;
  }
}

void add_status(const std::string& text, ClusterReport::Instance& instance, ClusterReport& report) {
  const std::optional<Json> status = parse_status(text);
  if (!status) {
    instance.trouble = "its status cannot be read: it is no JSON object of ours";
    return;
  }
  try {
    const PeerId answers{text_in(*status, "instance"), count_in(*status, "epoch")};
    if (answers != instance.member.id) {
      instance.trouble = fmt::format("'{}' of epoch {} answers at {}", answers.instance, answers.epoch,
                                     instance.member.status_address);
      return;
    }
    Said said = read_status(instance.member.id.instance, *status);
    std::optional<Led> led = instance.leads ? read_ledger(*status) : std::nullopt;
    add_debts(said, report);
    instance.memory = said.memory;
    instance.location = std::move(said.location);
    instance.leaving = said.leaving;
    instance.settling = said.settling;
    instance.status = text;
    for (ClusterReport::Link& link : said.links) report.links.push_back(std::move(link));
    if (!led) return;
    report.ledger = std::move(led->lines);
    report.settlements = led->settlements;
    for (const auto& [pair, cells] : led->debts) report.debts[pair].by_ledger = cells;
  } catch (const std::exception& e) {
    instance.trouble = fmt::format("its status cannot be read: {}", e.what());
  }
}

void add_misfits(ClusterReport& report) {
  for (size_t a = 0; a < report.instances.size(); ++a) {
    for (size_t b = a + 1; b < report.instances.size(); ++b) {
      const Member &one = report.instances[a].member, &other = report.instances[b].member;
      const Status fits = check_compatible(one, other);
      if (!fits.ok()) report.misfits.push_back({one.id.instance, other.id.instance, fits.message()});
    }
  }
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json instance_json(const ClusterReport::Instance& i) {
  const Member& m = i.member;
  Json out = {{"instance", m.id.instance},
              {"epoch", m.id.epoch},
              {"leads", i.leads},
              {"http_address", m.http_address},
              {"transport", m.transport},
              {"transport_version", m.transport_version},
              {"transport_address", m.transport_address},
              {"wire_version", m.wire_version},
              {"kvasir_version", m.kvasir_version},
              {"numerics_id", m.numerics_id},
              {"geometry", m.geometry},
              {"lends_cells", m.lends_cells}};
  out["status"] = i.status.empty() ? Json() : *parse_status(i.status);
  if (!i.trouble.empty()) out["trouble"] = i.trouble;
  return out;
}

Json ledger_json(const ClusterReport& report) {
  Json out = Json::array();
  for (const ClusterReport::LedgerLine& line : report.ledger) {
    out.push_back({{"instance", line.instance},
                   {"free_cells", line.free},
                   {"total_cells", line.total},
                   {"room_cells", line.room},
                   {"memory", line.memory},
                   {"location", line.location},
                   {"heard_ms_ago", line.heard_ms_ago},
                   {"refused", line.refused}});
  }
  return out;
}

Json debts_json(const ClusterReport& report) {
  Json out = Json::array();
  for (const auto& [pair, debt] : report.debts) {
    out.push_back({{"debtor", pair.first},
                   {"creditor", pair.second},
                   {"cells", debt.cells()},
                   {"bytes", debt.bytes > 0 ? Json(debt.bytes) : Json()},
                   {"by_creditor", or_null(debt.by_creditor)},
                   {"by_debtor", or_null(debt.by_debtor)},
                   {"by_ledger", or_null(debt.by_ledger)}});
  }
  return out;
}

Json links_json(const ClusterReport& report) {
  Json out = Json::array();
  for (const ClusterReport::Link& link : report.links) {
    Json object = {{"from", link.from},
                   {"to", link.to},
                   {"address", link.address},
                   {"lent_cells", link.lent},
                   {"borrowed_cells", link.borrowed}};
    if (link.cost) {
      object["latency_us"] = link.cost->latency_us;
      object["bytes_per_s"] = link.cost->bytes_per_s;
      object["wait_us"] = link.cost->wait_us;
      object["attend_us_per_leaf_row"] = link.cost->attend_us;
    }
    out.push_back(std::move(object));
  }
  return out;
}

}  // namespace

uint64_t ClusterReport::cell_bytes(const std::string& instance) const {
  const auto it = std::find_if(instances.begin(), instances.end(),
                               [&](const Instance& i) { return i.member.id.instance == instance; });
  return it == instances.end() || !it->memory ? 0 : it->memory->cell_bytes;
}

ClusterReport report_of(const std::string& cluster, const ClusterContents& contents,
                        const ClusterStatuses& statuses) {
  ClusterReport report;
  report.cluster = cluster;
  report.leader = contents.leader;
  for (const Member& member : contents.members) {
    ClusterReport::Instance instance;
    instance.member = member;
    instance.leads = contents.leader && contents.leader->id == member.id;
    const auto it = statuses.find(member.id.instance);
    if (it == statuses.end()) {
      instance.trouble = "it serves no status";
    } else if (!it->second.ok()) {
      instance.trouble = it->second.status().message();
    } else {
      add_status(*it->second, instance, report);
    }
    report.instances.push_back(std::move(instance));
  }
  // Both have cells of one size, or there would be no debt.
  for (auto& [pair, debt] : report.debts) {
    debt.bytes = debt.cells() * std::max(report.cell_bytes(pair.first), report.cell_bytes(pair.second));
  }
  add_misfits(report);
  return report;
}

std::string to_json(const ClusterReport& report) {
  Json out = {{"cluster", report.cluster}, {"leader", Json()}};
  if (report.leader) {
    out["leader"] = {{"instance", report.leader->id.instance},
                     {"epoch", report.leader->id.epoch},
                     {"term", report.leader->term}};
  }
  Json& instances = out["instances"] = Json::array();
  for (const ClusterReport::Instance& instance : report.instances)
    instances.push_back(instance_json(instance));
  out["ledger"] = ledger_json(report);
  out["debts"] = debts_json(report);
  out["links"] = links_json(report);
  Json& misfits = out["incompatible"] = Json::array();
  for (const ClusterReport::Misfit& misfit : report.misfits) {
    misfits.push_back({{"instances", {misfit.a, misfit.b}}, {"why", misfit.why}});
  }
  out["settlements"] = Json();
  if (report.settlements) {
    out["settlements"] = {{"done", report.settlements->done},
                          {"failed", report.settlements->failed},
                          {"cells_called_back", report.settlements->cells}};
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvasir
