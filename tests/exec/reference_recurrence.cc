// A recurrent layer, token by token: the convolution's history and the state are kept whole.
#include <cmath>

#include "exec/reference_decoder.h"
#include "exec/reference_math.h"
#include "ops/det_math.h"

namespace kvasir::test {

std::vector<float> ReferenceDecoder::recur(size_t layer, const std::vector<float>& normed) {
  const ModelSpec& c = file_.spec();
  const RecurrentSpec& r = c.recurrent;
  const RecurrentWeights& w = file_.weights().layers[layer].recurrent;
  State& state = states_[layer];
  const auto kh = static_cast<size_t>(r.key_heads), vh = static_cast<size_t>(r.value_heads), share = vh / kh;
  const auto kd = static_cast<size_t>(r.key_dim), vd = static_cast<size_t>(r.value_dim);
  std::vector<float> all, z;
  if (w.qkvz.present()) {
    // By key head: q, k, then v and z of its value heads.
    const std::vector<float> mixed = multiply(w.qkvz, normed);
    const size_t group = 2 * kd + 2 * share * vd;
    const auto take = [&](size_t first, size_t count, std::vector<float>& to) {
      for (size_t h = 0; h < kh; ++h) {
        const auto at = mixed.begin() + static_cast<std::ptrdiff_t>(h * group + first);
        to.insert(to.end(), at, at + static_cast<std::ptrdiff_t>(count));
      }
    };
    take(0, kd, all);
    take(kd, kd, all);
    take(2 * kd, share * vd, all);
    take(2 * kd + share * vd, share * vd, z);
  } else {
    all = multiply(w.qkv, normed);
    z = multiply(w.z, normed);
  }
  // By key head b of its value heads, then a; or, where value heads lie by turns, all b, and all a.
  std::vector<float> bs, as;
  if (r.by_turns) {
    bs = multiply(w.b, normed);
    as = multiply(w.a, normed);
  } else {
    const std::vector<float> ba = multiply(w.ba, normed);
    for (size_t h = 0; h < vh; ++h) {
      bs.push_back(ba[h / share * 2 * share + h % share]);
      as.push_back(ba[(h / share * 2 + 1) * share + h % share]);
    }
  }
  state.inputs.push_back(all);
  const auto taps = static_cast<size_t>(r.taps);
  for (size_t i = 0; i < all.size(); ++i) {
    float sum = 0;
    for (size_t t = 0; t < taps; ++t) {
      const size_t back = taps - 1 - t;
      const float x = back <= position_ ? state.inputs[position_ - back][i] : 0.0f;
      sum = std::fma(x, w.convolution[i * taps + t], sum);
    }
    all[i] = sum / (1.0f + exp_of(-sum));
  }
  if (state.matrices.empty()) state.matrices.assign(vh * kd * vd, 0.0f);
  const float n = static_cast<float>(kd), epsilon = 1e-6f / n;
  std::vector<float> out;
  for (size_t h = 0; h < vh; ++h) {
    const size_t head = r.by_turns ? h % kh : h / share;
    const auto part = [&](size_t first, size_t count) {
      const auto at = all.begin() + static_cast<std::ptrdiff_t>(first);
      return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(count));
    };
    const auto q = norm_of(part(head * kd, kd), std::vector<float>(kd, 1.0f / n), epsilon);
    const auto k = norm_of(part((kh + head) * kd, kd), std::vector<float>(kd, 1.0f / std::sqrt(n)), epsilon);
    const auto v = part(2 * kh * kd + h * vd, vd);
    const float b = bs[h], a = as[h] + w.dt_bias[h];
    const float time =
        a > 20 ? a : static_cast<float>(ops::det_log(1.0 + ops::det_exp(static_cast<double>(a))));
    const auto decay = static_cast<float>(ops::det_exp(static_cast<double>(w.rate[h] * time)));
    const auto beta = static_cast<float>(1.0 / (1.0 + ops::det_exp(-static_cast<double>(b))));
    float* s = state.matrices.data() + h * kd * vd;
    std::vector<float> y(vd);
    for (size_t j = 0; j < vd; ++j) {
      float known = 0;
      for (size_t i = 0; i < kd; ++i) known = std::fma(s[i * vd + j] * decay, k[i], known);
      const float change = (v[j] - known) * beta;
      for (size_t i = 0; i < kd; ++i) {
        s[i * vd + j] = std::fma(k[i], change, s[i * vd + j] * decay);
        y[j] = std::fma(s[i * vd + j], q[i], y[j]);
      }
    }
    y = norm(y, w.norm);
    for (size_t j = 0; j < vd; ++j) {
      const float gate = z[h * vd + j];
      out.push_back((gate / (1.0f + exp_of(-gate))) * y[j]);
    }
  }
  return out;
}

}  // namespace kvasir::test
