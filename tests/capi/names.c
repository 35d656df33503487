/* Compiled with -include rcsock/posix_names.h: see headers_test.sh. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#if !defined(__clang__)
#define _FILE_OFFSET_BITS 64
#endif
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __cplusplus
#include <fstream>
struct Method {
  int close() { return 1; }
};
extern "C"
#endif
    int
    use(int fd, char* buffer);

int use(int fd, char* buffer) {
  struct pollfd one = {fd, POLLIN, 0};
  struct iovec iov = {buffer, 3};
  struct epoll_event event;
  off_t offset = 0;
  int (*by_pointer)(int) = close;
  int result = fcntl(fd, F_SETFL, O_NONBLOCK);
  result += (int)read(fd, buffer, 10) + (int)recv(fd, buffer, 4, 0);
  result += (int)send(fd, buffer, 3, 0) + poll(&one, 1, 0);
  result += (int)sendfile(fd, fd, &offset, 3);
  result += (int)preadv2(fd, &iov, 1, -1, 0);
  result += accept4(fd, NULL, NULL, 0) + epoll_wait(fd, &event, 1, 0);
  signal(SIGPIPE, SIG_IGN);
  if (fork() == 0) {
    execl("/bin/true", "true", (char*)NULL);
    _exit(2);
  }
  result += dprintf(fd, "%d", result);
#ifdef __cplusplus
  Method method;
  std::ifstream file("/dev/null");
  file.close();
  result += method.close();
#endif
  return result + by_pointer(fd);
}
