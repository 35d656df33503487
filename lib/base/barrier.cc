#include "lib/base/barrier.h"

#include "lib/base/start_data.h"

namespace rcsock::base {

RCSOCK_START_DATA constinit BarriersLost barriers_lost = nullptr;

}  // namespace rcsock::base
