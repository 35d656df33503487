#ifndef RCSOCK_TOOLS_RCSOCK_PERF_SERVER_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_SERVER_H_

#include <cstdint>
#include <string>

namespace rcsock::perf {

struct ServerOptions {
  std::string bind;  // empty: every address
  std::uint16_t port = 0;
  bool once = false;  // end after the first client
  bool json = false;  // a line of JSON for each test
  int cpu = -1;       // if a client names none
};

// Serves one client at a time until a signal ends it.  Returns the exit status.
// Throws Error if it cannot listen.
int Serve(const ServerOptions& options);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_SERVER_H_
