#include "lib/rendezvous/timer.h"

#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {

Timer::Timer(Core* core) : core_(core), timer_(core->io) {}

}  // namespace rcsock::rendezvous
