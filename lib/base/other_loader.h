#ifndef RCSOCK_LIB_BASE_OTHER_LOADER_H_
#define RCSOCK_LIB_BASE_OTHER_LOADER_H_

#include <cstddef>

namespace rcsock::base {

// Returns true if another loader than glibc's, musl's for instance, starts the
// program at `path`. Returns true also for glibc's loader with a libc before
// 2.17. Takes `folder` and `path` as openat() does; with "" the program is
// `folder` itself.
//
// These loaders take LD_PRELOAD too, but cannot resolve what rcsock's library
// needs, and then start nothing. `name` gets the loader's name, and the version
// of a glibc that is too old, cut to `size` bytes with the 0. For a script, its
// interpreter counts.
//
// Returns false if the loader cannot be found out. A child of vfork may call
// it: it uses no heap and no locks, and closes what it opens.
bool StartedByOther(int folder, const char* path, char* name, std::size_t size);

// As StartedByOther, for the program that execvp() would find.
bool StartedByOtherInPath(const char* file, char* name, std::size_t size);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_OTHER_LOADER_H_
