// Value heads of recurrent layers by turns. Internal to this folder.
//
// Folders have the value heads of a key head side by side, GGUF files of Qwen 3.5 by turns
// (RecurrentSpec::by_turns). So that both give the same bits, a folder's tensors are put into the order of
// the files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/files/gguf.h"
#include "model/files/tensor_rows.h"

namespace kvasir {

struct ValueHeads {
  int64_t key_heads = 0;
  int64_t heads = 0;  // a multiple of key_heads
  int64_t key_dim = 0;
  int64_t dim = 0;  // of a value head

  // The folder's head in the place of GGUF's `head`.
  int64_t theirs(int64_t head) const { return head % key_heads * (heads / key_heads) + head / key_heads; }
  // Of an item for each value of all heads that which has the place of GGUF's item, `of` for each head,
  // `before` items of something else going first.
  int64_t source(int64_t item, int64_t of, int64_t before) const {
    const int64_t i = item - before;
    return i < 0 ? item : before + theirs(i / of) * of + i % of;
  }
};

// How a tensor's rows, or its columns, belong to value heads.
struct HeadOrder {
  bool columns = false;
  int64_t of = 0;      // rows or columns of a head
  int64_t before = 0;  // rows that are no head's
};
// By GGUF's name of the tensor, without "blk.N."; `of` 0: it has nothing of value heads.
HeadOrder head_order(std::string_view name, const ValueHeads& heads);

// Values of a vector, or of several vectors of `width`, in the order of GGUF files. REQUIRES: as many as
// `order` has rows, each of `width`.
std::vector<float> by_turns(const std::vector<float>& values, int64_t width, const HeadOrder& order,
                            const ValueHeads& heads);
// What makes the rows of a matrix in that order; it refers to `tensor`'s bytes and its rows. kCorrupt: the
// tensor has another number of rows or columns. kUnsupported: blocks of a quantised type that reach over
// heads. `path` begins messages.
Result<std::unique_ptr<const TensorRows>> rows_by_turns(const std::string& path, const GgufTensor& tensor,
                                                        const HeadOrder& order, const ValueHeads& heads);

}  // namespace kvasir
