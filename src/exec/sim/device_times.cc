#include "exec/sim/device_times.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvasir {
namespace {

constexpr double kActivationBytes = 2;  // of an element between layers
constexpr double kPartialBytes = 4;     // of an element of a partial result of attention
constexpr int kExactRows = 16;
constexpr int kPointsPerOctave = 8;
constexpr int kOctaves = 14;  // beyond the exact rows: up to 262,144

// log2 of seconds over log2 of bytes. Beyond the table's end seconds grow with the bytes.
double table_seconds(const Curve& table, double bytes) {
  const double x = std::log2(std::max(bytes, 1.0));
  return std::exp2(table.at(x) + std::max(0.0, x - table.x.back()));
}

double smooth_max(double a, double b, double order) {
  const double top = std::max(a, b);
  if (top <= 0) return 0;
  return top * std::pow(std::pow(a / top, order) + std::pow(b / top, order), 1 / order);
}

// The table of as many cards, or of the next larger number that was measured.
const Curve& table_of(const std::map<uint32_t, Curve>& tables, uint32_t cards) {
  const auto it = tables.lower_bound(cards);
  return it == tables.end() ? tables.rbegin()->second : it->second;
}

// `one` in the rows of each layer, where chunks may pass a share of the layers only: those that pass fewer
// are taken to pass the same ones.
double over_layers(const StepLoad& load, double part, const RowTable& one, double layers) {
  double all = load.decode_rows;
  bool partial = false;
  for (const StepLoad::Chunk& c : load.chunks) {
    all += c.rows;
    partial = partial || c.passed < 1;
  }
  if (!partial) return layers * one.at(all * part);
  std::vector<std::pair<double, double>> ends;  // share of the layers, rows that pass no more
  for (const StepLoad::Chunk& c : load.chunks) ends.emplace_back(std::min(c.passed, 1.0), c.rows);
  if (load.decode_rows > 0) ends.emplace_back(1, load.decode_rows);
  std::sort(ends.begin(), ends.end());
  double sum = 0, before = 0;
  for (const auto& [share, rows] : ends) {
    sum += (share - before) * one.at(all * part);
    before = share;
    all -= rows;
  }
  return layers * sum;
}

}  // namespace

double Curve::at(double value) const {
  if (x.empty()) return 0;
  if (value <= x.front()) return y.front();
  if (value >= x.back()) return y.back();
  const size_t i = std::upper_bound(x.begin(), x.end(), value) - x.begin();
  return y[i - 1] + (y[i] - y[i - 1]) * (value - x[i - 1]) / (x[i] - x[i - 1]);
}

GridCurve::GridCurve(const Curve& curve) {
  if (curve.x.empty()) return;
  // Knots are multiples of a half, so this loses nothing.
  constexpr double kStep = 0.5;
  first_ = curve.x.front();
  per_step_ = 1 / kStep;
  for (double x = first_; x <= curve.x.back(); x += kStep) values_.push_back(curve.at(x));
}

double GridCurve::at(double x) const {
  if (values_.empty()) return 0;
  const double position = (x - first_) * per_step_;
  if (!(position > 0)) return values_.front();
  const auto i = static_cast<size_t>(position);
  if (i + 1 >= values_.size()) return values_.back();
  return values_[i] + (values_[i + 1] - values_[i]) * (position - static_cast<double>(i));
}

const std::vector<double>& RowTable::grid() {
  static const std::vector<double> rows = [] {
    std::vector<double> out;
    for (int r = 0; r <= kExactRows; ++r) out.push_back(r);
    for (int i = 1; i <= kOctaves * kPointsPerOctave; ++i) {
      out.push_back(kExactRows * std::exp2(static_cast<double>(i) / kPointsPerOctave));
    }
    return out;
  }();
  return rows;
}

RowTable::RowTable(const std::function<double(double)>& seconds) {
  for (const double rows : grid()) {
    const double value = rows > 0 ? seconds(rows) : 0.0;
    values_.push_back(values_.empty() ? value : std::max(value, values_.back()));
  }
}

double RowTable::at(double rows) const {
  if (rows <= 0) return 0;
  const std::vector<double>& at = grid();
  rows = std::max(rows, 1.0);
  size_t i = 0;
  if (rows < kExactRows) {
    i = static_cast<size_t>(rows);
  } else {
    if (rows >= at.back()) return values_.back() * rows / at.back();
    i = kExactRows + static_cast<size_t>(std::log2(rows / kExactRows) * kPointsPerOctave);
    i = std::min(i, at.size() - 2);
  }
  return values_[i] + (values_[i + 1] - values_[i]) * (rows - at[i]) / (at[i + 1] - at[i]);
}

