#define KV_VECTOR_BYTES 16
#include "ops/gpu/fused16_body.h"

extern "C" {
const kvasir::ops::Fused16Chains kvasir_fused16_portable = kvasir::ops::chains;
}
