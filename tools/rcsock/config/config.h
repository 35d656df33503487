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
  std::vector<std::string> places;  // "FILE:LINE" of each rule
  std::string meet_dir;             // RCSOCK_MEET_DIR; "": nothing
  std::string error;                // "": none; else one line, "FILE:LINE: ..."
};

// Reads the file, or else the user's file and then the host's:
// $XDG_CONFIG_HOME/rcsock.conf, or in ~/.config, and /etc/rcsock.conf.  If both
// make a setting, the user's file holds.
Policy ReadPolicy(const std::optional<std::string>& file);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_CONFIG_CONFIG_H_
