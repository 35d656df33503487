// Calls that move no bytes: names, wrong arguments, masks, numbers.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string>
#include <vector>

#include "tests/differential/agent.h"
#include "tests/posix/common.h"

namespace differential {

namespace {

// (Ports differ from run to run, but for the service's.)
std::string Name(int result, const sockaddr_in& name, socklen_t length,
                 int service) {
  std::string text = Outcome(result);
  if (result != 0) return text;
  const sockaddr_in host = posix_test::Loopback(service);
  return text + Print(" %u family %d host %d service %d", length,
                      name.sin_family,
                      name.sin_addr.s_addr == host.sin_addr.s_addr,
                      name.sin_port == host.sin_port);
}

}  // namespace

std::string DoNames(int fd, int service, int how) {
  sockaddr_in name{};
  auto* const to = reinterpret_cast<sockaddr*>(&name);
  // With room for less than that it still says how long it is.
  const socklen_t room = how % 3 == 2 ? 8 : sizeof name;
  socklen_t length = room;
  int result = ::getsockname(fd, to, &length);
  std::string text = "own " + Name(result, name, length, service);
  name = {};
  length = room;
  result = ::getpeername(fd, to, &length);
  return text + " peer " + Name(result, name, length, service);
}

// Each is refused, whatever the stream is on.
std::string DoBad(int fd, const Op& op) {
  char byte = 0;
  iovec some[2] = {{&byte, 1}, {&byte, SIZE_MAX}};
  msghdr message{};
  message.msg_iov = some;
  message.msg_iovlen = 1;
  mmsghdr several{message, 0};
  // (The compiler, which sees as much, would refuse them.)
  volatile int negative = -1;
  volatile int too_many = IOV_MAX + 1;
  errno = 0;
  switch ((op.a * 12 + op.b) % 23) {
    case 0:
      return "readv " + Outcome(::readv(fd, some, negative));
    case 1:
      return "writev " + Outcome(::writev(fd, some, too_many));
    case 2:
      return "a length " + Outcome(::readv(fd, some, 2));
    case 3:
      return "a length " + Outcome(::writev(fd, some, 2));
    case 4:
      message.msg_iovlen = IOV_MAX + 1;
      return "recvmsg " + Outcome(::recvmsg(fd, &message, MSG_DONTWAIT));
    case 5:
      message.msg_iovlen = IOV_MAX + 1;
      return "sendmsg " + Outcome(::sendmsg(fd, &message, MSG_NOSIGNAL));
    case 6:
      return "recvmmsg " +
             Outcome(::recvmmsg(fd, &several, 0, MSG_DONTWAIT, nullptr));
    case 7:
      return "sendmmsg " + Outcome(::sendmmsg(fd, &several, 0, MSG_NOSIGNAL));
    case 8: {
      timespec no_time{-1, 0};
      return "time " +
             Outcome(::recvmmsg(fd, &several, 1, MSG_DONTWAIT, &no_time));
    }
    case 9:
      return "preadv2 " + Outcome(::preadv2(fd, some, 1, 0, 0));
    case 10:
      return "pwritev2 " + Outcome(::pwritev2(fd, some, 1, 7, 0));
    case 11:
      return "flag " + Outcome(::preadv2(fd, some, 1, -1, 1 << 20));
    case 12:
      return "pread " + Outcome(::pread(fd, &byte, 1, 0));
    case 13:
      return "lseek " + Outcome(::lseek(fd, 0, SEEK_CUR));
    case 14:
      return "fsync " + Outcome(::fsync(fd));
    case 15:
      return "ftruncate " + Outcome(::ftruncate(fd, 0));
    case 16:
      return "accept " + Outcome(::accept(fd, nullptr, nullptr));
    case 17:
      return "fallocate " + Outcome(::posix_fallocate(fd, 0, 1));
    case 18: {
      const sockaddr_in to = posix_test::Loopback(1);
      return "bind " +
             Outcome(::bind(fd, reinterpret_cast<const sockaddr*>(&to), 3));
    }
    case 19:
      return "shutdown " + Outcome(::shutdown(fd, 3));
    case 20:
      return "errors " +
             Outcome(::recv(fd, &byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT));
    case 21: {
      int value = 0;
      return "option " +
             Outcome(::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, 1));
    }
    default: {
      epoll_event event{EPOLLIN, {}};
      return "its own set " +
             Outcome(::epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event));
    }
  }
}

// A signal waits, which only the call's own mask lets through: what is ready
// goes before it.  (Which one of a set is told of is the kernel's choice; so
// the rest is asked for at once.)
std::string DoMasked(int fd, const Op& op) {
  const int set = sets[op.c % kSets];
  sigset_t blocked, none;
  sigemptyset(&none);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  const int before = signals.load();
  ::pthread_kill(::pthread_self(), SIGUSR1);
  const timespec now{0, 0};
  const timespec* const time = op.b % 2 == 0 ? &now : nullptr;
  std::string text;
  bool some = false;
  epoll_event one;
  switch (op.a % 4) {
    case 0: {
      pollfd it{fd, static_cast<short>(Events(op.c % 6)), 0};
      const int n = ::ppoll(&it, 1, time, &none);
      text = Outcome(n) + Print(" %x", static_cast<unsigned>(it.revents));
      break;
    }
    case 1: {
      if (fd >= FD_SETSIZE) Die("a high number");
      fd_set in;
      FD_ZERO(&in);
      if (fd >= 0) FD_SET(fd, &in);
      const int n = ::pselect(fd + 1, &in, nullptr, nullptr, time, &none);
      text =
          Outcome(n) + Print(" in %d", n >= 0 && fd >= 0 && FD_ISSET(fd, &in));
      break;
    }
    default: {
      const int n =
          op.a % 4 == 2
              ? ::epoll_pwait(set, &one, 1, time != nullptr ? 0 : -1, &none)
              : ::epoll_pwait2(set, &one, 1, time, &none);
      some = n > 0;
      text = Outcome(n);
      break;
    }
  }
  const int handled = signals.load() - before;
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  if (some) text = DoWait(set, 0, 0, &one);
  return text + Print(" handled %d then %d", handled, signals.load() - before);
}

std::string DoDupOnto(const Slot& from, Slot* to, int how) {
  if (IsPending() || to->fd < 0) return "skip";
  const int n = how % 2 == 0 ? ::dup2(from.fd, to->fd)
                             : ::dup3(from.fd, to->fd, O_CLOEXEC);
  if (n < 0) return Outcome(n);
  to->connection = from.connection;
  return "done";
}

// Ends the connection, and leaves the socket.
std::string DoUnconnect(int fd) {
  if (IsPending()) return "skip";
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  return Outcome(::connect(fd, &none, sizeof none));
}

}  // namespace differential
