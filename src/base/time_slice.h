// How soon the system lets a thread run that has something to do.
#pragma once

namespace kvasir {

// Asks for short time slices for the calling thread, for one that mostly waits: Linux 6.12 and later then let
// it run before threads that compute, as soon as it wakes. Its share of the CPU stays what it was, and
// threads that it starts have usual slices. False where the system has no such slices, or refuses; nothing
// changes then.
bool ask_for_short_slices();

}  // namespace kvasir
