#include "base/mutant.h"

#if defined(KVASIR_MUTANTS)
namespace kvasir::internal {
std::atomic<Mutant> active_mutant{Mutant::kNone};
}
#endif
