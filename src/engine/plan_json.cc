#include "engine/plan_json.h"

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace kvasir {

// The JSON library finds these by name when it converts the types.
void to_json(nlohmann::json& j, const LayerSet& s) {
  j = nlohmann::json::array({s.word(0), s.word(1)});
}
void from_json(const nlohmann::json& j, LayerSet& s) {
  s.set_word(0, j.at(0).get<uint64_t>());
  s.set_word(1, j.at(1).get<uint64_t>());
}
void to_json(nlohmann::json& j, const FrameBudget& b) {
  j = {{"loose", b.loose},       {"spare_slabs", b.spare_slabs}, {"slabs", b.slabs},
       {"per_slab", b.per_slab}, {"promised", b.promised},       {"coming", b.coming}};
}
void from_json(const nlohmann::json& j, FrameBudget& b) {
  j.at("loose").get_to(b.loose);
  j.at("spare_slabs").get_to(b.spare_slabs);
  j.at("slabs").get_to(b.slabs);
  j.at("per_slab").get_to(b.per_slab);
  j.at("promised").get_to(b.promised);
  j.at("coming").get_to(b.coming);
}
void to_json(nlohmann::json& j, const Interval& i) {
  j = nlohmann::json::array({i.begin, i.end});
}
void from_json(const nlohmann::json& j, Interval& i) {
  i = {j.at(0).get<uint32_t>(), j.at(1).get<uint32_t>()};
}

void to_json(nlohmann::json& j, const Slo& s) {
  j = nlohmann::json::array({s.ttft_ms, s.tpot_ms, s.tbt_ms, s.e2el_ms});
}
void from_json(const nlohmann::json& j, Slo& s) {
  s = {j.at(0).get<uint32_t>(), j.at(1).get<uint32_t>(), j.at(2).get<uint32_t>(), j.at(3).get<uint32_t>()};
}
void to_json(nlohmann::json& j, const LengthPrediction& p) {
  j = nlohmann::json::array({p.output_tokens, p.length_class, static_cast<int>(p.deviation)});
}
void from_json(const nlohmann::json& j, LengthPrediction& p) {
  const int deviation = j.at(2).get<int>();
  if (deviation < -1 || deviation > 1) throw std::out_of_range("a deviation that there is not");
  p = {j.at(0).get<uint32_t>(), j.at(1).get<uint8_t>(), static_cast<Deviation>(deviation)};
}
void to_json(nlohmann::json& j, const LengthClass& c) {
  j = nlohmann::json::array({c.low, c.high, c.median_tokens, c.finished, c.residuals});
}
void from_json(const nlohmann::json& j, LengthClass& c) {
  j.at(0).get_to(c.low);
  j.at(1).get_to(c.high);
  j.at(2).get_to(c.median_tokens);
  j.at(3).get_to(c.finished);
  j.at(4).get_to(c.residuals);
}
void to_json(nlohmann::json& j, const LinkCost& c) {
  j = nlohmann::json::array({c.latency_s, c.seconds_per_byte});
}
void from_json(const nlohmann::json& j, LinkCost& c) {
  c = {j.at(0).get<double>(), j.at(1).get<double>()};
}
void to_json(nlohmann::json& j, const CostModel& c) {
  j = nlohmann::json::array({c.step_s, c.prefill_row_s, c.pair_s, c.decode_row_s, c.context_s,
                             c.projected_token_s, c.links, c.steps_seen, c.knee_rows, c.above_knee_s,
                             c.expert_share, c.experts_s});
}
void from_json(const nlohmann::json& j, CostModel& c) {
  j.at(0).get_to(c.step_s);
  j.at(1).get_to(c.prefill_row_s);
  j.at(2).get_to(c.pair_s);
  j.at(3).get_to(c.decode_row_s);
  j.at(4).get_to(c.context_s);
  j.at(5).get_to(c.projected_token_s);
  j.at(6).get_to(c.links);
  j.at(7).get_to(c.steps_seen);
  j.at(8).get_to(c.knee_rows);
  j.at(9).get_to(c.above_knee_s);
  // Older logs have no experts.
  if (j.size() <= 10) return;
  j.at(10).get_to(c.expert_share);
  j.at(11).get_to(c.experts_s);
}

void to_json(nlohmann::json& j, const PeersView& p) {
  auto recalled = nlohmann::json::array();
  for (const PeersView::Recalled& r : p.in_recalled) {
    recalled.push_back({raw(r.seq), r.block, r.blocks, r.group});
  }
  j = nlohmann::json::array({p.most_borrowed, p.borrowed, p.asked, p.recalled, p.lent, p.peers_refuse,
                             p.recalled_by, std::move(recalled), p.out_of_reach, p.awaited, p.awaited_since});
}
void from_json(const nlohmann::json& j, PeersView& p) {
  j.at(0).get_to(p.most_borrowed);
  j.at(1).get_to(p.borrowed);
  j.at(2).get_to(p.asked);
  j.at(3).get_to(p.recalled);
  j.at(4).get_to(p.lent);
  j.at(5).get_to(p.peers_refuse);
  j.at(6).get_to(p.recalled_by);
  j.at(8).get_to(p.out_of_reach);
  j.at(9).get_to(p.awaited);
  j.at(10).get_to(p.awaited_since);
  for (const nlohmann::json& r : j.at(7)) {
    p.in_recalled.push_back({SeqId{r.at(0).get<uint64_t>()}, r.at(1).get<uint32_t>(), r.at(2).get<uint32_t>(),
                             r.at(3).get<uint32_t>()});
  }
}

namespace {

using nlohmann::json;

// Every field of SeqView is listed once, for both directions.
template <typename Archive, typename Seq>
void seq_fields(Archive&& field, Seq& s) {
  field("priority", s.priority);
  field("weight", s.weight);
  field("arrival", s.arrival);
  field("first_token_time", s.first_token_time);
  field("last_token_time", s.last_token_time);
  field("slo", s.slo);
  field("prompt_tokens", s.prompt_tokens);
  field("known_tokens", s.known_tokens);
  field("max_total_tokens", s.max_total_tokens);
  field("ready_tokens", s.ready_tokens);
  field("blocks", s.blocks);
  field("cells", s.cells);
  field("own_cells", s.own_cells);
  field("leaving_cells", s.leaving_cells);
  field("device_groups", s.device_groups);
  field("resident_blocks", s.resident_blocks);
  field("first_device_block", s.first_device_block);
  field("dropped", s.dropped);
  field("dropped_cells", s.dropped_cells);
  field("dropped_first_group", s.dropped_first_group);
  field("dropped_end_group", s.dropped_end_group);
  field("tail_resident", s.tail_resident);
  field("tail_busy", s.tail_busy);
  field("stalled", s.stalled);
  field("deferrals", s.deferrals);
  field("transfers", s.transfers);
  field("cached_tokens", s.cached_tokens);
  field("cached_resident_cells", s.cached_resident_cells);
  field.newer("cached_shared_cells", s.cached_shared_cells);
  field("cached_idle", s.cached_idle);
  field.newer("cached_peer_blocks", s.cached_peer_blocks);
  field.newer("attended", s.attended);
  field.newer("dead_blocks", s.dead_blocks);
  field("promised_cells", s.promised_cells);
  field("peer_blocks", s.peer_blocks);
  field("preemptions", s.preemptions);
  field("late_gaps", s.late_gaps);
  field("in_flight", s.in_flight);
  field("predicted", s.predicted);
}

template <typename Archive, typename V>
void view_fields(Archive&& field, V& v) {
  field("now", v.now);
  field("steps_in_flight", v.steps_in_flight);
  field("block_tokens", v.geometry.block_tokens);
  field("layers", v.geometry.layers);
  field("layers_per_group", v.geometry.layers_per_group);
  field("kv_plane_bytes_per_token_layer", v.geometry.kv_plane_bytes_per_token_layer);
  field.newer("kv_planes", v.geometry.kv_planes);
  field("x_bytes_per_token_layer", v.geometry.x_bytes_per_token_layer);
  field.newer("window", v.geometry.window);
  field.newer("windowed", v.geometry.windowed);
  field.newer("window_chunk", v.geometry.window_chunk);
  field.newer("least_piece_bytes", v.geometry.least_piece_bytes);
  field("max_num_seqs", v.limits.max_num_seqs);
  field("max_num_batched_tokens", v.limits.max_num_batched_tokens);
  field("long_prefill_token_threshold", v.limits.long_prefill_token_threshold);
  field("max_prefill_beside_decodes", v.limits.max_prefill_beside_decodes);
  field("device", v.device);
  field("host", v.host);
  field("disk", v.disk);
  field("scratch_tokens", v.scratch_tokens);
  field("stage_blocks", v.stage_blocks);
  field("peers", v.peers);
  field("transfers_in_flight", v.transfers_in_flight);
  field("link_bytes_per_s", v.link.bytes_per_s);
  field("link_latency_s", v.link.latency_s);
  field("link_queued_bytes", v.link.queued_bytes);
  field("reserved_cells", v.reserved_cells);
  field("costs", v.costs);
  field("length_classes", v.length_classes);
}

struct Writer {
  json& j;
  template <typename T>
  void operator()(const char* key, const T& value) {
    j[key] = value;
  }
  template <typename T>
  void newer(const char* key, const T& value) {
    j[key] = value;
  }
};
struct Reader {
  const json& j;
  template <typename T>
  void operator()(const char* key, T& value) {
    j.at(key).get_to(value);
  }
  // Older logs have none: then the default stays.
  template <typename T>
  void newer(const char* key, T& value) {
    if (j.contains(key)) j.at(key).get_to(value);
  }
};

json seq_to_json(const SeqView& s) {
  json j;
  j["id"] = raw(s.id);
  seq_fields(Writer{j}, s);
  return j;
}
SeqView seq_from_json(const json& j) {
  SeqView s;
  s.id = SeqId{j.at("id").get<uint64_t>()};
  seq_fields(Reader{j}, s);
  return s;
}

// The enumerator among 0..count-1 whose name is `text`.
template <typename Enum>
Enum enum_from(const json& text, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (text.get_ref<const std::string&>() == name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  throw std::out_of_range("unknown name " + text.dump());
}

SeqId seq_from(const json& j) {
  return SeqId{j.at("seq").get<uint64_t>()};
}

json copy_to_json(const CopyChange& c) {
  return {{"verb", name(c.verb)},      {"seq", raw(c.seq)},    {"tokens", json(c.tokens)},
          {"layers", json(c.layers)},  {"form", name(c.form)}, {"tier", name(c.tier)},
          {"trigger", name(c.trigger)}};
}
CopyChange copy_from_json(const json& j) {
  CopyChange c;
  c.verb = enum_from<Verb>(j.at("verb"), 4);
  c.seq = seq_from(j);
  c.tokens = j.at("tokens").get<Interval>();
  c.layers = j.at("layers").get<LayerSet>();
  c.form = enum_from<Form>(j.at("form"), kForms);
  c.tier = enum_from<Tier>(j.at("tier"), kTiers);
  c.trigger = enum_from<Trigger>(j.at("trigger"), 5);
  return c;
}

json claim_to_json(const Claim& c) {
  return {{"debtor", raw(c.debtor)},    {"creditor", raw(c.creditor)}, {"cells", c.cells},
          {"due_tokens", c.due_tokens}, {"tier", name(c.tier)},        {"called", c.called}};
}
Claim claim_from_json(const json& j) {
  return {SeqId{j.at("debtor").get<uint64_t>()}, SeqId{j.at("creditor").get<uint64_t>()},
          j.at("cells").get<uint32_t>(),         j.at("due_tokens").get<uint32_t>(),
          enum_from<Tier>(j.at("tier"), kTiers), j.at("called").get<bool>()};
}

json promise_to_json(const Promise& p) {
  return {{"seq", raw(p.owner)},  {"cells", p.cells},    {"tier", name(p.tier)},
          {"kind", name(p.kind)}, {"from", raw(p.from)}, {"due_tokens", p.due_tokens}};
}
Promise promise_from_json(const json& j) {
  return {seq_from(j),
          j.at("cells").get<uint32_t>(),
          enum_from<Tier>(j.at("tier"), kTiers),
          enum_from<Promise::Kind>(j.at("kind"), 5),
          SeqId{j.at("from").get<uint64_t>()},
          j.at("due_tokens").get<uint32_t>()};
}

json rows_to_json(const Rows& r) {
  return {{"seq", raw(r.seq)},    {"tokens", json(r.tokens)},      {"layers", json(r.layers)},
          {"kind", name(r.kind)}, {"write_kv", json(r.writes.kv)}, {"write_x", json(r.writes.x)},
          {"samples", r.samples}};
}
Rows rows_from_json(const json& j) {
  Rows r;
  r.seq = seq_from(j);
  r.tokens = j.at("tokens").get<Interval>();
  r.layers = j.at("layers").get<LayerSet>();
  r.kind = enum_from<RowKind>(j.at("kind"), 4);
  r.writes.kv = j.at("write_kv").get<LayerSet>();
  r.writes.x = j.at("write_x").get<LayerSet>();
  r.samples = j.at("samples").get<bool>();
  return r;
}

json reason_to_json(const Reason& r) {
  return {{"cause", name(r.cause)}, {"seq", raw(r.seq)}, {"other", raw(r.other)}, {"a", r.a}, {"b", r.b},
          {"words", to_string(r)}};
}
Reason reason_from_json(const json& j) {
  return {enum_from<Cause>(j.at("cause"), kCauses), seq_from(j), SeqId{j.at("other").get<uint64_t>()},
          j.at("a").get<double>(), j.at("b").get<double>()};
}

}  // namespace

json view_to_json(const View& view) {
  json j;
  j["step"] = raw(view.next_step);
  view_fields(Writer{j}, view);
  j["claims"] = json::array();
  for (const Claim& c : view.claims) j["claims"].push_back(claim_to_json(c));
  j["running"] = json::array();
  j["waiting"] = json::array();
  for (const SeqView& s : view.running) j["running"].push_back(seq_to_json(s));
  for (const SeqView& s : view.waiting) j["waiting"].push_back(seq_to_json(s));
  return j;
}

View view_from_json(const json& j) {
  View view;
  view.next_step = StepId{j.at("step").get<uint64_t>()};
  view_fields(Reader{j}, view);
  const CacheGeometry& g = view.geometry;
  if (g.block_tokens == 0 || g.layers == 0 || g.layers_per_group == 0 || g.groups() > kMaxLayerGroups) {
    throw std::out_of_range("a geometry that no cache has");
  }
  for (const json& c : j.at("claims")) view.claims.push_back(claim_from_json(c));
  for (const json& s : j.at("running")) view.running.push_back(seq_from_json(s));
  for (const json& s : j.at("waiting")) view.waiting.push_back(seq_from_json(s));
  return view;
}

json plan_to_json(const StepPlan& plan) {
  json j = {{"failures", json::array()},  {"preemptions", json::array()}, {"copies", json::array()},
            {"adoptions", json::array()}, {"promises", json::array()},    {"rows", json::array()}};
  for (const auto& f : plan.failures) j["failures"].push_back({{"seq", raw(f.seq)}, {"reason", f.reason}});
  for (const auto& p : plan.preemptions) j["preemptions"].push_back({{"seq", raw(p.seq)}});
  for (const auto& c : plan.copies) j["copies"].push_back(copy_to_json(c));
  for (const auto& a : plan.adoptions) j["adoptions"].push_back({{"seq", raw(a.seq)}, {"tokens", a.tokens}});
  for (const auto& p : plan.promises) j["promises"].push_back(promise_to_json(p));
  for (const auto& r : plan.rows) j["rows"].push_back(rows_to_json(r));
  for (const Reason& r : plan.reasons) j["reasons"].push_back(reason_to_json(r));
  if (plan.borrow_cells > 0) j["borrow_cells"] = plan.borrow_cells;
  if (plan.return_cells > 0) j["return_cells"] = plan.return_cells;
  if (const ExecutionHints& h = plan.hints; h != ExecutionHints{}) {
    j["hints"] = {{"overlap", h.overlap}, {"fuse", h.fuse}};
  }
  return j;
}

StepPlan plan_from_json(const json& j) {
  StepPlan plan;
  for (const json& f : j.at("failures"))
    plan.failures.push_back({seq_from(f), f.at("reason").get<std::string>()});
  for (const json& p : j.at("preemptions")) plan.preemptions.push_back({seq_from(p)});
  for (const json& c : j.at("copies")) plan.copies.push_back(copy_from_json(c));
  for (const json& a : j.at("adoptions"))
    plan.adoptions.push_back({seq_from(a), a.at("tokens").get<uint32_t>()});
  for (const json& p : j.at("promises")) plan.promises.push_back(promise_from_json(p));
  for (const json& r : j.at("rows")) plan.rows.push_back(rows_from_json(r));
  if (j.contains("reasons")) {
    for (const json& r : j.at("reasons")) plan.reasons.push_back(reason_from_json(r));
  }
  plan.borrow_cells = j.value("borrow_cells", 0u);
  plan.return_cells = j.value("return_cells", 0u);
  if (j.contains("hints")) {
    const json& h = j.at("hints");
    plan.hints = {h.at("overlap").get<bool>(), h.at("fuse").get<bool>()};
  }
  return plan;
}

}  // namespace kvasir
