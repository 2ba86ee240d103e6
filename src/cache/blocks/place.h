// Where a copy is: a form on a tier, as an index for tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "contract/ids.h"

namespace kvasir {

// Places are numbered form by form, and in a form tier by tier.
constexpr size_t kPlaces = size_t{kForms} * kTiers;

struct Place {
  Form form = Form::kKv;
  Tier tier = Tier::kDevice;
  friend bool operator==(const Place&, const Place&) = default;
};

constexpr size_t index_of(Place place) {
  return index_of(place.form) * kTiers + index_of(place.tier);
}
constexpr Place place_at(size_t index) {
  return {static_cast<Form>(index / kTiers), static_cast<Tier>(index % kTiers)};
}

// Counts by place, as tables by form and tier.
constexpr std::array<std::array<uint32_t, kTiers>, kForms> by_form(
    const std::array<uint32_t, kPlaces>& counts) {
  std::array<std::array<uint32_t, kTiers>, kForms> out{};
  for (size_t p = 0; p < kPlaces; ++p) out[p / kTiers][p % kTiers] = counts[p];
  return out;
}

constexpr Place kDeviceKv = {Form::kKv, Tier::kDevice};
constexpr Place kHostKv = {Form::kKv, Tier::kHost};

// The order in which copies of a cell are preferred where the plan names none: the cheapest to read first.
inline constexpr std::array<Place, kPlaces> kCheapestFirst = {{{Form::kKv, Tier::kDevice},
                                                               {Form::kX, Tier::kDevice},
                                                               {Form::kKv, Tier::kHost},
                                                               {Form::kX, Tier::kHost},
                                                               {Form::kKv, Tier::kDisk},
                                                               {Form::kX, Tier::kDisk}}};

}  // namespace kvasir
