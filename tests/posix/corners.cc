// What few programs do with a connection, and some of it no lane can follow.
#include <aio.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// A pointer that the compiler has no opinion on.
void* At(std::uintptr_t value) {
  static volatile std::uintptr_t kept;
  kept = value;
  return reinterpret_cast<void*>(kept);
}

void AwaitBytes(int fd, int wanted) {
  int n = 0;
  while (::ioctl(fd, FIONREAD, &n) == 0 && n < wanted) {
    pollfd none{-1, 0, 0};
    ::poll(&none, 1, 1);
  }
  Log("FIONREAD %d", n);
}

void Call(int fd, int count) {
  for (int i = 0; i < count; ++i) {
    char text[16];
    char back[16];
    Pattern(31, static_cast<std::uint64_t>(i) * 16, text, sizeof text);
    SendAll(fd, text, sizeof text);
    RecvAll(fd, back, sizeof back);
    CHECK_THAT(std::memcmp(text, back, sizeof text) == 0);
  }
}

// EFAULT, and neither a byte lost nor one sent.
Case bad_pointers(
    "bad_pointers",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      char text[4] = {};
      RecvAll(fd, text, 4);
      Log("%.4s", text);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      void* const high = At(0xffff'8000'0000'0000);
      const int set = ::epoll_create1(0);
      const int other = ::epoll_create1(0);
      const int file = ::open("/proc/self/exe", O_RDONLY);
      epoll_event readable{};
      readable.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &readable) == 0);
      for (void* const at : {At(0), At(8), high}) {
        Result("read", ::read(fd, at, 4));
        Result("recv", ::recv(fd, at, 4, 0));
        Result("peek", ::recv(fd, at, 4, MSG_PEEK));
        Result("recvfrom", ::recvfrom(fd, at, 4, 0, nullptr, nullptr));
        Result("write", ::write(fd, at, 4));
        Result("send", ::send(fd, at, 4, 0));
        iovec one{at, 4};
        Result("readv", ::readv(fd, &one, 1));
        Result("writev", ::writev(fd, &one, 1));
        msghdr message{};
        message.msg_iov = &one;
        message.msg_iovlen = 1;
        Result("recvmsg", ::recvmsg(fd, &message, 0));
        Result("sendmsg", ::sendmsg(fd, &message, 0));
        Result("readv of it", ::readv(fd, static_cast<iovec*>(at), 1));
        Result("writev of it", ::writev(fd, static_cast<iovec*>(at), 1));
        Result("recvmsg of it", ::recvmsg(fd, static_cast<msghdr*>(at), 0));
        Result("sendmsg of it", ::sendmsg(fd, static_cast<msghdr*>(at), 0));
        Result("poll", ::poll(static_cast<pollfd*>(at), 1, 0));
        Result("FIONREAD", ::ioctl(fd, FIONREAD, at));
        Result("SIOCOUTQ", ::ioctl(fd, SIOCOUTQ, at));
        for (const int name : {TCP_NODELAY, TCP_CORK}) {
          socklen_t size = sizeof(int);
          Result("get", ::getsockopt(fd, IPPROTO_TCP, name, at, &size));
          int value = 0;
          auto* const length = static_cast<socklen_t*>(at);
          Result("get it", ::getsockopt(fd, IPPROTO_TCP, name, &value, length));
          Result("set", ::setsockopt(fd, IPPROTO_TCP, name, at, sizeof value));
          size = 0;
          Result("no bytes", ::getsockopt(fd, IPPROTO_TCP, name, at, &size));
        }
        auto* const event = static_cast<epoll_event*>(at);
        Result("epoll_wait", ::epoll_wait(set, event, 4, 0));
        Result("epoll_pwait", ::epoll_pwait(set, event, 4, 0, nullptr));
        Result("add", ::epoll_ctl(other, EPOLL_CTL_ADD, fd, event));
        Result("mod", ::epoll_ctl(set, EPOLL_CTL_MOD, fd, event));
        if (at == nullptr) continue;  // which is an argument left out
        auto* const bits = static_cast<fd_set*>(at);
        timeval now{0, 0};
        Result("select in", ::select(fd + 1, bits, nullptr, nullptr, &now));
        Result("select out", ::select(fd + 1, nullptr, bits, nullptr, &now));
        Result("select but", ::select(fd + 1, nullptr, nullptr, bits, &now));
        Result("sendfile", ::sendfile(fd, file, static_cast<off_t*>(at), 4));
      }
      // Of what is no stream too.
      const int datagram = ::socket(AF_INET, SOCK_DGRAM, 0);
      for (const int to : {fd, datagram}) {
        for (void* const at : {At(0), At(8), high}) {
          Result("sendmmsg", ::sendmmsg(to, static_cast<mmsghdr*>(at), 1, 0));
        }
      }
      ::close(datagram);
      ::close(file);
      ::close(other);
      ::close(set);
      Result("poll", ::poll(static_cast<pollfd*>(At(0)), 1, 0));
      char text[16] = {};
      Result("recv", ::recv(fd, text, sizeof text, 0));
      Log("%s", text);
      SendAll(fd, "done", 4);
      Barrier();
    });

// Lengths that no buffer has: refused before a byte moves, or cut.
Case bad_lengths(
    "bad_lengths",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      char text[8] = {};
      RecvAll(fd, text, 4);
      Log("%.4s", text);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      const int file = ::open("/proc/self/exe", O_RDONLY);
      static char text[64];
      // (Where the compiler has no opinion.)
      for (const auto length :
           {reinterpret_cast<std::size_t>(At(static_cast<std::uintptr_t>(-1))),
            reinterpret_cast<std::size_t>(At(std::uintptr_t{1} << 63))}) {
        Result("write", ::write(fd, text, length));
        Result("read", ::read(fd, text, length));
        Result("sendfile", ::sendfile(fd, file, nullptr, length));
        iovec one{text, length};
        Result("writev", ::writev(fd, &one, 1));
        Result("readv", ::readv(fd, &one, 1));
        // (The rest of the buffer is not looked at.)
        Result("recv", ::recv(fd, text, length, MSG_PEEK));
        Result("recvfrom",
               ::recvfrom(fd, text, length, MSG_PEEK, nullptr, nullptr));
        Log("%s", text);
      }
      Result("recv", ::recv(fd, text,
                            reinterpret_cast<std::size_t>(
                                At(static_cast<std::uintptr_t>(-1))),
                            0));
      ::close(file);
      SendAll(fd, "done", 4);
      Barrier();
    });

