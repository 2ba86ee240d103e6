// The products of rows by the projections of their experts as one replaceable job of a ThreadPool. Rows of
// one expert lie side by side: a bucket. Items are those of the buckets' products, one behind the other.
#pragma once

#include <cstdint>
#include <span>

#include "exec/cpu/operand.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/product.h"

namespace kvasir {

struct ExpertBucket {
  const Projection* projection = nullptr;
  Share rows = {0, 0};  // at least one
};

// Trivially copyable. Its functions are const and may be called for different items at once. Rows of a
// product are independent, so what else is in a bucket changes no bit.
class ExpertProduct {
 public:
  // The buckets' projections have the same shapes and types. out: row 0 of the first bucket's rows, each of
  // as many floats as the projections have columns. All that is pointed to outlives the jobs.
  ExpertProduct(const ops::Kernels& kernels, ops::ActivationMode mode, const Operand& input,
                std::span<const ExpertBucket> buckets, float* out, float* const* aside);

  int64_t items() const { return items_; }
  Grain grain() const;

  // As ThreadPool::for_each_replaceable says.
  void run(Share items, int thread) const;
  void compute(Share items, int thread) const;
  void store(Share items, int thread) const;

 private:
  Product product_of(const ExpertBucket& bucket) const;
  // Calls use(const Product&, Share items of it) for those that have items in the range.
  template <typename Use>
  void for_each_product(const Share& items, const Use& use) const;

  const ops::Kernels* kernels_;
  ops::ActivationMode mode_;
  Operand input_;
  const ExpertBucket* buckets_;
  int64_t count_;
  float* out_;
  float* const* aside_;
  int64_t items_ = 0;
};

}  // namespace kvasir
