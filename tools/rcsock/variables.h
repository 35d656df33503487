#ifndef RCSOCK_TOOLS_RCSOCK_VARIABLES_H_
#define RCSOCK_TOOLS_RCSOCK_VARIABLES_H_

#include <string>
#include <vector>

namespace rcsock::tools {

// The variables of this process's environment whose names begin with RCSOCK_.
struct Variables {
  std::vector<std::string> known;    // NAME=VALUE, sorted
  std::vector<std::string> unknown;  // NAME, sorted: it means nothing to rcsock
};

// Leaves out variables that rcsock sets itself, and the variables of its tests.
Variables ReadVariables();

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_VARIABLES_H_
