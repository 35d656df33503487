#include "lib/base/unwinder.h"

#include "lib/base/start_data.h"

namespace rcsock::base {

RCSOCK_START_DATA constinit MakeReadyToThrow make_ready_to_throw = nullptr;

}  // namespace rcsock::base
