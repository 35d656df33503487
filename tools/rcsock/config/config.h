#ifndef RCSOCK_TOOLS_RCSOCK_CONFIG_CONFIG_H_
#define RCSOCK_TOOLS_RCSOCK_CONFIG_CONFIG_H_

#include <optional>
#include <string>
#include <vector>

namespace rcsock::tools {

// What configuration files say, in the form of RCSOCK_RULES
// (lib/base/policy.h).
struct Policy {
  std::string rules;                // "": nothing
  std::vector<std::string> places;  // of each of them: "FILE:LINE"
  std::string error;                // "": none; else one line, "FILE:LINE: ..."
};

// The file, or else the user's and then the host's:
// $XDG_CONFIG_HOME/rcsock.conf (or ~/.config) and /etc/rcsock.conf; where both
// set the same, the user's holds.
Policy ReadPolicy(const std::optional<std::string>& file);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_CONFIG_CONFIG_H_
