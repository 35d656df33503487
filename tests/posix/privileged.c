// A program that is linked with the library, and may have more rights than its
// caller: two ends talk until they would have a lane.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rcsock/rcsock.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(void) {
  printf("uid %u euid %u secure %lu\n", getuid(), geteuid(),
         getauxval(AT_SECURE));
  struct sockaddr_in name = {0};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  struct sockaddr* address = (struct sockaddr*)&name;
  const int listener = rcs_socket(AF_INET, SOCK_STREAM, 0);
  if (rcs_bind(listener, address, length) != 0 ||
      rcs_listen(listener, 1) != 0 ||
      rcs_getsockname(listener, address, &length) != 0) {
    return 1;
  }
  const int near = rcs_socket(AF_INET, SOCK_STREAM, 0);
  if (rcs_connect(near, address, length) != 0) return 1;
  const int far = rcs_accept(listener, NULL, NULL);
  char bytes[64] = {0};
  for (int i = 0; i < 500; ++i) {
    if (rcs_send(near, bytes, sizeof bytes, 0) != sizeof bytes ||
        rcs_recv(far, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes ||
        rcs_send(far, bytes, sizeof bytes, 0) != sizeof bytes ||
        rcs_recv(near, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes) {
      return 1;
    }
    if (i % 100 == 0) usleep(10000);
  }
  printf("lane %s\n", rcs_get_lane(near) == RCS_TCP ? "tcp" : "another");
  rcs_close(near);
  rcs_close(far);
  return 0;
}
