#ifndef RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_

#include <sys/types.h>

#include <vector>

#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

// Asks every process that can be asked (those with a conductor), all at once,
// but for `self`, unless options name it.
std::vector<ProcessPicture> AskAll(const CollectOptions& options, pid_t self);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_H_