DeviceTimes::Kernel::Kernel(const KernelCoefficients& c)
    : launch_s(c.launch_s), unit_s(c.unit_s), sharpness(c.sharpness) {
  for (const Curve& curve : c.flop_rate) flop_rate.emplace_back(curve);
  for (const Curve& curve : c.byte_rate) byte_rate.emplace_back(curve);
}

Status DeviceTimes::check(const ModelShape& model, const DeviceSpec& device, const Parallelism& p) {
  if (model.layers == 0 || model.hidden == 0 || model.heads == 0 || model.kv_heads == 0 ||
      model.head_dim == 0 || model.active_ffn() == 0 || model.dense_layers > model.layers ||
      model.vocab == 0 || model.heads % model.kv_heads != 0) {
    return error(ErrorCode::kInvalidArgument, "model {}: a size is 0, or kv_heads does not divide heads",
                 model.name);
  }
  if (p.tensor == 0 || p.tensor > 8 || model.heads % p.tensor != 0 ||
      (model.kv_heads % p.tensor != 0 && p.tensor % model.kv_heads != 0)) {
    return error(
        ErrorCode::kInvalidArgument,
        "tensor parallel {}: takes 1 to 8 cards that share the {} heads and {} KV heads of {} evenly",
        p.tensor, model.heads, model.kv_heads, model.name);
  }
  if (p.pipeline == 0 || p.pipeline > model.layers) {
    return error(ErrorCode::kInvalidArgument,
                 "pipeline parallel {}: {} has {} layers, take 1 to that many stages", p.pipeline, model.name,
                 model.layers);
  }
  if (device.gemm.flop_rate.empty() || device.gemm.byte_rate.empty() ||
      device.prefill_attention.flop_rate.empty() || device.decode_grouped.byte_rate.empty() ||
      device.decode_single.byte_rate.empty() || device.elementwise.byte_rate.empty()) {
    return error(ErrorCode::kInvalidArgument, "device {}: a kernel has no coefficients", device.name);
  }
  if ((p.tensor > 1 && device.all_reduce.empty()) || (p.pipeline > 1 && device.send_recv.x.empty())) {
    return error(ErrorCode::kInvalidArgument, "device {}: nothing is known of several such cards; use one",
                 device.name);
  }
  return {};
}

DeviceTimes::DeviceTimes(ModelShape model, DeviceSpec device, Parallelism parallelism,
                         EngineOverhead overhead)
    : model_(std::move(model)),
      device_(std::move(device)),
      parallelism_(parallelism),
      overhead_(std::move(overhead)),
      heads_(static_cast<double>(model_.heads) / parallelism_.tensor),
      kv_heads_(std::max(1.0, static_cast<double>(model_.kv_heads) / parallelism_.tensor)),
      gemm_(device_.gemm),
      prefill_(device_.prefill_attention),
      decode_(model_.heads == model_.kv_heads ? device_.decode_single : device_.decode_grouped),
      elementwise_kernel_(device_.elementwise),
      linear_([this](double rows) { return layer_linear(rows); }),
      elementwise_([this](double rows) { return layer_elementwise(rows); }),
      all_reduce_(
          [this](double rows) { return 2 * all_reduce_seconds(rows * model_.hidden * kActivationBytes); }),
      output_([this](double rows) { return output_layer(rows); }),
      projection_([this](double rows) {
        return gemm(rows, 2 * kv_heads_ * model_.head_dim, model_.hidden, device_.layer_factor);
      }) {}

double DeviceTimes::gemm(double m, double n, double k, double compute_factor) const {
  return gemm_of(m, n, k, compute_factor, model_.weight_element_bytes);
}

double DeviceTimes::gemm_of(double m, double n, double k, double compute_factor, double element_bytes) const {
  const double lm = std::log2(m), ln = std::log2(n), lk = std::log2(k);
  const auto& f = gemm_.flop_rate;
  const auto& b = gemm_.byte_rate;
  const double at_f[] = {lm, lm + ln, lk};
  const double at_b[] = {ln + lk, lm};
  double flops = 0, bytes = 0;
  for (size_t i = 0; i < f.size(); ++i) flops += f[i].at(at_f[i]);
  for (size_t i = 0; i < b.size(); ++i) bytes += b[i].at(at_b[i]);
  const double moved = kActivationBytes * (m * n + m * k) + element_bytes * n * k;
  return gemm_.launch_s + smooth_max(compute_factor * 2 * m * n * k / std::exp2(flops),
                                     moved / std::exp2(bytes), gemm_.sharpness);
}

