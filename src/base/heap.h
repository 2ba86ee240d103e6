// The process's heap.
#pragma once

namespace kvasir {

// Has large blocks, such as the bodies of requests, go back to the system when they are freed. Otherwise the
// C library takes them from the heaps of threads as soon as one has been freed (its threshold rises to the
// size of that one), and small blocks behind them keep what they had. To be called before there are threads.
void give_back_large_blocks();

}  // namespace kvasir
