#ifndef RCSOCK_TOOLS_RCSOCK_PRELOAD_FILE_H_
#define RCSOCK_TOOLS_RCSOCK_PRELOAD_FILE_H_

#include <string>

namespace rcsock::tools {

// The preload's name, as a file and for the linker (SONAME).
inline constexpr char kPreloadName[] = "librcsock_preload.so";

// Returns true if the file at `path` is the preload, whatever its name there.
bool IsPreload(const std::string& path);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_PRELOAD_FILE_H_
