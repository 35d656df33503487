#ifndef RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_

#include <vector>

#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {

// AskAll in a process of its own, which nobody waits for: what a false process
// answers with may be a file whose close no signal ends (FUSE's waits for its
// daemon), and so may hold up the end of whoever has taken it.
std::vector<ProcessPicture> AskAllApart(const CollectOptions& options);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_ASK_APART_H_
