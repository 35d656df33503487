/* What a program outside the tree needs of the installed C library. */
#include <netinet/in.h>
#include <rcsock/rcsock.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  struct sockaddr_in at;
  socklen_t size = sizeof at;
  char in[6] = "";
  int listener = rcs_socket(AF_INET, SOCK_STREAM, 0);
  int a = rcs_socket(AF_INET, SOCK_STREAM, 0);
  int b;
  memset(&at, 0, sizeof at);
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (rcs_bind(listener, (struct sockaddr*)&at, sizeof at) != 0 ||
      rcs_listen(listener, 1) != 0 ||
      rcs_getsockname(listener, (struct sockaddr*)&at, &size) != 0 ||
      rcs_connect(a, (struct sockaddr*)&at, sizeof at) != 0) {
    perror("consumer");
    return 1;
  }
  b = rcs_accept(listener, NULL, NULL);
  if (rcs_send(a, "hello", 5, 0) != 5 || rcs_recv(b, in, 5, MSG_WAITALL) != 5) {
    perror("consumer");
    return 1;
  }
  rcs_close(a);
  rcs_close(b);
  rcs_close(listener);
  puts(in);
  return 0;
}
