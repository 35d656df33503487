#ifndef RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_
#define RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_

#include <string>

namespace rcsock::tools {

// Without control characters, which a terminal would obey: '?' in their place.
inline std::string WithoutControls(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text;
}

// Printable ASCII, and '?' in place of anything else: for names that have no
// other.
inline std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_PRINTABLE_H_
