// A product of rows and a projection as a replaceable job of a ThreadPool. An item is a block of rows by a
// panel.
//
//   out[rows][projection.n] (+)= input[rows] x projection
//
//                panels ->      Items are numbered group by group of panels whose weights stay in a core's
//   rows     0 1 | 4 5 | 8      cache, and in a group block by block of rows.
//    |       2 3 | 6 7 | 9
#pragma once

#include <cstdint>
#include <vector>

#include "exec/cpu/operand.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/thread_pool.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// Trivially copyable. Its functions are const and may be called for different items at once.
class Product {
 public:
  // Where a thread computes aside: so many floats. At least a block of rows by a panel.
  static constexpr int64_t kAsideFloats = 4 * 96 * 32;
  // aside: such memory by thread. It, the kernels, the projection and what the operand reads outlive the
  // jobs. out: row 0; ldo in floats.
  Product(const ops::Kernels& kernels, const Projection& projection, ops::ActivationMode mode,
          const Operand& input, int64_t rows, float* out, int64_t ldo, bool accumulate, float* const* aside);

  int64_t items() const { return rows_ == 0 ? 0 : blocks_ * panels_; }
  // Blocks of so many rows, and panels of a projection.
  static int64_t block_count(int64_t rows);
  static int64_t panel_count(const Projection& projection);
  Grain grain() const;

  // As ThreadPool::for_each_replaceable says.
  void run(Share items, int /*thread*/) const { run(items); }
  void compute(Share items, int thread) const { compute_to(items, aside_[thread]); }
  void store(Share items, int thread) const { store_from(items, aside_[thread]); }

  // The same with any memory, of aside_floats(items).
  void run(Share items) const;
  void compute_to(Share items, float* aside) const;
  void store_from(Share items, const float* aside) const;
  int64_t aside_floats(int64_t items) const;

 private:
  // Consecutive items that are panels of one part by the same rows.
  struct Rectangle {
    const Projection::Part* part;
    Share panels;  // of the part
    Share rows;
    int64_t items_before;  // in the range of items
  };
  template <typename Use>
  void for_each_rectangle(const Share& items, const Use& use) const;
  ops::ActivationType type_of(const Projection::Part& part) const;

  const ops::Kernels* kernels_;
  const Projection* projection_;
  ops::ActivationMode mode_;
  bool accumulate_;
  Operand input_;
  int64_t rows_;
  float* out_;
  int64_t ldo_;
  float* const* aside_;
  int64_t blocks_;
  int64_t panels_;
  int64_t group_;        // panels of a group
  int64_t panel_bytes_;  // of the largest part's
};

}  // namespace kvasir
