#ifndef RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_

#include <sys/types.h>

#include <functional>

#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

// Asks every process that has a conductor, 256 at a time.  Asks `self` only if
// the options name it.  Calls `found` for each process once it has answered or
// its time is over.  Asks no more once `found` returns false.
void AskAll(const CollectOptions& options, pid_t self,
            const std::function<bool(ProcessPicture)>& found);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
