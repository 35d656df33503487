// A library that knows sockets: opened late, by loader.cc.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

extern "C" __attribute__((visibility("default"))) int TalkOn(int fd,
                                                             int count) {
  for (int i = 0; i < count; ++i) {
    char text[16];
    char back[16];
    std::memset(text, i & 0xff, sizeof text);
    if (::send(fd, text, sizeof text, 0) != sizeof text) return -1;
    if (::recv(fd, back, sizeof back, MSG_WAITALL) != sizeof back) return -1;
    if (std::memcmp(text, back, sizeof text) != 0) return -2;
  }
  return count;
}

extern "C" __attribute__((visibility("default"))) int Talk(int port,
                                                           int count) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<unsigned short>(port));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
      0) {
    return -3;
  }
  const int result = TalkOn(fd, count);
  return ::close(fd) == 0 ? result : -4;
}
