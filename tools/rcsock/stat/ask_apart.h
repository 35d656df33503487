#ifndef RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_

#include <sys/types.h>

#include <vector>

#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

struct Found {
  std::vector<ProcessPicture> answers;
  std::vector<pid_t> preloaded;  // processes with the preload in their memory
};

// Runs AskAll in a child, which also looks at the files that processes have
// mapped.  The parent waits some seconds at most for the child.  A false
// process may answer with a file of FUSE, or have such a file mapped.  That
// file can block the process that reads or closes it, past any signal.
Found FindApart(const CollectOptions& options);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_
