// Where a copy is: a form on a tier, as an index for tables.
#pragma once

#include <array>
#include <cstddef>

#include "contract/ids.h"

namespace kvasir {

// Places are numbered form by form, and in a form tier by tier.
constexpr size_t kPlaces = size_t{kForms} * kTiers;
// Those from which K and V can be had come first.
constexpr size_t kPlacesOfKv = 2 * size_t{kTiers};

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

constexpr Place kDeviceKv = {Form::kKv, Tier::kDevice};

// From which copy of a cell K and V are had, where there are several and nobody says: the cheapest first.
inline constexpr std::array<Place, kPlacesOfKv> kCheapestFirst = {{{Form::kKv, Tier::kDevice},
                                                                   {Form::kX, Tier::kDevice},
                                                                   {Form::kKv, Tier::kHost},
                                                                   {Form::kX, Tier::kHost},
                                                                   {Form::kKv, Tier::kDisk},
                                                                   {Form::kX, Tier::kDisk}}};

}  // namespace kvasir
