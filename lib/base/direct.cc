#include "lib/base/direct.h"

#include <dlfcn.h>

namespace rcsock::direct {

long Failed(long result) {
  errno = static_cast<int>(-result);
  return -1;
}

bool AllOfLibc() {
  void* libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return false;
  const auto of_libc = [libc](auto* next, const char* name) {
    return reinterpret_cast<void*>(next) == ::dlsym(libc, name);
  };
  return of_libc(RCSOCK_REAL(read), "read") &&
         of_libc(RCSOCK_REAL(write), "write") &&
         of_libc(RCSOCK_REAL(recv), "recv") &&
         of_libc(RCSOCK_REAL(send), "send") &&
         of_libc(RCSOCK_REAL(readv), "readv") &&
         of_libc(RCSOCK_REAL(writev), "writev") &&
         of_libc(RCSOCK_REAL(recvmsg), "recvmsg") &&
         of_libc(RCSOCK_REAL(sendmsg), "sendmsg") &&
         of_libc(RCSOCK_REAL(epoll_wait), "epoll_wait");
}

}  // namespace rcsock::direct
