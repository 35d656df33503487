// A library that makes system calls by machine code of its own: opened late, by
// loader.cc.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/posix/own_syscalls.h"

// Gives back what comes until the end; returns how many bytes.
extern "C" __attribute__((visibility("default"))) int EchoByOwnCalls(int fd) {
  int all = 0;
  for (;;) {
    pollfd one{fd, POLLIN, 0};
    if (OwnCall<SYS_poll>(Word(&one), 1, 8000) != 1) return -1;
    char bytes[512];
    const long n = OwnCall<SYS_read>(fd, Word(bytes), sizeof bytes);
    if (n < 0) return -2;
    if (n == 0) return all;
    if (::write(fd, bytes, static_cast<std::size_t>(n)) != n) return -3;
    all += static_cast<int>(n);
  }
}
