// A client and a server that are not linked with libpthread: before glibc 2.34
// only the preload brings it into them.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kTurns = 2000 };

// Returns 0 if what comes back is what was sent.
static int Talk(int fd, int first) {
  for (int turn = 0; turn < kTurns; ++turn) {
    char text[64];
    char expected[sizeof text];
    memset(expected, 'a' + turn % 26, sizeof expected);
    if (first && send(fd, expected, sizeof expected, 0) != sizeof expected) {
      return 1;
    }
    if (recv(fd, text, sizeof text, MSG_WAITALL) != sizeof text ||
        memcmp(text, expected, sizeof text) != 0) {
      return 1;
    }
    if (!first && send(fd, text, sizeof text, 0) != sizeof text) return 1;
  }
  return 0;
}

int main(void) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  socklen_t length = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, (struct sockaddr*)&address, length) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, (struct sockaddr*)&address, &length) != 0) {
    return 1;
  }
  const pid_t child = fork();
  if (child == 0) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    return connect(fd, (struct sockaddr*)&address, length) != 0 || Talk(fd, 1);
  }
  const int fd = accept(listener, NULL, NULL);
  int status = 1;
  return fd < 0 || Talk(fd, 0) || waitpid(child, &status, 0) != child ||
         status != 0;
}
