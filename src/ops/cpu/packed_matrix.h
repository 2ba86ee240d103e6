// Weight matrices in the order in which the kernels read them; made once, at load.
//
// A panel is 32 output columns. Panels follow one another, each with all of K:
//   kF32, kF16    [k][32 columns], K of any length
//   kBf16         [k/2][32 columns][2 of k]: per pair of k two lines of 64 bytes (columns 0..15 and 16..31),
//                 each dword a vdpbf16ps operand with the even k in its low half; K of any length, an odd one
//                 padded with +0
//   quantised     per block of 32, 128 or 256 k: the codes of each group of 32 in lines of 64 bytes, then
//                 the scales of the block. weight_traits.h has the bits of a code and the numbers of lines.
//     8 bits      16 lines; line 2i + h, byte 4c + j: k = 4i + j of column 16h + c
//     low 4 bits  8 lines; line i, byte 4c + j: k = 4i + j of column c (low half) and c + 16 (high half)
//     low 2 bits  4 lines; line i, byte 4c + j: the same for k = 8i + j (bits 0 and 2) and for
//                 k = 8i + 4 + j (bits 4 and 6)
//     high 2 bits the same again; high 1 bit: 2 lines; line i, bit 2b + h of byte 4c + j: k = 16i + 4b + j of
//                 column 16h + c
//     scales      1 line of 32 scales d, f16 (MXFP4: bf16); with a minimum 1 more; where groups have
//                 scales of their own, 32 bytes for each of them (one a column), as often as scale_bytes
//                 says. Q4_K, Q5_K: scale, minimum. Q6_K, Q3_K, Q2_K: of the first 16 k, of the others
//                 (Q3_K's less 32; Q2_K's in the low half of the byte, the minimum in the high one).
//                 IQ4_XS: scale less 32.
// so that a line of bytes is a vpdpbusd operand as it stands: four k of one column side by side, unsigned.
// Pure functions. Different column ranges of one matrix must be packed by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/views.h"

namespace kvasir::ops {

// Panels of a matrix with n columns.
int64_t panel_count(int64_t n);
// Bytes of one panel, and of all of them.
size_t panel_bytes(WeightType type, int64_t k);
size_t packed_bytes(WeightType type, int64_t n, int64_t k);

// Packs n rows of GGUF data (each k values, row_bytes apart; a row is an output column) into dst.
// REQUIRES: dst has packed_bytes(type, n, k), aligned to 64; k is whole blocks.
PackedMatrix pack_matrix(WeightType type, const void* src, int64_t n, int64_t k, void* dst);

// The same in parts, for several sources of one type and K side by side (Q, K and V; gate and up): clear
// once, then pack each source at its column offset, then take the view.
void clear_packed(WeightType type, int64_t total_n, int64_t k, void* dst);
// REQUIRES: 0 <= column_offset, column_offset + n_src <= total_n; the columns are clear.
void pack_columns(WeightType type, const void* src, int64_t n_src, int64_t k, int64_t column_offset,
                  int64_t total_n, void* dst);

}  // namespace kvasir::ops
