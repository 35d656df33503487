#ifndef RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_

#include <sys/types.h>

#include <functional>

#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

// Asks every process that has a conductor, 256 at a time.  It asks `self` only
// where the options name it.  `found` gets each process as soon as it has
// answered or its time is over; where it returns false, no more are asked.
void AskAll(const CollectOptions& options, pid_t self,
            const std::function<bool(ProcessPicture)>& found);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
