// Stands in for the preload where only `rcsock run` is tested: says in the
// environment, which any program can print, that it was loaded.

#include <cstdlib>

namespace {

__attribute__((constructor)) void Mark() { ::setenv("PROBE_LOADED", "yes", 1); }

}  // namespace
