#ifndef RCSOCK_TOOLS_RCSOCK_REQUIRE_H_
#define RCSOCK_TOOLS_RCSOCK_REQUIRE_H_

#include <functional>
#include <string>

namespace rcsock::tools {

// Opens a lane over shared memory on this host.  Returns why none opens, or "".
using Trial = std::function<std::string()>;

// Returns why the program at `path` will have no lane with this process's
// environment, or "".  Requires that the rules of the configuration are in the
// environment.
std::string WhyNoLane(const std::string& path, const Trial& why_no_shm);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_REQUIRE_H_
