#include "ops/gpu/fused16_lanes.h"

#include "base/check.h"

namespace kvasir::ops {

Fused16Chains fused16_chains(IsaClass isa) {
  KV_CHECK(is_supported(isa), "{}", isa_name(isa));
#if defined(__x86_64__)
  if (isa == IsaClass::kAvx512) return kvasir_fused16_avx512;
  if (isa == IsaClass::kAvx2) return kvasir_fused16_avx2;
#endif
  return kvasir_fused16_portable;
}

}  // namespace kvasir::ops
