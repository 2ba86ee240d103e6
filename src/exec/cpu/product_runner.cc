#include "exec/cpu/product_runner.h"

namespace kvasir {

ProductRunner::ProductRunner(const ops::Kernels& kernels, ops::ActivationMode mode, ThreadPool& pool)
    : kernels_(kernels),
      mode_(mode),
      pool_(pool),
      inputs_(static_cast<size_t>(pool.inputs())),
      buckets_(inputs_.size()),
      aside_(static_cast<size_t>(pool.size() * Product::kAsideFloats)) {
  for (int i = 0; i < pool.size(); ++i) aside_by_thread_.push_back(aside_.data() + i * Product::kAsideFloats);
}

Status ProductRunner::grow(std::initializer_list<OperandBuffers::Extent> extents, bool takes_bf16) {
  pool_.settle();
  for (OperandBuffers& input : inputs_) KV_RETURN_IF_ERROR(input.grow(extents, takes_bf16));
  return {};
}

Operand ProductRunner::take_rows(const Projection& next, const float* x, int64_t rows) {
  const int input = pool_.free_input();
  Operand taken = operand_over(next, mode_, x, row_stride(next.k), inputs_[static_cast<size_t>(input)], rows);
  if (!takes(next, mode_, ops::ActivationType::kF32)) taken.input = input;
  for_rows(rows, [&](Share mine, int) { fill_operand(kernels_, next, mode_, taken, mine); });
  return taken;
}

void ProductRunner::multiply(const Projection& p, const Operand& input, int64_t rows, float* out, int64_t ldo,
                             bool accumulate) {
  const Product product(kernels_, p, mode_, input, rows, out, ldo, accumulate, aside_by_thread_.data());
  // A late helper reads what it has taken after others have overwritten it, if that is not set aside for it.
  if (input.input < 0 || mutant(Mutant::kBf16RowsUnrounded)) {
    pool_.for_each(
        product.items(), [&](Share mine, int thread) { product.run(mine, thread); }, product.grain());
  } else {
    pool_.for_each_replaceable(product.items(), product, input.input, product.grain());
  }
}

void ProductRunner::multiply_f32(const Projection& p, const Operand& input, int64_t rows, float* out,
                                 int64_t ldo) {
  const Product product(kernels_, p, ops::ActivationMode::kF32, input, rows, out, ldo, false,
                        aside_by_thread_.data());
  pool_.for_each(
      product.items(), [&](Share mine, int) { product.run(mine); }, product.grain());
}

void ProductRunner::grow_buckets(size_t count) {
  for (std::vector<ExpertBucket>& buckets : buckets_) buckets.reserve(count);
}

void ProductRunner::multiply(const Operand& input, const std::vector<Projection>& experts,
                             const std::vector<int64_t>& first_row, float* out) {
  std::vector<ExpertBucket>& buckets = buckets_[static_cast<size_t>(input.input)];
  buckets.clear();
  for (size_t e = 0; e < experts.size(); ++e) {
    const Share rows = {first_row[e], first_row[e + 1]};
    if (rows.size() > 0) buckets.push_back({&experts[e], rows});
  }
  const ExpertProduct product(kernels_, mode_, input, buckets, out, aside_by_thread_.data());
  pool_.for_each_replaceable(product.items(), product, input.input, product.grain());
}

uint64_t ProductRunner::bytes() const {
  uint64_t bytes = aside_.size() * sizeof(float);
  for (const OperandBuffers& input : inputs_) bytes += input.bytes();
  return bytes;
}

}  // namespace kvasir
