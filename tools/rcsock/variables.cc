#include "tools/rcsock/variables.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "lib/base/config.h"

namespace rcsock::tools {
namespace {

// The library's place, what exec hands on, and the variables of tests.
bool IsOurs(const std::string& name) {
  return name == "RCSOCK_PRELOAD" || name == "RCSOCK_INHERIT" ||
         name.rfind("RCSOCK_TEST_", 0) == 0 ||
         name.rfind("RCSOCK_GUEST_", 0) == 0;
}

}  // namespace

Variables ReadVariables() {
  Variables all;
  for (char** at = environ; *at != nullptr; ++at) {
    if (std::strncmp(*at, "RCSOCK_", 7) != 0) continue;
    const std::string one = *at;
    const std::string name = one.substr(0, one.find('='));
    if (IsOurs(name)) continue;
    if (std::any_of(std::begin(base::kVariables), std::end(base::kVariables),
                    [&](const char* known) { return name == known; })) {
      all.known.push_back(one);
    } else {
      all.unknown.push_back(name);
    }
  }
  std::sort(all.known.begin(), all.known.end());
  std::sort(all.unknown.begin(), all.unknown.end());
  return all;
}

}  // namespace rcsock::tools
