#ifndef RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_
#define RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_

#include <string>

namespace rcsock::tools {

// What another process or host says of itself goes to a terminal and into JSON:
// printable ASCII, and '?' in place of anything else.
inline std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_
