#include <nlohmann/json.hpp>

#include "cluster/node/node_status.h"

namespace kvasir::cluster {
namespace {

using Json = nlohmann::ordered_json;

Json by_instance(const std::map<PeerId, uint32_t, ByPeer>& cells) {
  Json out = Json::object();
  for (const auto& [peer, n] : cells) out[peer.instance] = n;
  return out;
}

Json link_json(const PeerLink& link) {
  Json out = {{"peer", link.peer.instance},
              {"epoch", link.peer.epoch},
              {"address", link.address},
              {"lent_cells", link.lent},
              {"borrowed_cells", link.borrowed}};
  if (link.cost) {
    out["latency_us"] = link.cost->latency_s * 1e6;
    out["bytes_per_s"] = link.cost->bytes_per_s;
    out["wait_us"] = link.cost->wait_s * 1e6;
    out["attend_us_per_leaf_row"] = link.cost->attend_s * 1e6;
  }
  return out;
}

Json borrowed_json(const BorrowedMemoryStats& b) {
  return {{"queries", b.queries},
          {"leaf_rows", b.leaf_rows},
          {"query_bytes", b.query_bytes + b.query_extra_bytes},
          {"partial_bytes", b.partial_bytes + b.partial_extra_bytes},
          {"shipped", b.shipped},
          {"fetched", b.fetched_cost + b.fetched_busy + b.fetched_split},
          {"fetched_bytes", b.fetched_bytes},
          {"written_bytes", b.written_bytes},
          {"read_bytes", b.read_bytes},
          {"failed", b.failed},
          {"late_replies", b.late_replies},
          {"wrong_replies", b.wrong_replies}};
}

Json lent_json(const LentMemoryStats& l) {
  return {{"queries", l.queries},
          {"leaf_rows", l.leaf_rows},
          {"busy_s", l.busy_s},
          {"refused_busy", l.busy},
          {"stale_epoch", l.stale_epoch},
          {"no_cell", l.no_cell},
          {"written_bytes", l.written_bytes},
          {"read_bytes", l.read_bytes}};
}

// What is no UTF-8, as a peer's word may be, is replaced: the library would throw.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const NodeStatus& s) {
  Json out = {{"instance", s.self.instance},
              {"epoch", s.self.epoch},
              {"leader", s.leader},
              {"term", s.term},
              {"directory_down_s", s.directory_down_s},
              {"leaving", s.leaving},
              {"location", s.location},
              {"cell_bytes", s.cell_bytes},
              {"free_cells", s.free_cells},
              {"total_cells", s.total_cells},
              {"lend_cap", s.lend_cap},
              {"room_cells", s.room},
              {"borrowable_cells", s.borrowable_cells},
              {"settling", s.settling}};
  Json& links = out["links"] = Json::array();
  for (const PeerLink& link : s.links) links.push_back(link_json(link));
  out["not_compatible"] = s.not_compatible;
  out["borrowed"] = borrowed_json(s.borrowed);
  out["lent"] = lent_json(s.lent);
  if (s.leader != s.self.instance || s.ledger.empty()) return text_of(out);
  Json& ledger = out["ledger"] = Json::array();
  for (const LedgerLine& line : s.ledger) {
    ledger.push_back({{"instance", line.id.instance},
                      {"free", line.figures.free},
                      {"total", line.figures.total},
                      {"room", line.figures.room},
                      {"memory", line.figures.device ? "device" : "host"},
                      {"location", line.figures.location},
                      {"heard_ms_ago", line.heard_ago / kNanosPerMilli},
                      {"refused", line.refused},
                      {"lent", by_instance(line.figures.lent)},
                      {"owed", by_instance(line.figures.owed)}});
  }
  out["gmanager"] = {{"heartbeats", s.counts.heartbeats},
                     {"wishes", s.counts.wishes},
                     {"advised", s.counts.advised},
                     {"denied", s.counts.denied},
                     {"settlements", s.counts.settlements},
                     {"settlements_failed", s.counts.settlements_failed},
                     {"settled_blocks", s.counts.settled_blocks}};
  return text_of(out);
}

}  // namespace kvasir::cluster
