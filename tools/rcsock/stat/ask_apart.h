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

// Runs AskAll, and looks at the files that processes have mapped, in a child.
// The parent waits for the child for some seconds at most.  A false process may
// answer with a file of FUSE, or have one mapped, and such a file can block
// whoever reads or closes it, past any signal.
Found FindApart(const CollectOptions& options);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_
