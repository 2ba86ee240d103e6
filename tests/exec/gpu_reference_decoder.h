// A forward pass by the GPU numerics (ops/gpu/reference.h), for one sequence and every architecture: what an
// executor on a device must equal bit for bit. Plain memory, no cache and no tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contract/ids.h"
#include "model/files/model_file.h"
#include "ops/gpu/reference.h"
#include "ops/gpu/twin.h"
#include "ops/rope_table.h"

namespace kvasir::test {

class GpuReferenceDecoder {
 public:
  // What computes products and attention; the bits are the same.
  enum class By { kReference, kTwin };

  // The file outlives the decoder. Weights of any type are used as bf16, each rounded from the value that
  // ops::dequantize_row gives. max_positions: the longest sequence that will be run.
  GpuReferenceDecoder(const ModelFile& file, uint32_t max_positions, By by);

  // Runs the next tokens of the sequence, all as rows of one step. Returns [tokens][vocab_size] logits.
  std::vector<float> run(std::span<const Token> tokens);
  // The hidden rows of the last run(): [tokens][dim].
  const std::vector<float>& hidden() const { return hidden_; }

 private:
  struct Matrix {
    Matrix(std::vector<uint16_t> elements, int64_t of_n, int64_t of_k);
    std::vector<uint16_t> rows;  // [n][k]
    int64_t n, k;
    ops::twin::Weights lanes;
  };
  struct Layer {
    Matrix qkv, attn_output, ffn_in, ffn_down;
    std::vector<float> qkv_bias, q_norm, k_norm;
  };
  // Rows of one model's matrix after another.
  static std::vector<uint16_t> weights_of(const WeightMatrix& matrix, const std::vector<int64_t>& order = {});
  Layer layer_of(const LayerWeights& weights) const;

  std::vector<float> multiply(const std::vector<uint16_t>& x, const Matrix& w) const;
  ops::reference::Norm norm_of(const NormWeights& weights) const;
  // The operand of the next product: each row of the residual stream after a norm.
  std::vector<uint16_t> normalised(const NormWeights& norm, const std::vector<float>& x) const;
  void finish_qkv(size_t layer, const std::vector<float>& qkv, std::vector<uint16_t>& q);
  std::vector<uint16_t> attend(size_t layer, const std::vector<uint16_t>& q) const;
  std::vector<uint16_t> activate(size_t layer, const std::vector<float>& in) const;
  void add_branch(const std::vector<float>& bias, const NormWeights& post_norm, const std::vector<float>& y,
                  std::vector<float>& x) const;
  std::vector<float> embed(std::span<const Token> tokens) const;

  const ModelFile& file_;
  const ModelSpec& spec_;
  const By by_;
  std::vector<Layer> layers_;
  std::vector<uint16_t> embedding_, positions_;
  Matrix output_;
  std::vector<ops::RopeTable> ropes_;
  uint32_t done_ = 0;  // positions before this step
  uint32_t rows_ = 0;  // of this step
  std::vector<float> hidden_;
  std::vector<std::vector<uint16_t>> keys_, values_;  // [layer][position][kv_dim]
};

}  // namespace kvasir::test
