#ifndef RCSOCK_TOOLS_RCSOCK_PROGRAM_H_
#define RCSOCK_TOOLS_RCSOCK_PROGRAM_H_

#include <string>

namespace rcsock::tools {

// The file that execvp(3) would run for `command`, or "" if there is none.
std::string FindProgram(const std::string& command);

// Why the loader will not put the preload into the program at `path` (in
// words), or "" if it will, as far as can be seen from outside.
std::string WhyNotPreloadable(const std::string& path);

// The loader that starts the program at `path`, or its interpreter, if it is
// another libc's, which starts nothing with our library in LD_PRELOAD; or "".
std::string OtherLoader(const std::string& path);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_PROGRAM_H_
