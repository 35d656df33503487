#ifndef RCSOCK_LIB_BASE_OTHER_LOADER_H_
#define RCSOCK_LIB_BASE_OTHER_LOADER_H_

#include <cstddef>

namespace rcsock::base {

// Whether the program at `path`, as openat() takes it (""; what `folder` is),
// is started by a loader that is not glibc's: musl's, say.  That one takes
// LD_PRELOAD too, but cannot resolve what a library of glibc needs, and then
// starts nothing.  Its name is put into `name` then, cut to `size` bytes with
// the 0.  Of a script, what its interpreter is counts.
//
// False where nobody can tell.  Without heap or locks, and closes what it has
// opened: a child of vfork may ask.
bool StartedByOther(int folder, const char* path, char* name, std::size_t size);

// The same of what execvp() would find.
bool StartedByOtherInPath(const char* file, char* name, std::size_t size);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_OTHER_LOADER_H_