// Arguments that the kernel refuses, to calls that look at them here as well.
Case bad_arguments(
    "bad_arguments",
    [](int fd) {
      SendAll(fd, "abc", 3);
      char text[3];
      RecvAll(fd, text, sizeof text);
      Log("%.3s", text);
      Barrier();
    },
    [](int fd) {
      const long page = ::sysconf(_SC_PAGESIZE);
      char* const hole = static_cast<char*>(
          ::mmap(nullptr, static_cast<std::size_t>(page) * 2, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      CHECK_THAT(hole != MAP_FAILED);
      pollfd one{fd, POLLIN, 0};
      const timespec now{0, 0};
      const auto most = reinterpret_cast<nfds_t>(At(static_cast<nfds_t>(-1)));
      Result("poll", ::poll(&one, most, 0));
      Result("ppoll", ::ppoll(&one, most, &now, nullptr));

      int port;
      const int listener = Listen(&port);
      const int callers[] = {Connect(port), Connect(port), Connect(port)};
      sockaddr_storage from{};
      auto* const address = reinterpret_cast<sockaddr*>(&from);
      socklen_t length = sizeof from;
      Result("accept to a hole",
             ::accept(listener, reinterpret_cast<sockaddr*>(hole), &length));
      char byte;
      int error;
      Log("rest %zu", Drain(callers[0], &error));
      length = static_cast<socklen_t>(-1);
      Result("accept, length -1", ::accept(listener, address, &length));
      Log("rest %zu", Drain(callers[1], &error));
      length = 4;
      const int accepted = ::accept(listener, address, &length);
      Log("accept, 4 bytes: %d, %u, %d", accepted >= 0, length,
          from.ss_family == AF_INET);
      SendAll(callers[2], "x", 1);
      RecvAll(accepted, &byte, 1);
      for (const int caller : callers) ::close(caller);
      ::close(accepted);
      ::close(listener);

      int ends[2];
      CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
      alignas(cmsghdr) char control[64] = {};
      iovec iov{&byte, 1};
      msghdr message{};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int));
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = 0;
      Result("sendmsg, cmsg_len 0", ::sendmsg(ends[0], &message, 0));
      ::close(ends[0]);
      ::close(ends[1]);

      char name[] = "true";
      char* const arguments[] = {name, nullptr};
      char* const none[] = {nullptr};
      char* const strings[] = {name, hole, nullptr};
      Result("execve, environment",
             ::execve("/bin/true", arguments, reinterpret_cast<char**>(hole)));
      Result("execve, a string", ::execve("/bin/true", arguments, strings));
      Result("execve, path", ::execve(hole, arguments, none));
      pid_t child;
      Log("posix_spawn: %s",
          ErrorName(::posix_spawn(&child, "/bin/true", nullptr, nullptr,
                                  arguments, reinterpret_cast<char**>(hole))));
      CHECK_THAT(::munmap(hole, static_cast<std::size_t>(page) * 2) == 0);
      char text[4] = {};
      RecvAll(fd, text, 3);
      SendAll(fd, text, 3);
      Barrier();
    });

// connect() to AF_UNSPEC ends a connection; the same descriptor has the next.
Case disconnect(
    "disconnect",
    [](int) {
      const int port = static_cast<int>(Hear());
      const int fd = Connect(port);
      sockaddr_in to{};
      socklen_t length = sizeof to;
      CHECK_THAT(::getpeername(fd, reinterpret_cast<sockaddr*>(&to), &length) ==
                 0);
      for (int i = 0; i < 3; ++i) {
        if (i > 0) {
          Result("connect",
                 ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to));
        }
        if (i == 0) Warm(fd);  // the others stay on TCP
        SendAll(fd, "unread", 6);
        char text[8] = {};
        RecvAll(fd, text, 3);
        Barrier();
        const sockaddr none{AF_UNSPEC, {}};
        Result("disconnect", ::connect(fd, &none, sizeof none));
        Result("recv", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
        Barrier();
      }
      ::close(fd);
    },
    [](int) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
      for (int i = 0; i < 3; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        if (i == 0) Warm(fd);
        SendAll(fd, "abcdef", 6);  // of which three are never read
        AwaitBytes(fd, 6);
        Barrier();
        Barrier();
        int error = 0;
        Log("%zu bytes", Drain(fd, &error));
        Log("%s", ErrorName(error));
        ::close(fd);
      }
      ::close(listener);
    },
    {.warm = false, .connect = false, .seconds = 40});

Case low_water(
    "rcvlowat",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
      SendAll(fd, "def", 3);
      Barrier();
    },
    [](int fd) {
      int mark = 5;
      Result("SO_RCVLOWAT",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
      Barrier();
      Barrier();
      AwaitBytes(fd, 3);
      pollfd one{fd, POLLIN, 0};
      Result("poll below the mark", ::poll(&one, 1, 20));
      char text[16] = {};
      Result("recv, not waiting",
             ::recv(fd, text, 16, MSG_DONTWAIT | MSG_PEEK));
      Barrier();
      Result("poll", ::poll(&one, 1, -1));
      Result("recv", ::recv(fd, text, 16, 0));
      Log("%s", text);
      Barrier();
    });

// recvmsg, and what comes beside the bytes.
long RecvTold(int fd, void* to, std::size_t length, int flags,
              std::size_t room) {
  iovec iov{to, length};
  alignas(cmsghdr) char control[64] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = room != 0 ? control : nullptr;
  message.msg_controllen = room;
  const long n = ::recvmsg(fd, &message, flags);
  if (n < 0) return Result("recvmsg", n);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  const bool none = message.msg_controllen < sizeof *header;
  int value = -1;
  if (!none && header->cmsg_type == TCP_INQ &&
      header->cmsg_len >= CMSG_LEN(sizeof value)) {
    std::memcpy(&value, CMSG_DATA(header), sizeof value);
  }
  Log("recvmsg %ld, control %zu, level %d, type %d, %d, flags %#x", n,
      static_cast<std::size_t>(message.msg_controllen),
      none ? 0 : header->cmsg_level, none ? 0 : header->cmsg_type, value,
      static_cast<unsigned>(message.msg_flags));
  return value;
}

