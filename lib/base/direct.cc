#include "lib/base/direct.h"

#include <dlfcn.h>

#include "lib/base/resolve.h"

namespace rcsock::direct {

long Failed(long result) {
  errno = static_cast<int>(-result);
  return -1;
}

[[gnu::cold]] bool AllOfLibc() {
  void* libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return false;
  const real::SignalsBlocked blocked;
  const auto of_libc = [libc](auto** slot, const char* name) {
    void* next =
        reinterpret_cast<void*>(__atomic_load_n(slot, __ATOMIC_ACQUIRE));
    if (next == nullptr) {
      next = real::ResolveBlocked(reinterpret_cast<void**>(slot), name);
    }
    return next == ::dlsym(libc, name);
  };
  return of_libc(&real::table::read, "read") &&
         of_libc(&real::table::write, "write") &&
         of_libc(&real::table::recv, "recv") &&
         of_libc(&real::table::send, "send") &&
         of_libc(&real::table::readv, "readv") &&
         of_libc(&real::table::writev, "writev") &&
         of_libc(&real::table::recvmsg, "recvmsg") &&
         of_libc(&real::table::sendmsg, "sendmsg") &&
         of_libc(&real::table::epoll_wait, "epoll_wait");
}

}  // namespace rcsock::direct
