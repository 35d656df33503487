#ifndef RCSOCK_TOOLS_RCSOCK_STAT_SERVE_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_SERVE_H_

#include <functional>
#include <string>

namespace rcsock::tools {

// Serves what `page` returns to HTTP clients at /metrics, until this process is
// killed.  `address` is [HOST:]PORT; without a host it is 127.0.0.1.  Calls
// `page` at most once a second.  Returns the exit status, if it cannot listen.
int Serve(const std::string& address, const std::function<std::string()>& page);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_SERVE_H_
