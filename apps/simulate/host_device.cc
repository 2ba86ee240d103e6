#include "apps/simulate/host_device.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "base/file.h"
#include "runtime/costs_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr char kKind[] = "kvasir_host_device";

template <typename T>
T whole_from(const json& j, T least, T most) {
  const auto value = j.get<int64_t>();
  if (value < static_cast<int64_t>(least) || value > static_cast<int64_t>(most)) {
    throw std::out_of_range("a number is " + j.dump());
  }
  return static_cast<T>(value);
}

json to_json(const TimeCurve& c) {
  return {{"knots", c.knots}, {"slopes_s", c.slopes}};
}
TimeCurve curve_from(const json& j) {
  TimeCurve c;
  for (const json& knot : j.at("knots")) {
    c.knots.push_back(amount_from_json(knot));
    const size_t n = c.knots.size();
    if (n == 1 ? c.knots[0] != 0 : c.knots[n - 1] <= c.knots[n - 2]) throw std::out_of_range("knots");
  }
  for (const json& slope : j.at("slopes_s")) c.slopes.push_back(amount_from_json(slope));
  if (c.knots.size() != c.slopes.size()) throw std::out_of_range("knots and slopes");
  return c;
}

json to_json(const MeasuredTables& t) {
  return {{"step_s", t.step_s},           {"chunk_s", t.chunk_s},      {"decode_s", t.decode_s},
          {"projected_s", t.projected_s}, {"rows", to_json(t.rows)},   {"sampled", to_json(t.sampled)},
          {"pairs", to_json(t.pairs)},    {"spans", to_json(t.spans)}, {"contexts", to_json(t.contexts)}};
}
MeasuredTables tables_from(const json& j) {
  MeasuredTables t;
  t.step_s = amount_from_json(j.at("step_s"));
  t.chunk_s = amount_from_json(j.at("chunk_s"));
  t.decode_s = amount_from_json(j.at("decode_s"));
  t.projected_s = amount_from_json(j.at("projected_s"));
  t.rows = curve_from(j.at("rows"));
  t.sampled = curve_from(j.at("sampled"));
  t.pairs = curve_from(j.at("pairs"));
  t.spans = curve_from(j.at("spans"));
  t.contexts = curve_from(j.at("contexts"));
  return t;
}

json to_json(const CacheGeometry& g) {
  return {{"block_tokens", g.block_tokens},
          {"layers", g.layers},
          {"layers_per_group", g.layers_per_group},
          {"kv_plane_bytes_per_token_layer", g.kv_plane_bytes_per_token_layer},
          {"kv_planes", g.kv_planes},
          {"x_bytes_per_token_layer", g.x_bytes_per_token_layer}};
}
CacheGeometry geometry_from(const json& j) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 30;
  CacheGeometry g;
  g.block_tokens = whole_from(j.at("block_tokens"), 16u, 256u);
  if (256 % g.block_tokens != 0) throw std::out_of_range("block_tokens");
  g.layers = whole_from(j.at("layers"), 1u, 10'000u);
  g.layers_per_group = whole_from(j.at("layers_per_group"), 1u, g.layers);
  g.kv_plane_bytes_per_token_layer =
      whole_from(j.at("kv_plane_bytes_per_token_layer"), uint64_t{1}, kMostBytes);
  if (j.contains("kv_planes")) g.kv_planes = whole_from(j.at("kv_planes"), 1u, 2u);
  g.x_bytes_per_token_layer = whole_from(j.at("x_bytes_per_token_layer"), uint64_t{0}, kMostBytes);
  return g;
}

json to_json(const TimeNoise& n) {
  return {{"mean", n.mean}, {"deviation", n.deviation}, {"p99", n.p99}, {"lognormal_p99", n.expected_p99}};
}
TimeNoise noise_from(const json& j) {
  return {amount_from_json(j.at("mean")), amount_from_json(j.at("deviation")), amount_from_json(j.at("p99")),
          amount_from_json(j.at("lognormal_p99"))};
}

HostDevice device_from(const json& j) {
  if (j.at(kKind).get<int>() != kFormat) throw std::out_of_range("another format");
  HostDevice d;
  d.model = j.at("model").get<std::string>();
  d.fingerprint = j.at("fingerprint").get<std::string>();
  d.measured_at = j.at("measured_at").get<int64_t>();
  d.threads = whole_from(j.at("threads"), 1, 100'000);
  d.max_model_len = whole_from(j.at("max_model_len"), 1u, UINT32_MAX);
  d.vocab_size = whole_from(j.at("vocab_size"), 2, INT32_MAX);
  d.geometry = geometry_from(j.at("geometry"));
  d.tables = tables_from(j.at("times"));
  d.tables.engine_step_s = amount_from_json(j.at("engine_step_s"));
  d.tables.engine_sequence_s = amount_from_json(j.at("engine_sequence_s"));
  d.request_s = amount_from_json(j.at("request_s"));
  d.noise = amount_from_json(j.at("noise"));
  d.links = links_from_json(j.at("links"));
  d.fit = fit_error_from_json(j.at("fit_error"));
  d.held_out = fit_error_from_json(j.at("held_out_error"));
  d.engine_steps = fit_error_from_json(j.at("engine_steps_error"));
  d.tail = noise_from(j.at("tail"));
  d.times = std::make_shared<MeasuredTimes>(d.tables);
  return d;
}

}  // namespace

Result<HostDevice> load_host_device(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) {
    return error(text.status().code(), "{}; `kvasir profile --full --truth` writes such a file",
                 text.status().message());
  }
  try {
    return device_from(json::parse(*text));
  } catch (const std::exception&) {
    return error(ErrorCode::kCorrupt,
                 "{}: not the truth about a machine: let `kvasir profile --full --truth` write it anew",
                 path);
  }
}

Status save_host_device(const HostDevice& d, const std::string& path) {
  const json j = {{kKind, kFormat},
                  {"model", d.model},
                  {"fingerprint", d.fingerprint},
                  {"measured_at", d.measured_at},
                  {"threads", d.threads},
                  {"max_model_len", d.max_model_len},
                  {"vocab_size", d.vocab_size},
                  {"geometry", to_json(d.geometry)},
                  {"times", to_json(d.tables)},
                  {"engine_step_s", d.tables.engine_step_s},
                  {"engine_sequence_s", d.tables.engine_sequence_s},
                  {"request_s", d.request_s},
                  {"noise", d.noise},
                  {"links", links_to_json(d.links)},
                  {"fit_error", fit_error_to_json(d.fit)},
                  {"held_out_error", fit_error_to_json(d.held_out)},
                  {"engine_steps_error", fit_error_to_json(d.engine_steps)},
                  {"tail", to_json(d.tail)}};
  const std::string text = j.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  return replace_file(path, std::as_bytes(std::span(text)));
}

}  // namespace kvasir
