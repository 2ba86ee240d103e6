// Ranges are kept sorted by appending only.
#include "model/tokenizers/marked_text.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

MarkedText MarkedText::trusted(std::string text) {
  MarkedText out(std::move(text));
  if (!out.text_.empty()) out.trusted_.push_back({0, static_cast<uint32_t>(out.text_.size())});
  return out;
}

bool MarkedText::all_trusted() const {
  return text_.empty() || (trusted_.size() == 1 && trusted_.front().size() == text_.size());
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  KV_CHECK(this != &other && begin <= end && end <= other.size(), "begin={} end={} size={}", begin, end,
           other.size());
  KV_CHECK(text_.size() + (end - begin) <= UINT32_MAX, "a text of {} bytes", text_.size() + (end - begin));
  const auto shift = static_cast<uint32_t>(text_.size()) - static_cast<uint32_t>(begin);
  const Interval taken{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
  text_.append(other.text_, begin, end - begin);
  auto range = std::partition_point(other.trusted_.begin(), other.trusted_.end(),
                                    [taken](const Interval& r) { return r.end <= taken.begin; });
  for (; range != other.trusted_.end() && range->begin < taken.end; ++range) {
    const Interval part = intersect(*range, taken);
    if (part.empty()) continue;
    // Modulo 2^32, so a shift to the left works, too.
    const Interval moved{part.begin + shift, part.end + shift};
    if (!trusted_.empty() && trusted_.back().end == moved.begin) {
      trusted_.back().end = moved.end;
    } else {
      trusted_.push_back(moved);
    }
  }
}

MarkedText MarkedText::slice(std::string_view part) const {
  MarkedText out;
  const size_t begin = part.empty() ? 0 : static_cast<size_t>(part.data() - text_.data());
  out.append(*this, begin, begin + part.size());
  return out;
}

}  // namespace kvasir
