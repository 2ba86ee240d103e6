// A mixture of experts for the rows of a step.
//
//   rows --router (f32)--> scores --choose--> ids, weights
//   rows --by expert, in buckets--> gate, up --act--> down --> o = fma(weight, y, o), in order of ids
//
// Rows of a product are independent and a row's sum has an order of its own, so what a row gives does not
// depend on which other rows there are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/cpu/expert_choice.h"
#include "exec/cpu/product_runner.h"

namespace kvasir {

class ExpertPass {
 public:
  // The arguments outlive it. Of a model without experts it takes no memory and does nothing.
  ExpertPass(const ModelSpec& spec, const ops::Kernels& kernels, ProductRunner& products, int threads);

  // Makes room for so many rows. Throws std::bad_alloc. Operands need room as extent() says.
  void grow(int64_t rows);
  OperandBuffers::Extent extent(int64_t rows) const;
  // The normed rows, to be filled before run(); `stride()` floats apart.
  float* row(int64_t index) { return normed_.data() + index * stride_; }
  // Runs the rows through their experts. Then add_up(), once for each row, has its sum: out[dim].
  void run(const PackedExperts& experts, int64_t rows);
  void add_up(const PackedExperts& experts, int64_t row, int64_t rows, float* out);
  // The most items that a job of so many rows may have.
  int64_t most_items(const PackedExperts& experts, int64_t rows) const;

  uint64_t bytes() const;

 private:
  void choose(const PackedExperts& experts, int64_t rows);
  bool weighs_inputs(int64_t rows) const;
  // Puts the rows of each expert side by side.
  void fill_buckets(int64_t rows);
  void run_shared(const PackedExperts& experts, int64_t rows);
  // Adds an expert's bias to what its first product gave for a slot, and activates it.
  void activate_slot(const PackedExperts& experts, int64_t slot, float* out);

  const ModelSpec& spec_;
  const ExpertSpec& experts_;
  const ops::Kernels& kernels_;
  ProductRunner& products_;
  const int64_t stride_;
  std::vector<ExpertChooser> choosers_;  // by thread

  // Scratch of `rows` rows, and of slots: rows times experts used.
  std::vector<float> normed_, scores_, shared_weight_;
  std::vector<ChosenExpert> chosen_;  // [rows][used]
  std::vector<int64_t> slot_of_;      // [rows][used]
  std::vector<int64_t> row_of_;       // [slots]
  std::vector<int32_t> expert_of_;    // [slots]
  std::vector<float> weight_of_;      // [slots]
  std::vector<int64_t> first_slot_;   // [experts + 1]
  std::vector<float> in_, down_;      // [slots][2 ffn], [slots][dim]
  std::vector<float> shared_in_, shared_down_;
};

}  // namespace kvasir
