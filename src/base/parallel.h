// Independent pieces of work, spread over cores.
#pragma once

#include <cstddef>
#include <functional>

namespace kvasir {

// Calls work(0) ... work(count - 1), each once, on up to `threads` threads (0: one for each core), and waits
// for all. `work` is called from several threads at once; what it throws ends all and is thrown here.
void run_parallel(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace kvasir
