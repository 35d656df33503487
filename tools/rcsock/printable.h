#ifndef RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_
#define RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_

#include <string>

namespace rcsock::tools {

// Replaces control characters by '?': a terminal would obey them.
inline std::string WithoutControls(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

// Replaces all but printable ASCII by '?': for names that have no other
// characters.
inline std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_
