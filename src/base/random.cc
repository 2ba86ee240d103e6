#include "base/random.h"

namespace kvasir {
namespace {

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t random_bits(uint64_t key, uint64_t stream, uint64_t counter) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  uint64_t h = mix(key + kGolden);
  h = mix(h ^ (stream + 2 * kGolden));
  h = mix(h + (counter + 1) * kGolden);
  return mix(h + kGolden);
}

double random_unit(uint64_t key, uint64_t stream, uint64_t counter) {
  return static_cast<double>(random_bits(key, stream, counter) >> 11) * 0x1.0p-53;
}

}  // namespace kvasir