double DeviceTimes::layer_linear(double rows) const {
  const double q = heads_ * model_.head_dim, kv = kv_heads_ * model_.head_dim;
  const double ffn = static_cast<double>(model_.ffn) / parallelism_.tensor;
  const double hidden = model_.hidden, factor = device_.layer_factor;
  const double attention = model_.is_latent()
                               ? latent_linear(rows)
                               : gemm(rows, q + 2 * kv, hidden, factor) + gemm(rows, hidden, q, factor);
  const double wide = model_.gated_mlp ? 2 : 1;
  const auto mlp = [&](double m, double inner, double element_bytes) {
    return gemm_of(m, wide * inner, hidden, factor, element_bytes) +
           gemm_of(m, hidden, inner, factor, element_bytes);
  };
  if (model_.experts == 0) return attention + mlp(rows, ffn, model_.weight_element_bytes);
  // The products of the experts that are touched are one kernel each for gate and up, and for down, which
  // works on their rows expert by expert.
  const double touched = std::max(1.0, model_.experts_touched(rows));
  const double inner = static_cast<double>(model_.expert_ffn) / parallelism_.tensor;
  const double one =
      mlp(std::max(1.0, rows * model_.experts_used / touched), inner, model_.expert_element_bytes);
  const double launches = 2 * gemm_.launch_s;
  double seconds = gemm(rows, model_.experts, hidden, factor) + launches + touched * (one - launches);
  if (model_.shared_ffn > 0) {
    const double shared = static_cast<double>(model_.shared_ffn) / parallelism_.tensor;
    seconds += mlp(rows, shared, model_.weight_element_bytes);
  }
  // Layers are alike here: each has its share of those that have no experts.
  const double dense = static_cast<double>(model_.dense_layers) / model_.layers;
  if (dense > 0) seconds = (1 - dense) * seconds + dense * mlp(rows, ffn, model_.weight_element_bytes);
  return attention + seconds;
}

// The products of each head with its own matrix count as one of the same work and bytes. Every card has the
// rows of the cache.
double DeviceTimes::latent_linear(double rows) const {
  const LatentShape& l = model_.latent;
  const double hidden = model_.hidden, factor = device_.layer_factor, row = model_.head_dim;
  const double queries = heads_ * (l.nope_dim + l.rope_dim), values = heads_ * l.value_dim;
  double seconds = l.q_rank > 0
                       ? gemm(rows, l.q_rank + row, hidden, factor) + gemm(rows, queries, l.q_rank, factor)
                       : gemm(rows, queries + row, hidden, factor);
  seconds += gemm(rows, heads_ * l.rank, l.nope_dim, factor) + gemm(rows, values, l.rank, factor);
  return seconds + gemm(rows, hidden, values, factor);
}

double DeviceTimes::layer_elementwise(double rows) const {
  // Two norms read and write a row, two additions read two and write one; rotation reads and writes Q and K;
  // the activation reads gate and up, and writes one. What experts give is read once more, to add it up.
  const double ffn = static_cast<double>(model_.active_ffn()) / parallelism_.tensor;
  const double width = (10.0 + model_.experts_used) * model_.hidden +
                       2 * (heads_ + kv_heads_) * model_.head_dim + (model_.gated_mlp ? 3 : 2) * ffn;
  const double bytes = kActivationBytes * rows * width;
  return elementwise_kernel_.launch_s +
         bytes / std::exp2(elementwise_kernel_.byte_rate.front().at(std::log2(bytes)));
}

double DeviceTimes::output_layer(double sampled) const {
  const double vocab = static_cast<double>(model_.vocab) / parallelism_.tensor;
  const double product = gemm(sampled, vocab, model_.hidden, device_.layer_factor);
  // Gathering moves half of what an all-reduce of the same bytes does.
  return product + all_reduce_seconds(sampled * model_.vocab * kActivationBytes) / 2;
}

double DeviceTimes::all_reduce_seconds(double bytes) const {
  if (parallelism_.tensor == 1) return 0;
  const double seconds = table_seconds(table_of(device_.all_reduce, parallelism_.tensor), bytes);
  return overhead_.eager ? std::max(seconds, device_.eager_all_reduce_s) : seconds;
}

double DeviceTimes::send_seconds(double rows) const {
  if (rows <= 0) return 0;
  return table_seconds(device_.send_recv, rows * model_.hidden * kActivationBytes);
}

