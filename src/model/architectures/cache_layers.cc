#include "model/architectures/cache_layers.h"

#include <algorithm>

namespace kvasir {

CacheLayers::CacheLayers(const ModelSpec& spec, uint64_t piece_bytes) {
  if (spec.is_recurrent()) {
    const RecurrentSpec& r = spec.recurrent;
    const auto room = static_cast<int64_t>(piece_bytes / sizeof(float));
    const int64_t small = convolution_unit_floats(r), large = matrix_unit_floats(r);
    const auto channels = static_cast<uint32_t>(r.channels() / kUnitValues),
               values = static_cast<uint32_t>(r.values() / kUnitValues);
    if (std::max(small, large) > room) return;
    uint32_t done = 0, done_values = 0;
    while (done < channels || done_values < values) {
      Part part;
      int64_t left = room;
      const auto most = static_cast<uint32_t>(small > 0 ? left / small : channels);
      part.convolution = {done, std::min(channels, done + most)};
      done = part.convolution.end;
      left -= small * part.convolution.size();
      const auto fit = done == channels ? static_cast<uint32_t>(left / large) : 0;
      part.matrices = {done_values, std::min(values, done_values + fit)};
      done_values = part.matrices.end;
      parts_.push_back(part);
    }
  }
  for (int32_t l = 0; l < spec.layers; ++l) {
    first_.push_back(count_);
    count_ += spec.layer(l).recurrent ? static_cast<uint32_t>(parts_.size()) : 1;
  }
  first_.push_back(count_);
}

uint32_t CacheLayers::model_layers(uint32_t count) const {
  const auto all = static_cast<uint32_t>(first_.size()) - 1;
  if (count >= count_) return all;
  return static_cast<uint32_t>(std::lower_bound(first_.begin(), first_.end(), count) - first_.begin());
}

std::vector<uint32_t> CacheLayers::windows(const ModelSpec& spec, uint32_t block_tokens) const {
  std::vector<uint32_t> out;
  for (int32_t l = 0; l < spec.layers; ++l) {
    const LayerSpec& layer = spec.layer(l);
    const uint32_t window = layer.recurrent ? block_tokens + 1 : static_cast<uint32_t>(layer.window);
    out.insert(out.end(), of(static_cast<uint32_t>(l)).size(), window);
  }
  return out;
}

}  // namespace kvasir
