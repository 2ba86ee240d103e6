// Sleeping until a word changes. std::atomic::wait offers the caller's core to others some times before it
// sleeps, which can cost a time slice each on a core that is shared.
#pragma once

#include <atomic>

namespace kvasir {

// Sleeps while `word` is `old`, at most until a wake_sleepers(); may return early.
void sleep_while(const std::atomic<int>& word, int old);

// Wakes up to `count` threads that sleep on `word`. Its change comes before, and must be sequentially
// consistent if the caller looks whether a thread sleeps.
void wake_sleepers(const std::atomic<int>& word, int count);

}  // namespace kvasir