double DeviceTimes::prefill_attention_seconds(const std::vector<StepLoad::Chunk>& chunks, double part) const {
  double pairs = 0, largest = 0, attended = 0;
  for (const StepLoad::Chunk& c : chunks) {
    const double work = c.pairs() * c.attended;
    pairs += work;
    largest = std::max(largest, work);
    attended += c.attended;
  }
  if (pairs <= 0) return 0;
  // As many chunks as large as the largest would be the same work: a short one beside a long one fills no
  // card.
  const double batch = std::max(1.0, part * pairs / largest);
  const double elements = std::log2(batch * heads_);
  const GridCurve& by_rows = prefill_.flop_rate[0];
  const GridCurve& by_elements = prefill_.flop_rate[1];
  double seconds = 0;
  for (const StepLoad::Chunk& c : chunks) {
    const double work = c.pairs() * c.attended;
    if (work <= 0) continue;
    const double rows = std::log2(c.rows);
    double rate = by_rows.at(rows) + by_elements.at(rows + elements);
    if (c.history > 0) {
      const double ceiling = std::max(rate, device_.prefill_ceiling_log2);
      rate = std::min(ceiling, rate + prefill_.flop_rate[2].at(std::log2(1 + c.history / c.rows)));
    }
    seconds += 2.0 * (model_.head_dim + model_.attended_head_dim()) * heads_ * work * std::exp2(-rate);
  }
  return prefill_.launch_s * std::min(1.0, attended) + part * (prefill_.unit_s * heads_ * attended + seconds);
}

double DeviceTimes::decode_attention_seconds(double rows, double context) const {
  if (rows <= 0 || context <= 0) return 0;
  const double heads = std::max(rows, 1.0) * kv_heads_;
  double rate =
      decode_.byte_rate[0].at(std::log2(context / rows)) + decode_.byte_rate[1].at(std::log2(heads));
  if (decode_.byte_rate.size() > 2) rate += decode_.byte_rate[2].at(std::log2(heads_ / kv_heads_));
  const double bytes = model_.kv_planes() * model_.kv_element_bytes * model_.head_dim * kv_heads_ * context;
  double seconds = bytes * std::exp2(-rate);
  // All heads meet each row of latent attention: arithmetic may take longer than memory.
  if (model_.is_latent()) {
    const double flops = 2.0 * (model_.head_dim + model_.latent.rank) * heads_ * context;
    seconds = std::max(seconds, flops / device_.flops);
  }
  return decode_.launch_s + decode_.unit_s * heads + seconds;
}

StepParts DeviceTimes::all_layers(const StepLoad& load, double part) const {
  const double layers = model_.layers;
  StepParts out;
  out.linear = over_layers(load, part, linear_, layers);
  out.elementwise = over_layers(load, part, elementwise_, layers);
  if (parallelism_.tensor > 1) out.collectives = over_layers(load, part, all_reduce_, layers);
  out.attention = layers * (prefill_attention_seconds(load.chunks, part) +
                            decode_attention_seconds(load.decode_rows * part, load.decode_context * part));
  out.output = output_.at(load.sampled * part);
  // In all layers alike, or in as many as there are tokens for.
  const double projected = load.projected * part;
  const double touched = std::min(layers, projected);
  if (projected > 0) out.projection = touched * projection_.at(projected / touched);
  return out;
}

StepParts DeviceTimes::parts(const StepLoad& load) const {
  double rows = load.decode_rows;
  for (const StepLoad::Chunk& c : load.chunks) rows += c.rows;
  StepParts best = all_layers(load, 1);
  const double stages = parallelism_.pipeline;
  best.collectives += (stages - 1) * (stages > 1 ? send_seconds(rows) : 0);
  // The slowest stage has the most layers, and the output layer.
  const double slowest = std::ceil(model_.layers / stages) / model_.layers;
  for (double m = 2; m <= std::min(stages, rows); ++m) {
    const StepParts one = all_layers(load, 1 / m);
    const double through = 1 + (m - 1) * slowest;
    StepParts all;
    all.linear = one.linear * through;
    all.attention = one.attention * through;
    all.elementwise = one.elementwise * through;
    all.collectives = one.collectives * through + (stages - 1 + m - 1) * send_seconds(rows / m);
    all.projection = one.projection * through;
    all.output = one.output * m;
    if (all.total() < best.total()) best = all;
  }
  best.engine =
      overhead_.step_s + overhead_.sequence_s * (load.decode_rows + static_cast<double>(load.chunks.size()));
  return best;
}

double DeviceTimes::remote_attention_seconds(double queries, double tokens, double link_bytes_per_s) const {
  if (queries <= 0 || tokens <= 0) return 0;
  // One query reads the KV as in decode; several of a sequence share it as a chunk does, where that is
  // faster.
  double attention = decode_attention_seconds(queries, queries * tokens);
  if (queries > 1) attention = std::min(attention, prefill_attention_seconds({{queries, tokens}}));
  const double bytes =
      queries * heads_ * (model_.head_dim * (kActivationBytes + kPartialBytes) + 2 * kPartialBytes);
  const double rate = link_bytes_per_s > 0 ? link_bytes_per_s : device_.pcie.usable();
  const double latency = device_.send_recv.y.empty() ? 0 : std::exp2(device_.send_recv.y.front());
  return attention + 2 * latency + (rate > 0 ? bytes / rate : 0);
}

}  // namespace kvasir
