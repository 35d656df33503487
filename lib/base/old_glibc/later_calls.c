// Functions that rcsock's libraries need and glibc 2.17 does not have.
// libstdc++ and libsodium of the machine that builds need some of them. All
// these functions are hidden.
//
// stat() and fstat() are functions of libc only from 2.33 on. Before, the
// linker took them from libc's static part.

#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { kStatVersion = 1 };
int __xstat(int version, const char* path, struct stat* status);
int __fxstat(int version, int fd, struct stat* status);
int __lxstat(int version, const char* path, struct stat* status);

int stat(const char* path, struct stat* status) {
  return __xstat(kStatVersion, path, status);
}

// Each process calls it as it starts.
__attribute__((cold)) int fstat(int fd, struct stat* status) {
  return __fxstat(kStatVersion, fd, status);
}

int lstat(const char* path, struct stat* status) {
  return __lxstat(kStatVersion, path, status);
}

// Both structures are one on this machine.
int stat64(const char* path, struct stat64* status) {
  return __xstat(kStatVersion, path, (struct stat*)status);
}

int fstat64(int fd, struct stat64* status) {
  return __fxstat(kStatVersion, fd, (struct stat*)status);
}

int lstat64(const char* path, struct stat64* status) {
  return __lxstat(kStatVersion, path, (struct stat*)status);
}

// libstdc++ uses plain instructions in place of locked ones while this is true.
// It is always false here: rcsock's processes have a thread of rcsock's own.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// Not syscall(): the preload has a definition of its own.
ssize_t getrandom(void* to, size_t length, unsigned flags) {
  long result = SYS_getrandom;
  __asm__ volatile("syscall"
                   : "+a"(result)
                   : "D"(to), "S"(length), "d"((unsigned long)flags)
                   : "rcx", "r11", "memory");
  if (result >= 0) return result;
  errno = (int)-result;
  return -1;
}

int getentropy(void* to, size_t length) {
  if (length > 256) {
    errno = EIO;
    return -1;
  }
  for (size_t done = 0; done < length;) {
    const ssize_t n = getrandom((char*)to + done, length - done, 0);
    if (n < 0 && errno != EINTR) return -1;
    if (n > 0) done += (size_t)n;
  }
  return 0;
}

// Only std::random_device calls it, if it is made with that name.
uint32_t arc4random(void) {
  uint32_t random = 0;
  // libc's never fails, too.
  if (getentropy(&random, sizeof random) != 0) __builtin_trap();
  return random;
}

void __explicit_bzero_chk(void* to, size_t length, size_t room);
void __explicit_bzero_chk(void* to, size_t length, size_t room) {
  if (room < length) __builtin_trap();
  memset(to, 0, length);
  __asm__ volatile("" : : "r"(to) : "memory");
}
