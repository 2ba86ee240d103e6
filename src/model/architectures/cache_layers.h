// How a model's layers lie in the cache's grid.
//
// A layer with attention is one layer of the cache: K and V of each block. A recurrent one has a state of
// fixed size instead, and the state behind a block's last token is a cell of that block. It is larger than K
// and V of a block and one layer, so it is cut into parts of at most a piece, each of which is a layer of the
// cache: a recurrent layer is as many of them as its state needs. A part is some *units*, whole ones: first
// those of the convolution, [taps - 1][16 channels], then those of the matrices, [keys][16 values of a head].
// Neither reads another one of its kind, so parts can come, run and go one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/interval.h"
#include "model/architectures/model_spec.h"

namespace kvasir {

class CacheLayers {
 public:
  static constexpr int32_t kUnitValues = 16;

  struct Part {
    Interval convolution;  // units
    Interval matrices;     // units
    friend bool operator==(const Part&, const Part&) = default;
  };

  // piece_bytes: of a layer and block of the cache (CacheGeometry::piece_bytes). Where not even a unit fits
  // into that, there are no layers: count() is 0.
  CacheLayers(const ModelSpec& spec, uint64_t piece_bytes);

  // Of the cache.
  uint32_t count() const { return count_; }
  // The layers of the cache that a layer of the model is.
  Interval of(uint32_t layer) const { return {first_[layer], first_[layer + 1]}; }
  // So many layers of the model hold the first `count` ones of the cache.
  uint32_t model_layers(uint32_t count) const;
  // Of each recurrent layer.
  const std::vector<Part>& parts() const { return parts_; }
  // By layer of the cache: the window behind which its cells are dead (CacheGeometry::set_states); 0: none.
  std::vector<uint32_t> windows(const ModelSpec& spec, uint32_t block_tokens) const;

  static int64_t convolution_unit_floats(const RecurrentSpec& r) { return int64_t{r.taps - 1} * kUnitValues; }
  static int64_t matrix_unit_floats(const RecurrentSpec& r) { return int64_t{r.key_dim} * kUnitValues; }

 private:
  std::vector<Part> parts_;
  std::vector<uint32_t> first_;  // by layer of the model, and the end of the last one
  uint32_t count_ = 0;
};

}  // namespace kvasir
