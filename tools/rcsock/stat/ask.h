#ifndef RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_

#include <sys/types.h>

#include <functional>

#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

// Asks every process that can be asked (those with a conductor), all at once,
// but for `self`, unless options name it.  `found` is called for each as soon
// as it has answered, or has not in time; until that says false.
void AskAll(const CollectOptions& options, pid_t self,
            const std::function<bool(ProcessPicture)>& found);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
