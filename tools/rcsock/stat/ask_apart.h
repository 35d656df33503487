#ifndef RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_

#include <sys/types.h>

#include <vector>

#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

struct Found {
  std::vector<ProcessPicture> answers;
  std::vector<pid_t> preloaded;  // that have the preload in their memory
};

// AskAll, and a look at all processes, in a process of its own, which is waited
// for no longer than for some seconds: what a false process answers with may be
// a file whose close no signal ends (FUSE's waits for its daemon), and what one
// has in its memory may be of such a file system.
Found FindApart(const CollectOptions& options);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_
