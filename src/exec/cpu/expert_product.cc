#include "exec/cpu/expert_product.h"

#include <algorithm>

namespace kvasir {

ExpertProduct::ExpertProduct(const ops::Kernels& kernels, ops::ActivationMode mode, const Operand& input,
                             std::span<const ExpertBucket> buckets, float* out, float* const* aside)
    : kernels_(&kernels),
      mode_(mode),
      input_(input),
      buckets_(buckets.data()),
      count_(static_cast<int64_t>(buckets.size())),
      out_(out),
      aside_(aside) {
  for (const ExpertBucket& bucket : buckets) items_ += product_of(bucket).items();
}

Product ExpertProduct::product_of(const ExpertBucket& bucket) const {
  const int64_t ldo = bucket.projection->n;
  return {*kernels_,
          *bucket.projection,
          mode_,
          from_row(input_, bucket.rows.begin),
          bucket.rows.size(),
          out_ + bucket.rows.begin * ldo,
          ldo,
          false,
          aside_};
}

Grain ExpertProduct::grain() const {
  Grain out;
  for (int64_t i = 0; i < count_; ++i) {
    const Grain one = product_of(buckets_[i]).grain();
    out = i == 0 ? one : Grain{std::min(out.least, one.least), std::min(out.most, one.most)};
  }
  return out;
}

template <typename Use>
void ExpertProduct::for_each_product(const Share& items, const Use& use) const {
  int64_t first = 0;
  for (int64_t i = 0; i < count_ && first < items.end; ++i) {
    const Product product = product_of(buckets_[i]);
    const Share mine = {std::max(items.begin, first), std::min(items.end, first + product.items())};
    if (mine.size() > 0) use(product, Share{mine.begin - first, mine.end - first});
    first += product.items();
  }
}

void ExpertProduct::run(Share items, int) const {
  for_each_product(items, [](const Product& product, Share mine) { product.run(mine); });
}

void ExpertProduct::compute(Share items, int thread) const {
  float* aside = aside_[thread];
  for_each_product(items, [&](const Product& product, Share mine) {
    product.compute_to(mine, aside);
    aside += product.aside_floats(mine.size());
  });
}

void ExpertProduct::store(Share items, int thread) const {
  const float* aside = aside_[thread];
  for_each_product(items, [&](const Product& product, Share mine) {
    product.store_from(mine, aside);
    aside += product.aside_floats(mine.size());
  });
}

}  // namespace kvasir
