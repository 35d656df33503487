#include "lib/base/internal.h"

namespace rcsock::base {

constinit thread_local bool tls_internal = false;

}  // namespace rcsock::base
