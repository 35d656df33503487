#ifndef RCSOCK_TESTS_BASE_LINGERING_H_
#define RCSOCK_TESTS_BASE_LINGERING_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace rcsock {

// A TCP socket whose last close waits for so many seconds: its buffers are
// full, its peer does not read, and SO_LINGER is set.
class Lingering {
 public:
  explicit Lingering(int seconds) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof name;
    auto* address = reinterpret_cast<sockaddr*>(&name);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int small = 4096;
    ::setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    ::bind(listener, address, length);
    ::listen(listener, 1);
    ::getsockname(listener, address, &length);
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ::connect(fd_, address, length);
    peer_ = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
    static const char bytes[1 << 16] = {};
    while (::send(fd_, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    const linger option{1, seconds};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &option, sizeof option);
  }
  Lingering(Lingering&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        peer_(std::exchange(other.peer_, -1)) {}
  ~Lingering() {
    if (peer_ >= 0) ::close(peer_);
    if (fd_ >= 0) ::close(fd_);
  }

  int Take() { return std::exchange(fd_, -1); }
  // Sends it by SCM_RIGHTS, for good.  False: the kernel refuses it.
  bool SendTo(int socket) {
    char byte = 'x';
    iovec iov{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd_, sizeof fd_);
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
      return false;
    }
    ::close(Take());
    return true;
  }
  // Whether the other end comes to the end of it.
  bool ReadToTheEnd() {
    const timeval limit{20, 0};
    ::setsockopt(peer_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char bytes[1 << 14];
    ssize_t n;
    while ((n = ::recv(peer_, bytes, sizeof bytes, 0)) > 0) {
    }
    return n == 0;
  }

 private:
  int fd_ = -1;
  int peer_ = -1;
};

}  // namespace rcsock

#endif  // RCSOCK_TESTS_BASE_LINGERING_H_
