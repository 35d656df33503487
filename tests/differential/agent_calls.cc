// Single calls, and what they say.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/differential/agent.h"
#include "tests/posix/common.h"

namespace differential {

using posix_test::NowMs;

bool failed = false;

bool Again(int fd) {
  if (!failed || errno != EAGAIN) return false;
  pollfd one{fd, POLLOUT, 0};
  return ::poll(&one, 1, 2000) == 1;
}

namespace {

// Nothing that comes back to TCP is on its way.  (Over TCP all have room.)
void AwaitRoom() {
  for (const Slot& slot : slots) {
    pollfd one{slot.fd, POLLOUT, 0};
    ::poll(&one, slot.fd >= 0 ? 1 : 0, slot.fd >= 0 ? 2000 : 0);
  }
}

bool WouldBlock(int fd) {
  if ((::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) return false;
  pollfd one{fd, POLLIN | POLLRDHUP, 0};
  return ::poll(&one, 1, 0) == 0;
}

}  // namespace

std::string DoSend(const Slot& slot, const Op& op, long* value) {
  const std::size_t length = Length(op.a);
  const int connection = slot.connection < 0 ? 0 : slot.connection;
  std::vector<char> bytes = Bytes(connection, length);
  const bool more = op.kind == Kind::kMore;
  const int flags = ((op.c & 1) != 0 ? MSG_DONTWAIT : 0) |
                    ((op.c & 2) != 0 ? MSG_NOSIGNAL : 0) |
                    (more ? MSG_MORE : 0);
  // (write, writev and pwritev2 know none of these.)
  const int plain = op.b % 7;
  const int way = more && (plain == 6 || plain == 1 || plain == 2) ? 3 : plain;
  iovec two[3] = {{bytes.data(), length / 3},
                  {nullptr, 0},
                  {bytes.data() + length / 3, length - length / 3}};
  msghdr message{};
  message.msg_iov = two;
  message.msg_iovlen = 3;
  mmsghdr several[1] = {{message, 0}};
  const int before = sigpipes.load();
  ssize_t n = -1;
  errno = 0;
  do switch (way) {
      case 0:
        n = ::send(slot.fd, bytes.data(), length, flags);
        break;
      case 1:
        n = ::write(slot.fd, bytes.data(), length);
        break;
      case 2:
        n = ::writev(slot.fd, two, 3);
        break;
      case 3:
        n = ::sendmsg(slot.fd, &message, flags);
        break;
      case 4:
        n = ::sendto(slot.fd, bytes.data(), length, flags, nullptr, 0);
        break;
      case 5:
        n = ::sendmmsg(slot.fd, several, 1, flags);
        if (n == 1) n = several[0].msg_len;
        break;
      case 6:
        n = ::pwritev2(slot.fd, two, 3, -1,
                       (op.c & 1) != 0 ? RWF_NOWAIT : RWF_HIPRI);
        break;
    }
  while (n < 0 && Again(slot.fd));
  *value = n > 0 ? n : 0;
  if (n > 0) tx_at[connection] += static_cast<std::uint64_t>(n);
  const std::string outcome = Outcome(n);
  return outcome + Print(" sigpipe %d", sigpipes.load() - before);
}

std::string DoRecv(int fd, std::size_t length, int way, int which, bool wait,
                   long* value) {
  std::vector<char> bytes(length + 8);
  const int flags =
      (wait ? 0 : MSG_DONTWAIT) | ((which & 1) != 0 ? MSG_PEEK : 0) |
      ((which & 2) != 0 ? MSG_WAITALL : 0) | ((which & 4) != 0 ? MSG_TRUNC : 0);
  iovec two[3] = {{bytes.data(), length / 3},
                  {nullptr, 0},
                  {bytes.data() + length / 3, length - length / 3}};
  msghdr message{};
  message.msg_iov = two;
  message.msg_iovlen = 3;
  mmsghdr several[1] = {{message, 0}};
  ssize_t n = -1;
  std::string more;
  errno = 0;
  switch (way % 7) {
    case 0:
      n = ::recv(fd, bytes.data(), length, flags);
      break;
    case 1:
    case 2:
      if (!wait && WouldBlock(fd)) return "would block";
      n = way % 7 == 1 ? ::read(fd, bytes.data(), length) : ::readv(fd, two, 3);
      break;
    case 3:
      message.msg_flags = 77;
      n = ::recvmsg(fd, &message, flags);
      if (n >= 0) {
        more = Print(" flags %x", static_cast<unsigned>(message.msg_flags));
      }
      break;
    case 4: {
      sockaddr_storage from;
      socklen_t size = sizeof from;
      n = ::recvfrom(fd, bytes.data(), length, flags,
                     reinterpret_cast<sockaddr*>(&from), &size);
      if (n >= 0) more = Print(" name %u", size);
      break;
    }
    case 5:
      n = ::recvmmsg(fd, several, 1, flags, nullptr);
      if (n == 1) n = several[0].msg_len;
      break;
    case 6:
      n = ::preadv2(fd, two, 3, -1, wait ? 0 : RWF_NOWAIT);
      break;
  }
  if (value != nullptr) *value = n > 0 && (which & 1) == 0 ? n : 0;
  const std::string outcome = Outcome(n);
  // (With MSG_TRUNC nothing is copied.)
  return outcome + ((which & 4) != 0 ? "" : Hash(bytes.data(), n)) + more;
}

std::uint32_t Events(std::uint8_t index) {
  constexpr std::uint32_t kBase[] = {EPOLLIN,
                                     EPOLLIN | EPOLLOUT,
                                     EPOLLOUT,
                                     EPOLLIN | EPOLLRDHUP,
                                     EPOLLRDHUP | EPOLLPRI,
                                     0};
  constexpr std::uint32_t kMode[] = {0, EPOLLET, EPOLLONESHOT,
                                     EPOLLET | EPOLLONESHOT};
  return kBase[index % 6] | kMode[index / 6 % 4];
}

// One wait need not report all that is ready, if it reports something; so what
// several report is put together.
std::string DoWait(int set, int timeout, int way, const epoll_event* first) {
  std::map<std::uint32_t, std::uint32_t> seen;
  if (first != nullptr) seen[first->data.u32] = first->events;
  for (int i = 0; i < 24; ++i) {
    epoll_event events[8];
    const int ms = i == 0 ? timeout : 0;
    const timespec none{0, 0};
    const int n = way % 3 == 0 ? ::epoll_wait(set, events, 8, ms)
                  : way % 3 == 1
                      ? ::epoll_pwait(set, events, 8, ms, nullptr)
                      : ::epoll_pwait2(set, events, 8,
                                       ms == 0 ? &none : nullptr, nullptr);
    if (n < 0) return Outcome(n);
    if (n == 0 && seen.empty() && failed && timeout == 0 && i < 20) {
      if (i == 0) AwaitRoom();
      Brief();
      continue;
    }
    if (n == 0) break;
    for (int k = 0; k < n; ++k) seen[events[k].data.u32] |= events[k].events;
    if (i == 12) Brief();
  }
  std::string text = Print("%zu", seen.size());
  for (const auto& [slot, events] : seen) {
    text += Print(" %u%s:%x", slot % 16, slot >= 16 ? "e" : "", events);
  }
  return text;
}

std::string DoOption(int fd, const Op& op) {
  int value = op.b & 1;
  int level = SOL_SOCKET;
  int name = 0;
  // (Whether a call blocks is settled when it begins, but under rcsock only
  // while its stream does not move.)
  if (op.a % 7 < 2 && IsPending()) return "skip";
  switch (op.a % 7) {
    case 0: {
      const int flags = ::fcntl(fd, F_GETFL);
      const int n = ::fcntl(
          fd, F_SETFL, value != 0 ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
      return Outcome(n);
    }
    case 1:
      return Outcome(::ioctl(fd, FIONBIO, &value));
    case 2: {
      constexpr int kMarks[] = {1, 8, 100, 5000};
      name = SO_RCVLOWAT;
      value = kMarks[op.b % 4];
      break;
    }
    case 3: {
      linger option{op.b % 3 != 0, op.b % 3 == 1 ? 0 : 1};
      return Outcome(
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option));
    }
    case 4:
      name = SO_OOBINLINE;
      break;
    case 5:
      name = SO_KEEPALIVE;
      break;
    case 6:
      level = IPPROTO_TCP;
      name = TCP_QUICKACK;
      break;
  }
  const std::string outcome =
      Outcome(::setsockopt(fd, level, name, &value, sizeof value));
  if (name == TCP_QUICKACK) return outcome;
  int got = 0;
  socklen_t size = sizeof got;
  ::getsockopt(fd, level, name, &got, &size);
  return outcome + Print(" now %d", got);
}

std::string DoSelect(int fd, timeval* time, int way) {
  if (fd < 0 || fd >= FD_SETSIZE) return "skip";
  fd_set in, out, except;
  FD_ZERO(&in);
  FD_ZERO(&out);
  FD_ZERO(&except);
  FD_SET(fd, &in);
  FD_SET(fd, &except);
  if (time != nullptr) FD_SET(fd, &out);
  const timespec none{0, 0};
  const int n = way % 2 == 0
                    ? ::select(fd + 1, &in, &out, &except, time)
                    : ::pselect(fd + 1, &in, &out, &except,
                                time != nullptr ? &none : nullptr, nullptr);
  if (n < 0) return Outcome(n);
  return Print("%d in %d out %d except %d", n, FD_ISSET(fd, &in),
               FD_ISSET(fd, &out), FD_ISSET(fd, &except));
}

std::string DoFork(Slot* slot, const Op& op, long* value) {
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) Die("pipe");
  const pid_t child = ::fork();
  if (child < 0) return Outcome(child);
  if (child == 0) {
    long n = 0;
    std::string said = "nothing";
    switch (op.b % 6) {
      case 0:
        break;
      case 1: {
        Op send = op;
        send.b = 0;
        send.c = 2;
        said = DoSend(*slot, send, &n);
        break;
      }
      case 2:
        said = DoRecv(slot->fd, Length(op.a), 0, 0, false, &n);
        n = -n;
        break;
      case 3:
        said = Outcome(::close(slot->fd));
        break;
      case 4:
        said = Outcome(::shutdown(slot->fd, SHUT_WR));
        break;
      case 5:
        ::exit(0);
    }
    (void)!::write(pipe_fds[1], &n, sizeof n);
    (void)!::write(pipe_fds[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(pipe_fds[1]);
  std::string all;
  const std::uint64_t end = NowMs() + 10'000;
  for (;;) {
    pollfd one{pipe_fds[0], POLLIN, 0};
    const std::uint64_t now = NowMs();
    if (now >= end || ::poll(&one, 1, static_cast<int>(end - now)) == 0) {
      ::kill(child, SIGKILL);
      all = "        the child hangs";
      break;
    }
    char piece[256];
    const ssize_t n = ::read(pipe_fds[0], piece, sizeof piece);
    if (n <= 0) break;
    all.append(piece, static_cast<std::size_t>(n));
  }
  ::close(pipe_fds[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (all.size() < sizeof *value) all.resize(sizeof *value);
  std::memcpy(value, all.data(), sizeof *value);
  if (*value > 0) tx_at[slot->connection] += static_cast<std::uint64_t>(*value);
  return Print("child %x: ", static_cast<unsigned>(status)) +
         all.substr(sizeof *value);
}

std::string DoSplice(int fd, std::size_t length, long* value) {
  if (WouldBlock(fd)) return "would block";
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) Die("pipe");
  const ssize_t n =
      ::splice(fd, nullptr, pipe_fds[1], nullptr, length, SPLICE_F_NONBLOCK);
  std::string text = Outcome(n);
  if (n > 0) {
    std::vector<char> bytes(static_cast<std::size_t>(n));
    const ssize_t m = ::read(pipe_fds[0], bytes.data(), bytes.size());
    text += Hash(bytes.data(), m);
    *value = n;
  }
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  return text;
}

std::string DoUrgent(const Slot& slot, const Op& op, long* value) {
  char byte = 'u';
  switch (op.a % 3) {
    case 0: {
      const ssize_t n = ::send(slot.fd, &byte, 1, MSG_OOB | MSG_NOSIGNAL);
      *value = n > 0;
      return Outcome(n);
    }
    case 1: {
      const ssize_t n = ::recv(slot.fd, &byte, 1, MSG_OOB | MSG_DONTWAIT);
      return Outcome(n) + (n == 1 ? Hash(&byte, 1) : "");
    }
    default: {
      int at = 0;
      const int n = ::ioctl(slot.fd, SIOCATMARK, &at);
      return Outcome(n) + Print(" at %d", at);
    }
  }
}

std::string DoCork(int fd, bool on) {
  int value = on;
  const std::string outcome =
      Outcome(::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value));
  int got = -1;
  socklen_t size = sizeof got;
  ::getsockopt(fd, IPPROTO_TCP, TCP_CORK, &got, &size);
  return outcome + Print(" now %d", got);
}

std::string DoConnect(int port, int how, int* fd) {
  const bool waits = how % 3 == 0;
  *fd = ::socket(AF_INET,
                 SOCK_STREAM | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0);
  sockaddr_in address = posix_test::Loopback(port);
  auto* const to = reinterpret_cast<sockaddr*>(&address);
  std::string text = Outcome(::connect(*fd, to, sizeof address));
  if (waits) return text;
  pollfd one{*fd, POLLOUT, 0};
  text += Print(" %d", ::poll(&one, 1, 5000));
  if (how % 3 == 1) text += " " + Outcome(::connect(*fd, to, sizeof address));
  if (how % 2 == 0) ::fcntl(*fd, F_SETFL, ::fcntl(*fd, F_GETFL) & ~O_NONBLOCK);
  return text;
}

std::string DoAccept(int listener, int how, int* fd) {
  pollfd one{listener, POLLIN, 0};
  if (::poll(&one, 1, 5000) != 1) return "nobody";
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  auto* const name = reinterpret_cast<sockaddr*>(&from);
  *fd = how % 3 == 0   ? ::accept(listener, nullptr, nullptr)
        : how % 3 == 1 ? ::accept4(listener, name, &size, SOCK_CLOEXEC)
                       : ::accept4(listener, name, &size, SOCK_NONBLOCK);
  if (*fd < 0) return Outcome(*fd);
  return Print("accepted %d", how % 3 == 0 ? 0 : static_cast<int>(size));
}

// The sockets by which two processes share memory end, as when one has died.
// They have numbers that no program gets, and that its own calls may not touch.
// Over RDMA: the queue pairs go into error, by who stands behind the preload.
std::string FailLanes() {
  failed = true;
  if (auto* const all =
          reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "break_qps"))) {
    all();
  }
  DIR* all = ::opendir("/proc/self/fd");
  if (all == nullptr) return "done";
  while (const dirent* one = ::readdir(all)) {
    const int fd = std::atoi(one->d_name);
    if (fd <= kControl) continue;
    int domain = 0;
    socklen_t size = sizeof domain;
    if (::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) ==
            0 &&
        domain == AF_UNIX) {
      ::syscall(SYS_shutdown, fd, SHUT_RDWR);
    }
  }
  ::closedir(all);
  return "done";
}

}  // namespace differential
