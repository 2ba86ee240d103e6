#include "exec/cpu/product.h"

#include <algorithm>

#include "base/mutant.h"
#include "base/units.h"

namespace kvasir {
namespace {

// The kernels unpack a panel's weights for so many rows at once.
constexpr int64_t kBlockRows = 96;
// Weights of a group, about: a part of a core's second cache.
constexpr int64_t kGroupBytes = int64_t{256} << 10;
// Weights of what a thread claims at once at most. A helper that loses its core has computed no more in vain,
// which takes some 25 us for a row and some 100 us for a block.
constexpr int64_t kClaimBytes = int64_t{512} << 10;

// Block `index` of `rows` in `blocks` blocks of about equal height.
Share block_of(int64_t rows, int64_t blocks, int64_t index) {
  const int64_t base = rows / blocks, rest = rows % blocks;
  const int64_t begin = index * base + std::min(index, rest);
  return {begin, begin + base + (index < rest ? 1 : 0)};
}

}  // namespace

Product::Product(const ops::Kernels& kernels, const Projection& projection, ops::ActivationMode mode,
                 const Operand& input, int64_t rows, float* out, int64_t ldo, bool accumulate,
                 float* const* aside)
    : kernels_(&kernels),
      projection_(&projection),
      mode_(mode),
      accumulate_(accumulate),
      input_(input),
      rows_(rows),
      out_(out),
      ldo_(ldo),
      aside_(aside),
      blocks_(block_count(rows)),
      panels_(panel_count(projection)),
      panel_bytes_(1) {
  for (const Projection::Part& part : projection.parts) {
    panel_bytes_ =
        std::max(panel_bytes_, static_cast<int64_t>(ops::panel_bytes(part.matrix.type, part.matrix.k)));
  }
  group_ = blocks_ == 1 ? panels_ : std::min(panels_, std::max<int64_t>(4, kGroupBytes / panel_bytes_));
}

int64_t Product::block_count(int64_t rows) {
  return std::max<int64_t>(1, ceil_div<int64_t>(rows, kBlockRows));
}

int64_t Product::panel_count(const Projection& projection) {
  int64_t count = 0;
  for (const Projection::Part& part : projection.parts) count += ops::panel_count(part.matrix.n);
  return count;
}

int64_t Product::aside_floats(int64_t items) const {
  return items * ceil_div(rows_, blocks_) * ops::kPanel;
}

Grain Product::grain() const {
  const int64_t room = kAsideFloats / std::max<int64_t>(ops::kPanel, aside_floats(1));
  // Few rows of floats take several panels at once.
  const bool floats =
      std::any_of(projection_->parts.begin(), projection_->parts.end(),
                  [&](const Projection::Part& p) { return type_of(p) != ops::ActivationType::kInt8; });
  const int64_t least = floats && rows_ <= 4 ? 4 : 1;
  return {least, std::clamp(kClaimBytes / panel_bytes_, least, room)};
}

ops::ActivationType Product::type_of(const Projection::Part& part) const {
  const ops::ActivationType type = ops::activation_for(part.matrix.type, mode_);
  if (mutant(Mutant::kBf16RowsUnrounded) && rows_ == 1 && type == ops::ActivationType::kBf16) {
    return ops::ActivationType::kF32;
  }
  return type;
}

template <typename Use>
void Product::for_each_rectangle(const Share& items, const Use& use) const {
  for (int64_t i = items.begin; i < items.end;) {
    const int64_t first = i / (group_ * blocks_) * group_;  // panel of the group
    const int64_t width = std::min(group_, panels_ - first);
    const int64_t in_group = i - first * blocks_;
    const int64_t panel = first + in_group % width;
    const Share rows = block_of(rows_, blocks_, in_group / width);
    const Projection::Part* part = projection_->parts.data();
    int64_t before = 0;  // panels of the parts before
    for (; panel >= before + ops::panel_count(part->matrix.n); ++part)
      before += ops::panel_count(part->matrix.n);
    const int64_t end =
        std::min({first + width, panel + items.end - i, before + ops::panel_count(part->matrix.n)});
    use({part, {panel - before, end - before}, rows, i - items.begin});
    i += end - panel;
  }
}

void Product::run(Share items) const {
  for_each_rectangle(items, [&](const Rectangle& r) {
    multiply_part(*kernels_, *r.part, type_of(*r.part), input_, r.rows, r.panels, out_, ldo_, accumulate_);
  });
}

void Product::compute_to(Share items, float* aside) const {
  for_each_rectangle(items, [&](const Rectangle& r) {
    Projection::Part panels = *r.part;
    panels.column = 0;
    panels.matrix.data +=
        static_cast<size_t>(r.panels.begin) * ops::panel_bytes(panels.matrix.type, panels.matrix.k);
    panels.matrix.n -= r.panels.begin * ops::kPanel;
    multiply_part(*kernels_, panels, type_of(panels), from_row(input_, r.rows.begin), {0, r.rows.size()},
                  {0, r.panels.size()}, aside + aside_floats(r.items_before), r.panels.size() * ops::kPanel,
                  false);
  });
}

void Product::store_from(Share items, const float* aside) const {
  for_each_rectangle(items, [&](const Rectangle& r) {
    const int64_t column = r.panels.begin * ops::kPanel, width = r.panels.size() * ops::kPanel;
    const int64_t columns = std::min(width, r.part->matrix.n - column);
    const float* from = aside + aside_floats(r.items_before);
    float* to = out_ + r.rows.begin * ldo_ + r.part->column + column;
    for (int64_t row = r.rows.begin; row < r.rows.end; ++row, from += width, to += ldo_) {
      if (accumulate_) {
        kernels_->add(to, from, columns, to);
      } else {
        std::copy_n(from, columns, to);
      }
    }
  });
}

}  // namespace kvasir
