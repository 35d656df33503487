#include "lib/base/internal.h"

namespace rcsock::base {

thread_local constinit bool tls_internal = false;

}  // namespace rcsock::base
