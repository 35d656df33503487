#ifndef RCSOCK_TOOLS_RCSOCK_PRELOAD_FILE_H_
#define RCSOCK_TOOLS_RCSOCK_PRELOAD_FILE_H_

#include <string>

namespace rcsock::tools {

// What the preload is called, as a file and by the linker (its SONAME).
inline constexpr char kPreloadName[] = "librcsock_preload.so";

// Whether the file at `path` is the preload, whatever it is called there.
bool IsPreload(const std::string& path);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_PRELOAD_FILE_H_
