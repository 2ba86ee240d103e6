// Stands in for the libraries that the build did not find.
#include "peers.h"

namespace kvasir::bench {

#if !defined(KVASIR_HAVE_ONEDNN)
void register_onednn(ThreadLimits*) {}
#endif
#if !defined(KVASIR_HAVE_LIBXSMM)
void register_libxsmm(ThreadLimits*) {}
#endif

}  // namespace kvasir::bench
