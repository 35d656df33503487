#ifndef RCSOCK_LIB_BASE_LISTING_H_
#define RCSOCK_LIB_BASE_LISTING_H_

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rcsock::base {

// Listings by the kernel's calls alone. They allocate nothing, take no lock and
// are no cancellation points. So handlers, and children of fork and vfork, may
// use them.

// Calls each(name) for every entry of the open directory, from its position on,
// while each() returns true. Returns false if the kernel has not listed all.
template <class Each>
bool EachEntry(int directory, Each&& each) {
  alignas(dirent64) char entries[2048];
  for (;;) {
    const long n =
        ::syscall(SYS_getdents64, directory, entries, sizeof entries);
    if (n <= 0) return n == 0;
    for (long at = 0; at < n;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      if (!each(entry->d_name)) return true;
    }
  }
}

// Calls each(number) for every descriptor of the process from `from` on; each()
// may close it. Returns false if the descriptors cannot be listed.
template <class Each>
bool EachDescriptor(int from, Each&& each) {
  const auto list =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/fd",
                                 O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
  if (list < 0) return false;
  // proc's position there is the number and 2, so closing a number skips none.
  if (from > 0) {
    ::syscall(SYS_lseek, list, static_cast<long>(from) + 2, SEEK_SET);
  }
  const bool all = EachEntry(list, [&](const char* name) {
    int fd = 0;
    for (; *name >= '0' && *name <= '9'; ++name) fd = fd * 10 + (*name - '0');
    if (*name == '\0' && fd >= from && fd != list) each(fd);
    return true;
  });
  ::syscall(SYS_close, list);
  return all;
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_LISTING_H_
