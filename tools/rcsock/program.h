#ifndef RCSOCK_TOOLS_RCSOCK_PROGRAM_H_
#define RCSOCK_TOOLS_RCSOCK_PROGRAM_H_

#include <string>

namespace rcsock::tools {

// Returns the file that execvp(3) would run for `command`, or "".
std::string FindProgram(const std::string& command);

// Returns true if the program at `path` has been made by the Go compiler.  Its
// calls do not pass libc, so that the preload sees no connection.
bool IsGo(const std::string& path);

// Returns why the preload can do nothing for the program at `path`, in words.
// Returns "" if it can, as far as can be seen from outside.
std::string WhyNotPreloadable(const std::string& path);

// Returns the loader that starts the program at `path`, or starts its
// interpreter, if it belongs to another libc.  Such a loader starts nothing
// with rcsock in LD_PRELOAD.  Returns "" otherwise.
std::string OtherLoader(const std::string& path);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_PROGRAM_H_