Case bytes_left(
    "tcp_inq",
    [](int fd) {
      Barrier();
      const std::string text(10'000, 'x');
      SendAll(fd, text.data(), text.size());
      Barrier();
      SendAll(fd, "abcdefgh", 8);
      Barrier();
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      int on = 1;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      Barrier();
      AwaitBytes(fd, 10'000);
      char text[10'000];
      RecvTold(fd, text, 1000, 0, 64);
      RecvTold(fd, text, 1000, MSG_PEEK, 64);
      RecvTold(fd, text, 1000, MSG_DONTWAIT, 0);
      RecvTold(fd, text, 1000, 0, 8);
      RecvTold(fd, text, 1000, 0, 18);
      RecvTold(fd, text, 1000, 0, 20);
      Result("recv", ::recv(fd, text, 1000, 0));
      RecvTold(fd, text, 10'000, 0, 64);
      RecvTold(fd, text, 10, MSG_DONTWAIT, 64);
      on = 0;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      Barrier();
      AwaitBytes(fd, 8);
      RecvTold(fd, text, 4, 0, 64);
      on = 1;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      RecvTold(fd, text, 4, 0, 64);
      Barrier();
      // The end is something to come back for.
      pollfd one{fd, POLLRDHUP, 0};
      Result("poll", ::poll(&one, 1, -1));
      RecvTold(fd, text, 4, 0, 64);
      RecvTold(fd, text, 4, 0, 64);
      Barrier();
    });

// An accepted connection has what its listener had.
Case inherited_options(
    "tcp_inq_of_the_listener",
    [](int) {
      int port;
      const int listener = Listen(&port);
      const int on = 1;
      Result("TCP_INQ",
             ::setsockopt(listener, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      Tell(port);
      const int fd = ::accept(listener, nullptr, nullptr);
      CHECK_THAT(fd >= 0);
      Warm(fd);
      Barrier();
      AwaitBytes(fd, 8);
      char text[8];
      RecvTold(fd, text, 3, 0, 64);
      RecvTold(fd, text, 3, MSG_CMSG_CLOEXEC, 64);
      RecvTold(fd, text, 2, MSG_CMSG_CLOEXEC, 0);
      Barrier();
    },
    [](int) {
      const int fd = Connect(static_cast<int>(Hear()));
      Warm(fd);
      Barrier();
      SendAll(fd, "abcdefgh", 8);
      Barrier();
    },
    {.warm = false, .connect = false});

// As gRPC: at an edge it reads until nothing is left, and not until EAGAIN.
Case left_and_edges(
    "tcp_inq_edges",
    [](int fd) {
      Barrier();
      std::vector<char> text(30'000);
      Random random(Seed());
      for (int i = 0; i < 3'000; ++i) {
        const std::size_t n = 1 + random.Below(i % 50 == 0 ? 30'000 : 300);
        SendAll(fd, text.data(), n);
        // So that it goes to sleep now and then.
        if (i % 10 == 0) RecvAll(fd, text.data(), 1);
      }
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      const int on = 1;
      Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
      SetNonblock(fd, true);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN | static_cast<std::uint32_t>(EPOLLET);
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      // What it has read when it owes a byte.
      std::vector<std::uint64_t> marks;
      Random random(Seed());
      std::uint64_t total = 0;
      for (int i = 0; i < 3'000; ++i) {
        total += 1 + random.Below(i % 50 == 0 ? 30'000 : 300);
        if (i % 10 == 0) marks.push_back(total);
      }
      Barrier();
      const std::uint64_t before = TcpBytes(fd);
      std::vector<char> text(7'000);
      std::uint64_t got = 0;
      std::size_t answered = 0;
      for (bool end = false; !end;) {
        if (::epoll_wait(set, &event, 1, 5'000) != 1) {
          Fail("no edge after %llu bytes of %llu",
               static_cast<unsigned long long>(got),
               static_cast<unsigned long long>(total));
        }
        for (int left = 1; left != 0;) {
          iovec iov{text.data(), text.size()};
          alignas(cmsghdr) char control[64];
          msghdr message{};
          message.msg_iov = &iov;
          message.msg_iovlen = 1;
          message.msg_control = control;
          message.msg_controllen = sizeof control;
          const ssize_t n = ::recvmsg(fd, &message, 0);
          if (n < 0 && errno == EAGAIN) break;
          CHECK_THAT(n >= 0);
          end = n == 0;
          if (end) break;
          got += static_cast<std::uint64_t>(n);
          const cmsghdr* header = CMSG_FIRSTHDR(&message);
          CHECK_THAT(header != nullptr && header->cmsg_type == TCP_INQ);
          std::memcpy(&left, CMSG_DATA(header), sizeof left);
          while (answered < marks.size() && got >= marks[answered]) {
            SendAll(fd, "x", 1);
            ++answered;
          }
        }
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("%llu bytes, all %d, on the lane %d",
          static_cast<unsigned long long>(got), got == total,
          warm == nullptr || TcpBytes(fd) - before < total / 2);
      Barrier();
    });

// iperf2 sets it on each of its connections, and never looks.
Case stamps(
    "timestamp",
    [](int fd) {
      Barrier();
      for (int i = 0; i < 20; ++i) Echo(fd, 1);
      Barrier();
      SendAll(fd, "abcdefgh", 8);
      Barrier();
    },
    [](int fd) {
      int on = 1;
      Result("SO_TIMESTAMP",
             ::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
      AwaitStamps();
      Barrier();
      char text[16] = {};
      const std::uint64_t before = TcpBytes(fd);
      for (int i = 0; i < 20; ++i) {
        SendAll(fd, text, sizeof text);
        RecvAll(fd, text, sizeof text);
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("%d", warm == nullptr || TcpBytes(fd) - before < 20 * sizeof text);
      Barrier();
      AwaitBytes(fd, 8);
      RecvTold(fd, text, 4, 0, 64);
      RecvTold(fd, text, 4, 0, 0);
      Barrier();
    });

// A time-out of ages is none, one of less than nothing is no wait.
Case odd_timeouts(
    "odd_timeouts",
    [](int fd) {
      for (int i = 0; i < 2; ++i) {
        // (The other end may be waiting by then, and should be.)
        char byte;
        RecvAll(fd, &byte, 1);
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 20);
        SendAll(fd, "x", 1);
      }
      Barrier();
    },
    [](int fd) {
      for (const time_t seconds :
           {std::numeric_limits<time_t>::max(), time_t{18'446'744'073}}) {
        const timeval ages{seconds, 0};
        Result("set",
               ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &ages, sizeof ages));
        SendAll(fd, "x", 1);
        char byte;
        Result("read", ::read(fd, &byte, 1));
      }
      const timeval less{-1, 0};
      Result("set",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &less, sizeof less));
      char byte;
      Result("read", ::read(fd, &byte, 1));
      Barrier();
    });

Case async(
    "o_async",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
    },
    [](int fd) {
      sigset_t mask;
      ::sigemptyset(&mask);
      ::sigaddset(&mask, SIGIO);
      ::sigprocmask(SIG_BLOCK, &mask, nullptr);
      Result("F_SETOWN", ::fcntl(fd, F_SETOWN, ::getpid()));
      const int flags = ::fcntl(fd, F_GETFL);
      Result("O_ASYNC", ::fcntl(fd, F_SETFL, flags | O_ASYNC));
      // (What made it pending so far.)
      const timespec none{0, 0};
      while (::sigtimedwait(&mask, nullptr, &none) > 0) {
      }
      Barrier();
      const timespec limit{5, 0};
      Log("SIGIO %d", ::sigtimedwait(&mask, nullptr, &limit) == SIGIO);
      char text[4];
      RecvAll(fd, text, 3);
      Barrier();
    });

Case zerocopy(
    "zerocopy",
    [](int fd) {
      std::vector<char> text(100'000);
      RecvAll(fd, text.data(), text.size());
      Log("right %d", IsPattern(12, 0, text.data(), text.size()));
      Barrier();
    },
    [](int fd) {
      const int on = 1;
      Result("SO_ZEROCOPY",
             ::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on));
      std::vector<char> text(100'000);
      Pattern(12, 0, text.data(), text.size());
      std::size_t at = 0;
      std::uint32_t sends = 0;
      while (at < text.size()) {
        const ssize_t n =
            ::send(fd, text.data() + at, text.size() - at, MSG_ZEROCOPY);
        CHECK_THAT(n > 0);
        at += static_cast<std::size_t>(n);
        ++sends;
      }
      Barrier();
      std::uint32_t told = 0;
      while (told < sends) {
        pollfd one{fd, 0, 0};
        CHECK_THAT(::poll(&one, 1, 5000) == 1);
        CHECK_THAT((one.revents & POLLERR) != 0);
        char control[200];
        msghdr message{};
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        CHECK_THAT(::recvmsg(fd, &message, MSG_ERRQUEUE) >= 0);
        const cmsghdr* header = CMSG_FIRSTHDR(&message);
        CHECK_THAT(header != nullptr && header->cmsg_level == SOL_IP &&
                   header->cmsg_type == IP_RECVERR);
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(header), sizeof error);
        CHECK_THAT(error.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
        told = error.ee_data + 1;
      }
      Log("all told %d", told == sends);
    });

// --- MSG_ZEROCOPY

void AllowZeroCopy(int fd) {
  const int on = 1;
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
}

constexpr std::size_t kZeroCopyPiece = 5000;

// The server's half: takes `pieces` of them, and says so.
void TakePieces(int fd, int pieces) {
  std::vector<char> text(kZeroCopyPiece);
  for (int i = 0; i < pieces; ++i) {
    RecvAll(fd, text.data(), text.size());
    CHECK_THAT(IsPattern(13, 0, text.data(), text.size()));
  }
  Barrier();
}

// One call, of which the kernel takes all.
void SendPiece(int fd, int flags) {
  // (Which the kernel may still read afterwards.)
  static std::vector<char> text(kZeroCopyPiece);
  Pattern(13, 0, text.data(), text.size());
  CHECK_THAT(::send(fd, text.data(), text.size(), flags) ==
             static_cast<ssize_t>(text.size()));
}

// Reads what is told until `count` calls are; each must be told once.  (In what
// order, and how many at a time, is left open.)
void HearOf(int fd, std::uint32_t first, std::uint32_t count) {
  std::vector<int> told(first + count);
  for (std::uint32_t heard = 0; heard < count;) {
    pollfd one{fd, 0, 0};
    CHECK_THAT(::poll(&one, 1, 5000) == 1);
    CHECK_THAT((one.revents & POLLERR) != 0);
    alignas(cmsghdr) char control[200];
    char data[10];
    iovec iov{data, sizeof data};
    sockaddr_storage name{};
    msghdr message{};
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    CHECK_THAT(::recvmsg(fd, &message, MSG_ERRQUEUE) == 0);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    CHECK_THAT(header != nullptr);
    if (heard == 0) {
      Log("flags %x, name %u, control %zu: level %d, type %d, %zu bytes",
          static_cast<unsigned>(message.msg_flags), message.msg_namelen,
          message.msg_controllen, header->cmsg_level, header->cmsg_type,
          header->cmsg_len);
      // Behind the error, who has caused it: nobody.
      const unsigned char* const offender =
          CMSG_DATA(header) + sizeof(sock_extended_err);
      std::string bytes;
      for (std::size_t i = 0;
           i < header->cmsg_len - CMSG_LEN(0) - sizeof(sock_extended_err);
           ++i) {
        bytes += "0123456789abcdef"[offender[i] >> 4];
        bytes += "0123456789abcdef"[offender[i] & 15];
      }
      Log("offender %s", bytes.c_str());
    }
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(header), sizeof error);
    CHECK_THAT(error.ee_errno == 0 && error.ee_type == 0);
    CHECK_THAT(error.ee_origin == SO_EE_ORIGIN_ZEROCOPY);
    CHECK_THAT(error.ee_code == SO_EE_CODE_ZEROCOPY_COPIED);
    CHECK_THAT(error.ee_info >= first && error.ee_info <= error.ee_data);
    CHECK_THAT(error.ee_data < told.size());
    for (std::uint32_t i = error.ee_info; i <= error.ee_data; ++i) {
      CHECK_THAT(++told[i] == 1);
      ++heard;
    }
  }
  pollfd one{fd, 0, 0};
  Result("poll", ::poll(&one, 1, 0));
  char byte;
  Result("no more", ::recv(fd, &byte, 1, MSG_ERRQUEUE));
  Log("told of %u from %u", count, first);
}

// Some calls on TCP, some on a lane, some back on TCP: one row of numbers.
Case zerocopy_numbers(
    "zerocopy_numbers",
    [](int fd) {
      TakePieces(fd, 4);
      Warm(fd);
      TakePieces(fd, 5);
      TakePieces(fd, 3);
      Warm(fd);
      TakePieces(fd, 2);
    },
    [](int fd) {
      AllowZeroCopy(fd);
      for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
      SendPiece(fd, 0);  // takes no number
      Barrier();
      Warm(fd);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      SendPiece(fd, 0);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      HearOf(fd, 0, 7);
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
      for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      HearOf(fd, 7, 3);
      Warm(fd);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      HearOf(fd, 10, 2);
    },
    {.warm = false});

// Not yet read when the connection leaves its lane, and is shared.
Case zerocopy_leaves(
    "zerocopy_leaves",
    [](int fd) {
      TakePieces(fd, 3);
      TakePieces(fd, 2);
    },
    [](int fd) {
      AllowZeroCopy(fd);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.data.u32 = 5;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
      for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      epoll_event seen{};
      Result("epoll", ::epoll_wait(set, &seen, 1, 5000));
      Log("error %d of %u", (seen.events & EPOLLERR) != 0, seen.data.u32);
      fd_set in;
      fd_set out;
      FD_ZERO(&in);
      FD_ZERO(&out);
      FD_SET(fd, &in);
      FD_SET(fd, &out);
      Result("select", ::select(fd + 1, &in, &out, nullptr, nullptr));
      HearOf(fd, 0, 5);
      Result("epoll", ::epoll_wait(set, &seen, 1, 0));
      ::close(set);
    });

void LogError(int set, const char* what) {
  epoll_event event{};
  const int n = ::epoll_wait(set, &event, 1, 0);
  Log("%s: %d, error %d", what, n, n > 0 && (event.events & EPOLLERR) != 0);
}

Case zerocopy_readiness(
    "zerocopy_readiness",
    [](int fd) {
      TakePieces(fd, 1);
      TakePieces(fd, 1);
    },
    [](int fd) {
      AllowZeroCopy(fd);
      const int level = ::epoll_create1(0);
      const int edge = ::epoll_create1(0);
      const int once = ::epoll_create1(0);
      epoll_event event{};
      event.events = 0;
      CHECK_THAT(::epoll_ctl(level, EPOLL_CTL_ADD, fd, &event) == 0);
      event.events = EPOLLIN | EPOLLET;
      CHECK_THAT(::epoll_ctl(edge, EPOLL_CTL_ADD, fd, &event) == 0);
      event.events = EPOLLIN | EPOLLONESHOT;
      CHECK_THAT(::epoll_ctl(once, EPOLL_CTL_ADD, fd, &event) == 0);
      LogError(level, "level, before");
      LogError(once, "once, before");
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, 5000));
      Log("revents %x", static_cast<unsigned>(one.revents));
      LogError(level, "level");
      LogError(level, "level again");
      LogError(edge, "edge");
      LogError(edge, "edge again");
      LogError(once, "once");
      LogError(once, "once again");
      fd_set in;
      fd_set out;
      fd_set except;
      FD_ZERO(&in);
      FD_ZERO(&out);
      FD_ZERO(&except);
      FD_SET(fd, &in);
      FD_SET(fd, &except);
      Result("select", ::select(fd + 1, &in, &out, &except, nullptr));
      Log("in %d except %d", FD_ISSET(fd, &in), FD_ISSET(fd, &except));
      int error = -1;
      socklen_t size = sizeof error;
      Result("SO_ERROR", ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size));
      Log("error %d", error);
      char text[4];
      Result("recv", ::recv(fd, text, 4, MSG_DONTWAIT));
      // Without room for what it says, it is gone.
      msghdr message{};
      Result("recvmsg", ::recvmsg(fd, &message, MSG_ERRQUEUE));
      Log("flags %x", static_cast<unsigned>(message.msg_flags));
      LogError(level, "level, read");
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      Result("poll", ::poll(&one, 1, 5000));
      LogError(edge, "a new edge");
      Result("recv", ::recv(fd, text, 4, MSG_ERRQUEUE));
      Result("recv", ::recv(fd, text, 4, MSG_ERRQUEUE));
      for (const int set : {level, edge, once}) ::close(set);
    });

// The connection goes back to TCP in the middle of a call: a handler that comes
// while the bytes are copied runs right behind that, and forks.  Who sleeps in
// the kernel then must still hear of the completion.
std::atomic<int> forks{0};
void ForkInHandler(int) {
  const int saved = errno;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status;
  ::waitpid(child, &status, 0);
  ::poll(nullptr, 0, 10);  // until the sleeper sleeps again
  ++forks;
  errno = saved;
}

void WakesAfterFork(int fd) {
  AllowZeroCopy(fd);
  const int set = ::epoll_create1(0);
  epoll_event event{};
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  std::thread sleeper([set] {
    epoll_event heard{};
    CHECK_THAT(::epoll_wait(set, &heard, 1, 5'000) == 1);
    CHECK_THAT((heard.events & EPOLLERR) != 0);
  });
  ::poll(nullptr, 0, 5);
  std::atomic<bool> now{false};
  const pthread_t sender = ::pthread_self();
  std::thread other([&now, sender] {
    while (!now) std::atomic_signal_fence(std::memory_order_seq_cst);
    ::pthread_kill(sender, SIGUSR1);
  });
  std::vector<char> bytes(100'000);
  const int before = forks;
  now = true;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n =
        ::send(fd, bytes.data() + at, bytes.size() - at, MSG_ZEROCOPY);
    CHECK_THAT(n > 0);
    at += static_cast<std::size_t>(n);
  }
  while (forks == before) ::sched_yield();
  other.join();
  sleeper.join();
  ::close(set);
}

Case zerocopy_fork(
    "zerocopy_wakes_after_a_switch",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      for (int i = 0; i < Scale(20); ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
        int error;
        if (Drain(fd, &error) != 100'000) Fail("not all has come");
        ::close(fd);
      }
      Log("done");
    },
    [](int) {
      struct sigaction action {};
      action.sa_handler = &ForkInHandler;
      action.sa_flags = SA_RESTART;
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      const int port = static_cast<int>(Hear());
      for (int i = 0; i < Scale(20); ++i) {
        const int fd = Connect(port);
        Warm(fd);
        WakesAfterFork(fd);
        ::close(fd);
      }
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 60});

// A socket of AF_INET6 tells it in its own way, also with an IPv4 peer.
void Over6(const char* host, bool server) {
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  socklen_t size = sizeof to;
  CHECK_THAT(::inet_pton(AF_INET6, host, &to.sin6_addr) == 1);
  int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  CHECK_THAT(fd >= 0);
  auto* const name = reinterpret_cast<sockaddr*>(&to);
  if (server) {
    const int listener = fd;
    CHECK_THAT(::bind(listener, name, size) == 0);
    CHECK_THAT(::listen(listener, 1) == 0);
    CHECK_THAT(::getsockname(listener, name, &size) == 0);
    Tell(ntohs(to.sin6_port));
    fd = ::accept(listener, nullptr, nullptr);
    CHECK_THAT(fd >= 0);
    ::close(listener);
    TakePieces(fd, 2);
    Warm(fd);
    TakePieces(fd, 3);
  } else {
    to.sin6_port = htons(static_cast<std::uint16_t>(Hear()));
    CHECK_THAT(::connect(fd, name, size) == 0);
    AllowZeroCopy(fd);
    for (int i = 0; i < 2; ++i) SendPiece(fd, MSG_ZEROCOPY);
    Barrier();
    HearOf(fd, 0, 2);
    Warm(fd);
    for (int i = 0; i < 3; ++i) SendPiece(fd, MSG_ZEROCOPY);
    Barrier();
    HearOf(fd, 2, 3);
    // Room for half of what it says, and for no name.
    SendPiece(fd, MSG_ZEROCOPY);
    pollfd one{fd, 0, 0};
    CHECK_THAT(::poll(&one, 1, 5000) == 1);
    alignas(cmsghdr) char control[CMSG_LEN(20)];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    Result("recvmsg", ::recvmsg(fd, &message, MSG_ERRQUEUE));
    Log("flags %x, control %zu", static_cast<unsigned>(message.msg_flags),
        message.msg_controllen);
  }
  ::close(fd);
}

Case zerocopy_6(
    "zerocopy_ipv6", [](int) { Over6("::1", true); },
    [](int) { Over6("::1", false); }, {.warm = false, .connect = false});
Case zerocopy_mapped(
    "zerocopy_mapped", [](int) { Over6("::ffff:127.0.0.1", true); },
    [](int) { Over6("::ffff:127.0.0.1", false); },
    {.warm = false, .connect = false});

// Somebody sleeps when the call is made.
Case zerocopy_wakes(
    "zerocopy_wakes", [](int fd) { TakePieces(fd, 1); },
    [](int fd) {
      AllowZeroCopy(fd);
      std::thread sleeper([fd] {
        pollfd one{fd, 0, 0};
        Result("poll", ::poll(&one, 1, 10'000));
        Log("error %d", (one.revents & POLLERR) != 0);
      });
      // (Asleep or not yet, it must be told.)
      ::poll(nullptr, 0, 50);
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      sleeper.join();
      HearOf(fd, 0, 1);
    });

// A poll for input is about to sleep, or asleep, or has not begun: it is told.
int ZeroCopyRounds() { return Scale(1000); }

void PollWhileDue(int fd) {
  AllowZeroCopy(fd);
  const int rounds = ZeroCopyRounds();
  std::atomic<int> round{-1};
  std::thread sender([&] {
    Random random{Seed()};
    for (int i = 0; i < rounds; ++i) {
      while (round != i) std::atomic_signal_fence(std::memory_order_seq_cst);
      for (std::uint64_t n = random.Below(10'000); n > 0; --n) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      SendPiece(fd, MSG_ZEROCOPY);
    }
  });
  int told = 0;
  for (int i = 0; i < rounds; ++i) {
    round = i;
    while (told <= i) {
      pollfd one{fd, POLLIN, 0};
      if (::poll(&one, 1, 5000) != 1) Fail("not told of %d", told);
      alignas(cmsghdr) char control[200];
      msghdr message{};
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      while (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) == 0) {
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof error);
        told += static_cast<int>(error.ee_data - error.ee_info) + 1;
        message.msg_controllen = sizeof control;
      }
    }
  }
  sender.join();
  Log("told of %d", told);
  Barrier();
}

Case zerocopy_polls("zerocopy_poll_for_input",
                    [](int fd) { TakePieces(fd, ZeroCopyRounds()); },
                    PollWhileDue, {.seconds = 60});

Case zerocopy_not_allowed(
    "zerocopy_not_allowed", [](int fd) { TakePieces(fd, 2); },
    [](int fd) {
      SendPiece(fd, MSG_ZEROCOPY);
      AllowZeroCopy(fd);
      const int off = 0;
      CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &off, sizeof off) ==
                 0);
      SendPiece(fd, MSG_ZEROCOPY);
      Barrier();
      pollfd one{fd, 0, 0};
      Result("poll", ::poll(&one, 1, 0));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, MSG_ERRQUEUE));
    });

Case info(
    "tcp_info",
    [](int fd) {
      Echo(fd, 10);
      Barrier();
    },
    [](int fd) {
      Call(fd, 10);
      tcp_info about{};
      socklen_t size = sizeof about;
      Result("TCP_INFO",
             ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &about, &size));
      Log("state %d, mss %d", about.tcpi_state, about.tcpi_snd_mss > 500);
      int mss = 0;
      size = sizeof mss;
      Result("TCP_MAXSEG",
             ::getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &size));
      Log("mss %d", mss > 500);
      Barrier();
    });

Case pipes(
    "tee_vmsplice",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      char text[8] = {};
      RecvAll(fd, text, 7);
      Log("%s", text);
      SendAll(fd, "end", 3);
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      int one[2], two[2];
      CHECK_THAT(::pipe(one) == 0 && ::pipe(two) == 0);
      Result("splice", ::splice(fd, nullptr, one[1], nullptr, 10, 0));
      Result("tee", ::tee(one[0], two[1], 10, 0));
      char text[16] = {};
      Result("read", ::read(one[0], text, 16));
      Log("%s", text);
      Result("read", ::read(two[0], text, 16));
      Log("%s", text);
      char words[] = "vmsplic";
      iovec part{words, 7};
      Result("vmsplice", ::vmsplice(one[1], &part, 1, 0));
      Result("splice", ::splice(one[0], nullptr, fd, nullptr, 7, 0));
      RecvAll(fd, text, 3);
      Log("%.3s", text);
    });

// A set that a child has inherited, used by both in turn.
Case epoll_fork(
    "epoll_across_fork",
    [](int fd) {
      for (int i = 0; i < 4; ++i) {
        SendAll(fd, "abc", 3);
        char byte;
        RecvAll(fd, &byte, 1);
      }
      Echo(fd, 100);
      Barrier();
    },
    [](int fd) {
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      const auto take = [&] {
        epoll_event got{};
        CHECK_THAT(::epoll_wait(set, &got, 1, 5000) == 1);
        CHECK_THAT(got.events == EPOLLIN);
        char text[3];
        RecvAll(fd, text, 3);
        CHECK_THAT(::epoll_wait(set, &got, 1, 0) == 0);
        SendAll(fd, "+", 1);
      };
      take();
      const pid_t child = ::fork();
      if (child == 0) {
        take();
        ::_exit(0);
      }
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      Log("child %x", static_cast<unsigned>(status));
      take();
      take();
      Call(fd, 100);
      Barrier();
    });

// A number that no table is as long as.
Case high_number(
    "high_number",
    [](int fd) {
      Echo(fd, 450);
      int error;
      Log("rest %zu", Drain(fd, &error));
    },
    [](int fd) {
      Call(fd, 100);
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 1'048'576;
      if (limit.rlim_max < limit.rlim_cur) limit.rlim_max = limit.rlim_cur;
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        // The same work, for who may not raise it.
        Call(fd, 350);
        Log("done");
        return;
      }
      const int copy = ::fcntl(fd, F_DUPFD, 1'000'000);
      CHECK_THAT(copy >= 1'000'000);
      Call(copy, 100);
      Call(fd, 50);
      CHECK_THAT(::dup2(copy, 700'000) == 700'000);
      ::close(fd);
      Call(700'000, 100);
      ::close(copy);
      Call(700'000, 100);
      Log("done");
    });

// What waits for more is not lost when there is none.
Case corked(
    "cork_and_more",
    [](int fd) {
      char text[64] = {};
      RecvAll(fd, text, 12);
      Log("%s", text);
      SendAll(fd, "!", 1);
      RecvAll(fd, text, 8);
      Log("%.8s", text);
    },
    [](int fd) {
      int on = 1;
      Result("cork", ::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
      SendAll(fd, "head ", 5);
      SendAll(fd, "body", 4);
      on = 0;
      ::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
      Result("more", ::send(fd, "a", 1, MSG_MORE));
      Result("more", ::send(fd, "b", 1, MSG_MORE));
      Result("last", ::send(fd, "c", 1, 0));
      char byte;
      RecvAll(fd, &byte, 1);
      Result("more", ::send(fd, "the last", 8, MSG_MORE));
      ::shutdown(fd, SHUT_WR);
    });

// libc's own threads read and write.
Case posix_aio(
    "posix_aio",
    [](int fd) {
      Echo(fd, 200);
      char text[8];
      for (int i = 0; i < 4; ++i) {
        RecvAll(fd, text, 5);
        Log("%.5s", text);
        SendAll(fd, text, 5);
      }
      Echo(fd, 100);
    },
    [](int fd) {
      Call(fd, 200);
      const auto wait = [](aiocb* block) {
        const aiocb* list[] = {block};
        const timespec limit{5, 0};
        Result("suspend", ::aio_suspend(list, 1, &limit));
        Log("error %s", ErrorName(::aio_error(block)));
        Result("return", ::aio_return(block));
      };
      for (int i = 0; i < 4; ++i) {
        char text[] = "hello";
        char back[8] = {};
        aiocb out{};
        out.aio_fildes = fd;
        out.aio_buf = text;
        out.aio_nbytes = 5;
        aiocb in{};
        in.aio_fildes = fd;
        in.aio_buf = back;
        in.aio_nbytes = 5;
        if (i % 2 == 0) {
          Result("write", ::aio_write(&out));
          wait(&out);
          Result("read", ::aio_read(&in));
          wait(&in);
        } else {
          out.aio_lio_opcode = LIO_WRITE;
          in.aio_lio_opcode = LIO_NOP;
          aiocb* list[] = {nullptr, &in, &out};
          Result("list", ::lio_listio(LIO_WAIT, list, 3, nullptr));
          RecvAll(fd, back, 5);
        }
        Log("%s", back);
      }
      Call(fd, 100);
    });

// What the peer's program has not read has come all the same: there is nothing
// to wait for.
Case sent_and_unread(
    "sent_and_unread",
    [](int fd) {
      Echo(fd, 200);
      Barrier();
      char text[1000];
      RecvAll(fd, text, sizeof text);
    },
    [](int fd) {
      Call(fd, 200);
      const char text[1000] = {};
      SendAll(fd, text, sizeof text);
      int left = -1;
      for (const std::uint64_t end = NowMs() + 3000; NowMs() < end;) {
        CHECK_THAT(::ioctl(fd, SIOCOUTQ, &left) == 0);
        if (left == 0) break;
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 1);
      }
      Log("SIOCOUTQ %d", left);
      CHECK_THAT(::ioctl(fd, SIOCOUTQNSD, &left) == 0);
      Log("SIOCOUTQNSD %d", left);
      Barrier();
    });

// `work` in a thread with the smallest stack there is.
void OnSmallStack(void (*work)(int), int fd) {
  struct Job {
    void (*work)(int);
    int fd;
  } job{work, fd};
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  // (What a sanitizer adds to a frame is not of interest.)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kStack = 256 << 10;
#else
  constexpr std::size_t kStack = 20 << 10;
#endif
  CHECK_THAT(::pthread_attr_setstacksize(&attributes, kStack) == 0);
  pthread_t thread;
  CHECK_THAT(::pthread_create(
                 &thread, &attributes,
                 [](void* at) -> void* {
                   const auto* const own = static_cast<Job*>(at);
                   own->work(own->fd);
                   return nullptr;
                 },
                 &job) == 0);
  CHECK_THAT(::pthread_join(thread, nullptr) == 0);
}

Case small_stack(
    "small_stack",
    [](int fd) {
      Echo(fd, 200);
      char text[1000];
      RecvAll(fd, text, sizeof text);
      Log("%d", IsPattern(5, 0, text, sizeof text));
      Echo(fd, 1);
    },
    [](int fd) {
      Call(fd, 200);
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      CHECK_THAT(file >= 0 && ::unlink(path) == 0);
      char text[1000];
      Pattern(5, 0, text, sizeof text);
      CHECK_THAT(::pwrite(file, text, sizeof text, 0) == sizeof text);
      static int from;
      from = file;
      OnSmallStack(
          [](int to) {
            off_t at = 0;
            Result("sendfile", ::sendfile(to, from, &at, sizeof text));
          },
          fd);
      Call(fd, 1);
      ::close(file);
      const int child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        OnSmallStack([](int) { ::execl("/bin/true", "true", nullptr); }, -1);
        ::_exit(9);
      }
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      Log("execl %d", status);
    });

// A socket may listen first, and then be connected.
Case listened_before(
    "listened_before",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      const int fd = ::accept(listener, nullptr, nullptr);
      CHECK_THAT(fd >= 0);
      Echo(fd, 300);
      ::close(fd);
      ::close(listener);
    },
    [](int) {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address = posix_test::Loopback(0);
      const auto* at = reinterpret_cast<sockaddr*>(&address);
      CHECK_THAT(::bind(fd, at, sizeof address) == 0);
      Result("listen", ::listen(fd, 1));
      Result("shutdown", ::shutdown(fd, SHUT_RD));
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      address = posix_test::Loopback(static_cast<int>(Hear()));
      Result("connect", ::connect(fd, at, sizeof address));
      Result("add", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
      Call(fd, 250);
      for (int i = 0; i < 50; ++i) {
        char text[16] = {};
        ::epoll_wait(set, &event, 1, 0);
        SendAll(fd, text, sizeof text);
        CHECK_THAT(::epoll_wait(set, &event, 1, 3000) == 1);
        RecvAll(fd, text, sizeof text);
      }
      ::close(set);
      ::close(fd);
      Log("told");
    },
    {.warm = false, .connect = false});

// The same descriptor as a program is started with: not made here, as far as
// anybody has seen.
int Unknown(int fd) {
  int ends[2];
  CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  char byte = 'x';
  iovec one{&byte, 1};
  msghdr message{};
  message.msg_iov = &one;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  CHECK_THAT(::sendmsg(ends[0], &message, 0) == 1);
  message.msg_controllen = sizeof control;
  CHECK_THAT(::recvmsg(ends[1], &message, 0) == 1);
  int copy = -1;
  std::memcpy(&copy, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof copy);
  for (const int end : ends) ::close(end);
  ::close(fd);
  return copy;
}

int AcceptUnknown(int option, int value) {
  int port;
  int listener = Listen(&port);
  CHECK_THAT(::setsockopt(listener, SOL_SOCKET, option, &value, sizeof value) ==
             0);
  listener = Unknown(listener);
  Tell(port);
  const int fd = ::accept(listener, nullptr, nullptr);
  CHECK_THAT(fd >= 0);
  ::close(listener);
  return fd;
}

Case unknown_listener(
    "listener_from_elsewhere",
    [](int) {
      int fd = AcceptUnknown(SO_RCVLOWAT, 10);
      Echo(fd, 200);
      Barrier();
      pollfd one{fd, POLLIN, 0};
      Result("of 5 bytes, poll", ::poll(&one, 1, 100));
      Barrier();
      Result("of 10 bytes, poll", ::poll(&one, 1, 3000));
      ::close(fd);
      fd = AcceptUnknown(SO_OOBINLINE, 1);
      Echo(fd, 200);
      Barrier();
      AwaitBytes(fd, 4);
      char text[16];
      Result("before the mark", ::recv(fd, text, sizeof text, 0));
      Result("at it", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
      Log("%c", text[0]);
      ::close(fd);
    },
    [](int) {
      int fd = Connect(static_cast<int>(Hear()));
      Call(fd, 200);
      SendAll(fd, "01234", 5);
      Barrier();
      Barrier();
      SendAll(fd, "56789", 5);
      int error;
      Log("rest %zu", Drain(fd, &error));
      ::close(fd);
      fd = Connect(static_cast<int>(Hear()));
      Call(fd, 200);
      SendAll(fd, "abc", 3);
      Result("urgent", ::send(fd, "!", 1, MSG_OOB));
      Barrier();
      Log("rest %zu", Drain(fd, &error));
      ::close(fd);
    },
    {.warm = false, .connect = false});

// (By Linux 6.9 and later.  0 is on, -1 off.)
Case peek_off(
    "peek_offset",
    [](int fd) {
      SendAll(fd, "abcdef", 6);
      Barrier();
      Echo(fd, 10);
    },
    [](int fd) {
      int offset = 0;
      Result("SO_PEEK_OFF",
             ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
      AwaitBytes(fd, 6);
      char text[6];
      for (int i = 0; i < 3; ++i) {
        const ssize_t n = ::recv(fd, text, 2, MSG_PEEK | MSG_DONTWAIT);
        Log("peek: %.*s", static_cast<int>(n), text);
      }
      RecvAll(fd, text, 6);
      Log("%.6s", text);
      Barrier();
      Call(fd, 10);
    });

}  // namespace
