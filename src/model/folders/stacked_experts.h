// Experts' tensors as folders of gpt-oss and Llama 4 have them: all experts of a layer in one, in another
// order than in GGUF files. Internal to this folder.
//
//   mlp.experts.gate_up_proj  [experts][dim][2 ffn]: columns are outputs, those of gate and up by turns
//   mlp.experts.down_proj     [experts][ffn][dim]: likewise
//   ..._bias                  [experts][2 ffn], [experts][dim]
//   ..._blocks, ..._scales    MXFP4 in the place of the first two: [experts][2 ffn][dim / 32][16] and
//                             [experts][2 ffn][dim / 32] bytes: rows are outputs. Value 2i of a block is in
//                             the low half of byte i, value 2i + 1 in the high half
//
//   feed_forward.experts.gate_up_proj, down_proj: of Llama 4; outputs of gate, then of up; nothing else
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "model/files/gguf_assembler.h"
#include "model/folders/safetensors.h"

namespace kvasir {

class StackedExperts {
 public:
  explicit StackedExperts(GgufAssembler& out) : out_(out) {}

  // True: the tensor's name, without that of its layer, is one of the above.
  static bool has(std::string_view name);
  // Adds gate, up or down to the container, under GGUF's names: of blocks and scales, when both are there.
  // Weights stay where they are: their rows are made when they are read. `path` begins messages. kCorrupt:
  // the shape makes no sense, or the tensor is there twice. REQUIRES: has(name)
  Status add(const std::string& path, uint64_t layer, std::string_view name, const GgufTensor& tensor);
  // After all tensors. kCorrupt: blocks without scales, or the reverse.
  Status check_pairs(const std::string& origin) const;

 private:
  const GgufTensor* find_packed(uint64_t layer, std::string_view part, std::string_view ending) const;

  GgufAssembler& out_;
  std::map<std::pair<uint64_t, std::string>, GgufTensor> packed_;  // blocks and scales, by layer and name
};

}  // namespace kvasir
