#include "engine/map_lines.h"

#include <fmt/format.h>

#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace kvasir {
namespace {

using nlohmann::json;

// Every field is listed once, for both directions: f(key, field, the same field of `b`).
template <typename F, typename A, typename B>
void facts(F&& f, A& a, B& b) {
  f("s", a.state, b.state);
  f("p", a.prompt_tokens, b.prompt_tokens);
  f("k", a.known_tokens, b.known_tokens);
  f("r", a.ready_tokens, b.ready_tokens);
  f("m", a.max_total_tokens, b.max_total_tokens);
  f("ct", a.cached_tokens, b.cached_tokens);
  f("pl", a.predicted_tokens, b.predicted_tokens);
  f("pe", a.preemptions, b.preemptions);
  f("lg", a.late_gaps, b.late_gaps);
  f("pr", a.priority, b.priority);
  f("rk", a.row_kind, b.row_kind);
  f("rn", a.rows, b.rows);
  f("at", a.arrival, b.arrival);
  f("fr", a.first_run, b.first_run);
  f("ft", a.first_token, b.first_token);
  f("slo", a.slo, b.slo);
  f("pm", a.promised_cells, b.promised_cells);
}

template <typename F, typename A, typename B>
void gauges(F&& f, A& a, B& b) {
  f("d", a.tiers[0], b.tiers[0]);
  f("h", a.tiers[1], b.tiers[1]);
  f("k", a.tiers[2], b.tiers[2]);
  f("bo", a.borrowed_cells, b.borrowed_cells);
  f("rc", a.recalled_cells, b.recalled_cells);
  f("le", a.lent_cells, b.lent_cells);
  f("tr", a.transfers, b.transfers);
  f("q", a.queued_bytes, b.queued_bytes);
  f("bps", a.link_bytes_per_s, b.link_bytes_per_s);
  f("mv", a.moved_bytes, b.moved_bytes);
  f("ph", a.phases_us, b.phases_us);
  f("pt", a.prompt_tokens, b.prompt_tokens);
  f("pc", a.cached_tokens, b.cached_tokens);
  f("gt", a.generated_tokens, b.generated_tokens);
  f("pe", a.preemptions, b.preemptions);
  f("sw", a.swapped, b.swapped);
  f("re", a.recomputed, b.recomputed);
  f("fin", a.finished, b.finished);
  f("slo", a.slo, b.slo);
  f("good", a.goodput, b.goodput);
}

// ---------------------------------------------------------------- writing

template <typename T>
void put(std::string& out, const T& value) {
  fmt::format_to(std::back_inserter(out), "{}", value);
}
void put(std::string& out, const SequenceFacts::State& state) {
  put(out, static_cast<int>(state));
}
template <typename T, size_t N>
void put(std::string& out, const std::array<T, N>& list) {
  for (size_t i = 0; i < N; ++i) {
    out += i == 0 ? '[' : ',';
    put(out, list[i]);
  }
  out += ']';
}
void put(std::string& out, const Slo& slo) {
  put(out, std::array{slo.ttft_ms, slo.tpot_ms, slo.tbt_ms, slo.e2el_ms});
}
void put(std::string& out, const MapGauges::TierUse& use) {
  put(out, std::array<uint64_t, 4>{use.bytes, use.used_bytes, use.cached_blocks, use.promised_cells});
}
void put_text(std::string& out, const std::string& text) {
  out += json(text).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

// Writes the fields that differ.
struct Changes {
  std::string& out;
  bool all;
  bool any = false;
  template <typename T>
  void operator()(const char* key, const T& now, const T& before) {
    if (!all && now == before) return;
    any = true;
    if (out.back() != '{') out += ',';
    fmt::format_to(std::back_inserter(out), "\"{}\":", key);
    put(out, now);
  }
};

void put_runs(std::string& out, const CellRuns& runs) {
  out += '[';
  for (const auto& [state, blocks] : runs) {
    if (out.back() != '[') out += ',';
    fmt::format_to(std::back_inserter(out), "{},{}", state, blocks);
  }
  out += ']';
}

// The groups that differ, neighbours with equal runs together: [first group, groups, runs].
bool put_cells(std::string& out, const std::vector<CellRuns>& now, const std::vector<CellRuns>& before) {
  bool any = false;
  const auto same = [&](size_t g) { return g < before.size() && now[g] == before[g]; };
  for (size_t g = 0; g < now.size();) {
    if (same(g)) {
      ++g;
      continue;
    }
    size_t end = g + 1;
    while (end < now.size() && !same(end) && now[end] == now[g]) ++end;
    out += any ? "," : R"(,"c":[)";
    any = true;
    fmt::format_to(std::back_inserter(out), "[{},{},", g, end - g);
    put_runs(out, now[g]);
    out += ']';
    g = end;
  }
  if (any) out += ']';
  return any;
}

void put_sequences(std::string& out, const DrawnMap& now, const DrawnMap* before) {
  static const DrawnSequence kNone;
  out += R"(,"seqs":[)";
  for (const auto& [id, s] : now.sequences) {
    const DrawnSequence* old = &kNone;
    if (before) {
      const auto it = before->sequences.find(id);
      if (it != before->sequences.end()) old = &it->second;
    }
    const size_t begin = out.size();
    if (out.back() != '[') out += ',';
    fmt::format_to(std::back_inserter(out), "{{\"id\":{}", id);
    Changes changes{out, old == &kNone};
    facts(changes, static_cast<const SequenceFacts&>(s), static_cast<const SequenceFacts&>(*old));
    const bool cells = put_cells(out, s.groups, old->groups);
    if (!changes.any && !cells) {
      out.resize(begin);
    } else {
      out += '}';
    }
  }
  out += ']';
  if (!before) return;
  bool any = false;
  for (const auto& [id, s] : before->sequences) {
    if (now.sequences.contains(id)) continue;
    out += any ? "," : R"(,"gone":[)";
    any = true;
    put(out, id);
  }
  if (any) out += ']';
}

void put_lists(std::string& out, const DrawnMap& now, const DrawnMap* before) {
  if (!before || now.moves != before->moves) {
    out += R"(,"moves":[)";
    for (const MapMove& m : now.moves) {
      if (out.back() != '[') out += ',';
      fmt::format_to(std::back_inserter(out), "[{},{},{},{}]", m.seq, m.from, m.to, m.cells);
    }
    out += ']';
  }
  if (!before || now.claims != before->claims) {
    out += R"(,"claims":[)";
    for (const Claim& c : now.claims) {
      if (out.back() != '[') out += ',';
      fmt::format_to(std::back_inserter(out), "[{},{},{},{},{},{}]", raw(c.debtor), raw(c.creditor), c.cells,
                     c.due_tokens, index_of(c.tier), c.called ? 1 : 0);
    }
    out += ']';
  }
}

void put_notes(std::string& out, const MapFrame& frame) {
  if (!frame.notes.empty()) {
    out += R"(,"notes":[)";
    for (const MapNote& n : frame.notes) {
      if (out.back() != '[') out += ',';
      fmt::format_to(std::back_inserter(out), "[{},{},{},", n.at / kNanosPerMicro, n.step, n.seq);
      put_text(out, n.name);
      out += ',';
      put_text(out, n.words);
      out += ']';
    }
    out += ']';
  }
  if (frame.unsaid > 0) fmt::format_to(std::back_inserter(out), ",\"unsaid\":{}", frame.unsaid);
}

// before: null for a whole map; notes: null for none.
std::string frame_line(uint64_t number, const DrawnMap& now, const DrawnMap* before, const MapFrame* notes) {
  std::string out = fmt::format("{{\"f\":{},{}\"t\":{},\"step\":{}", number, before ? "" : "\"whole\":true,",
                                now.at, now.step);
  put_sequences(out, now, before);
  put_lists(out, now, before);
  if (notes) put_notes(out, *notes);
  out += R"(,"g":{)";
  Changes changes{out, before == nullptr};
  gauges(changes, now.gauges, before ? before->gauges : now.gauges);
  out += "}}";
  return out;
}

// ---------------------------------------------------------------- reading

template <typename T>
void get(const json& j, T& value) {
  j.get_to(value);
}
void get(const json& j, SequenceFacts::State& state) {
  const int number = j.get<int>();
  if (number < 0 || number > 3) throw std::out_of_range("no state of a sequence");
  state = static_cast<SequenceFacts::State>(number);
}
void get(const json& j, Slo& slo) {
  slo = {j.at(0).get<uint32_t>(), j.at(1).get<uint32_t>(), j.at(2).get<uint32_t>(), j.at(3).get<uint32_t>()};
}
void get(const json& j, MapGauges::TierUse& use) {
  use = {j.at(0).get<uint64_t>(), j.at(1).get<uint64_t>(), j.at(2).get<uint32_t>(), j.at(3).get<uint32_t>()};
}

struct Fields {
  const json& j;
  template <typename T>
  void operator()(const char* key, T& value, T&) {
    if (const auto it = j.find(key); it != j.end()) get(*it, value);
  }
};

CellRuns runs_from(const json& j) {
  CellRuns runs;
  for (size_t i = 0; i + 1 < j.size(); i += 2) {
    runs.emplace_back(j.at(i).get<CellState>(), j.at(i + 1).get<uint32_t>());
  }
  return runs;
}

void read_sequence(const json& j, uint32_t groups, DrawnMap& map) {
  const auto id = j.at("id").get<uint64_t>();
  DrawnSequence& s = map.sequences[id];
  s.id = id;
  s.groups.resize(groups);
  facts(Fields{j}, static_cast<SequenceFacts&>(s), static_cast<SequenceFacts&>(s));
  if (!j.contains("c")) return;
  for (const json& part : j.at("c")) {
    const auto first = part.at(0).get<uint32_t>(), count = part.at(1).get<uint32_t>();
    if (first > groups || count > groups - first) throw std::out_of_range("no such layer group");
    const CellRuns runs = runs_from(part.at(2));
    for (uint32_t g = first; g < first + count; ++g) s.groups[g] = runs;
  }
}

void read_lists(const json& j, DrawnMap& map) {
  if (j.contains("moves")) {
    map.moves.clear();
    for (const json& m : j.at("moves")) {
      map.moves.push_back(
          {m.at(0).get<uint64_t>(), m.at(1).get<uint8_t>(), m.at(2).get<uint8_t>(), m.at(3).get<uint32_t>()});
    }
  }
  if (!j.contains("claims")) return;
  map.claims.clear();
  for (const json& c : j.at("claims")) {
    const auto tier = c.at(4).get<size_t>();
    if (tier >= kTiers) throw std::out_of_range("no such tier");
    map.claims.push_back({SeqId{c.at(0).get<uint64_t>()}, SeqId{c.at(1).get<uint64_t>()},
                          c.at(2).get<uint32_t>(), c.at(3).get<uint32_t>(), static_cast<Tier>(tier),
                          c.at(5).get<int>() != 0});
  }
}

std::vector<MapNote> notes_from(const json& j) {
  std::vector<MapNote> notes;
  for (const json& n : j) {
    notes.push_back({n.at(0).get<Nanos>() * kNanosPerMicro, n.at(1).get<uint64_t>(), n.at(2).get<uint64_t>(),
                     n.at(3).get<std::string>(), n.at(4).get<std::string>()});
  }
  return notes;
}

}  // namespace

DrawnMap draw(const MapFrame& frame, uint32_t groups) {
  DrawnMap out;
  out.at = frame.at / kNanosPerMicro;
  out.step = frame.step;
  for (const MapSequence& s : frame.sequences) {
    DrawnSequence drawn;
    static_cast<SequenceFacts&>(drawn) = static_cast<const SequenceFacts&>(s);
    for (Nanos* time : {&drawn.arrival, &drawn.first_run, &drawn.first_token}) *time /= kNanosPerMicro;
    drawn.groups.resize(groups);
    for (uint32_t g = 0; g < groups; ++g) {
      CellRuns& runs = drawn.groups[g];
      for (const BlockRun& run : s.blocks) {
        const CellState state = run.cells.state(g);
        if (!runs.empty() && runs.back().first == state) {
          runs.back().second += run.blocks;
        } else {
          runs.emplace_back(state, run.blocks);
        }
      }
    }
    out.sequences.emplace_hint(out.sequences.end(), s.id, std::move(drawn));
  }
  out.moves = frame.moves;
  out.claims = frame.claims;
  out.gauges = frame.gauges;
  return out;
}

std::string map_head(const MapLabels& labels, const MapShape& shape) {
  const CacheGeometry& g = shape.geometry;
  std::string out = fmt::format("{{\"kvasir_map\":{},\"source\":", kMapFormat);
  put_text(out, labels.source);
  out += R"(,"model":)";
  put_text(out, labels.model);
  out += R"(,"policy":)";
  put_text(out, labels.policy);
  fmt::format_to(std::back_inserter(out),
                 ",\"began\":{},\"block_tokens\":{},\"layers\":{},\"layers_per_group\":{},\"groups\":{},"
                 "\"cell_bytes\":[{},{}],\"cells\":[{},{},{}],\"borrowable_cells\":{},\"stage_blocks\":{}}}",
                 shape.began / kNanosPerMicro, g.block_tokens, g.layers, g.layers_per_group, g.groups(),
                 g.cell_bytes(Form::kKv), g.cell_bytes(Form::kX), shape.cells[0], shape.cells[1],
                 shape.cells[2], shape.borrowable_cells, shape.stage_blocks);
  return out;
}

bool is_map_line(std::string_view line) {
  return line.starts_with(R"({"kvasir_map":)") || line.starts_with(R"({"f":)");
}

std::string MapWriter::next(const MapFrame& frame) {
  DrawnMap now = draw(frame, groups_);
  std::string line = frame_line(number_ + 1, now, number_ == 0 ? nullptr : &last_, &frame);
  // Where memory was missing, the next frame tells the changes since the one before.
  ++number_;
  last_ = std::move(now);
  return line;
}

std::string MapWriter::whole() const {
  return frame_line(number_, last_, nullptr, nullptr);
}

Status MapReader::read(std::string_view line) {
  try {
    const json j = json::parse(line);
    if (j.contains("kvasir_map")) {
      const int format = j.at("kvasir_map").get<int>();
      if (format != kMapFormat) {
        return error(ErrorCode::kUnsupported, "a map of format {}; this program reads {}", format,
                     kMapFormat);
      }
      groups_ = j.at("groups").get<uint32_t>();
      if (groups_ == 0 || groups_ > kMaxLayerGroups) throw std::out_of_range("a grid that no cache has");
      map_ = {};
      number_ = 0;
      return {};
    }
    const auto number = j.at("f").get<uint64_t>();
    const bool whole = j.value("whole", false);
    if (groups_ == 0) return error(ErrorCode::kCorrupt, "a frame before the head");
    if (!whole && (number_ == 0 || number != number_ + 1)) {
      return error(ErrorCode::kCorrupt, "frame {} follows frame {}", number, number_);
    }
    if (whole) map_ = {};
    number_ = number;
    map_.at = j.at("t").get<Nanos>();
    map_.step = j.at("step").get<uint64_t>();
    for (const json& s : j.at("seqs")) read_sequence(s, groups_, map_);
    if (j.contains("gone")) {
      for (const json& id : j.at("gone")) map_.sequences.erase(id.get<uint64_t>());
    }
    read_lists(j, map_);
    notes_ = j.contains("notes") ? notes_from(j.at("notes")) : std::vector<MapNote>();
    unsaid_ = j.value("unsaid", uint64_t{0});
    gauges(Fields{j.at("g")}, map_.gauges, map_.gauges);
  } catch (const std::exception& e) {
    return error(ErrorCode::kCorrupt, "no line of a map: {}", e.what());
  }
  return {};
}

}  // namespace kvasir
