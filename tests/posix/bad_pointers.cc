// Pointers to what is no buffer that are bad: vectors, messages, sets, names,
// options.  The kernel says EFAULT, and the stream goes on.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/posix/edge.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;
using edge::Edge;
using edge::kHole;
using edge::Name;

constexpr int kUnreadable[] = {kHole, PROT_NONE};
constexpr int kUnwritable[] = {kHole, PROT_NONE, PROT_READ};

// A structure of which so many bytes are good.
template <class T>
T* At(const Edge& edge, std::size_t good) {
  return reinterpret_cast<T*>(edge.end - good);
}

// Round trips until there is a lane, or would never be: a process that has had
// none ends by such a pointer as before.
void Ask(int fd) {
  char message[16] = "trip";
  std::uint64_t before = 0;
  int still = 0;
  for (int i = 0; i < 40'000 && still < 3; ++i) {
    SendAll(fd, message, sizeof message);
    RecvAll(fd, message, sizeof message);
    if (i % 50 != 0) continue;
    const std::uint64_t now = TcpBytes(fd);
    still = now == before ? still + 1 : 0;
    before = now;
  }
  message[0] = 'g';
  SendAll(fd, message, sizeof message);
  RecvAll(fd, message, sizeof message);
}
void Answer(int fd) {
  char message[16];
  do {
    RecvAll(fd, message, sizeof message);
    SendAll(fd, message, sizeof message);
  } while (message[0] != 'g');
}

// The peer: answers what is good.
void Peer(int fd) {
  Barrier();
  Echo(fd, 50);
  LogDrain(fd);
}
void Done(int fd) {
  Barrier();
  Call(fd, 50);
  ::shutdown(fd, SHUT_WR);
}

// Arrays of iovec that are bad from the first, the second or the third on.
Case vectors(
    "vectors",
    [](int fd) {
      Answer(fd);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      char byte = 'v';
      for (const int protection : kUnreadable) {
        const Edge edge(protection);
        for (const std::size_t good : {0, 1, 2}) {
          auto* const iov = At<iovec>(edge, good * sizeof(iovec));
          for (std::size_t i = 0; i < good; ++i) iov[i] = {&byte, 1};
          Log("%s, %zu", Name(protection), good);
          Result("writev", ::writev(fd, iov, 3));
          Result("pwritev2", ::pwritev2(fd, iov, 3, -1, 0));
          Result("readv", ::readv(fd, iov, 3));
          Result("preadv2", ::preadv2(fd, iov, 3, -1, 0));
          msghdr message{};
          message.msg_iov = iov;
          message.msg_iovlen = 3;
          Result("sendmsg", ::sendmsg(fd, &message, 0));
          Result("recvmsg", ::recvmsg(fd, &message, 0));
          mmsghdr one{message, 0};
          Result("sendmmsg", ::sendmmsg(fd, &one, 1, 0));
          Result("recvmmsg", ::recvmmsg(fd, &one, 1, 0, nullptr));
        }
      }
      // The length is there, and what is before it is not.
      const Edge edge(PROT_READ | PROT_WRITE);
      char* const page = edge.end - 4096;
      CHECK_THAT(::munmap(page, 4096) == 0);
      auto* const split =
          reinterpret_cast<iovec*>(edge.end - offsetof(iovec, iov_len));
      std::memset(edge.end, 0, 2 * sizeof(iovec));
      edge.end[0] = 1;
      Result("writev", ::writev(fd, split, 1));
      Result("readv", ::readv(fd, split, 1));
      Done(fd);
    });

// Messages of which a part is there.
Case messages(
    "messages",
    [](int fd) {
      Answer(fd);
      char text[4] = {};
      RecvAll(fd, text, 2 * 2);
      Log("%.4s", text);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      char byte = 'm';
      iovec iov{&byte, 1};
      for (const int protection : kUnreadable) {
        const Edge edge(protection);
        for (const std::size_t good : {0, 8, 16, 24, 32, 40}) {
          msghdr whole{};
          whole.msg_iov = &iov;
          whole.msg_iovlen = 1;
          auto* const message = At<msghdr>(edge, good);
          std::memcpy(static_cast<void*>(message), &whole, good);
          Log("%s, %zu", Name(protection), good);
          Result("sendmsg", ::sendmsg(fd, message, 0));
          // (Behind it is what recvmsg writes, where there is something.)
          if (good < offsetof(msghdr, msg_control)) {
            Result("recvmsg", ::recvmsg(fd, message, MSG_DONTWAIT));
          }
        }
        // The second of two.
        for (const std::size_t good : {0, 16, 40}) {
          mmsghdr whole{};
          whole.msg_hdr.msg_iov = &iov;
          whole.msg_hdr.msg_iovlen = 1;
          auto* const two = At<mmsghdr>(edge, good + sizeof whole);
          two[0] = whole;
          std::memcpy(static_cast<void*>(two + 1), &whole, good);
          Log("%s, one and %zu", Name(protection), good);
          // (Of all the kernel looks at none before its turn.)
          if (good != 16) Result("sendmmsg", ::sendmmsg(fd, two, 2, 0));
          Result("none", ::recvmmsg(fd, two + 1, 1, MSG_DONTWAIT, nullptr));
          Result("none", ::sendmmsg(fd, two + 1, 1, 0));
        }
      }
      Done(fd);
    });

// Where the call is to say something.
Case told(
    "told",
    [](int fd) {
      Answer(fd);
      SendAll(fd, "abcdef", 6);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      AwaitBytes(fd, 6);
      char byte;
      for (const int protection : kUnwritable) {
        const Edge edge(protection);
        Log("%s", Name(protection));
        auto* const number = At<int>(edge, 0);
        auto* const length = At<socklen_t>(edge, 0);
        Result("FIONREAD", ::ioctl(fd, FIONREAD, number));
        Result("SIOCOUTQ", ::ioctl(fd, SIOCOUTQ, number));
        Result("SIOCOUTQNSD", ::ioctl(fd, SIOCOUTQNSD, number));
        Result("SIOCATMARK", ::ioctl(fd, SIOCATMARK, number));
        int value = 0;
        socklen_t size = sizeof value;
        for (const int name : {TCP_NODELAY, TCP_CORK, TCP_MAXSEG}) {
          size = sizeof value;
          Result("option", ::getsockopt(fd, IPPROTO_TCP, name, number, &size));
          Result("its length",
                 ::getsockopt(fd, IPPROTO_TCP, name, &value, length));
        }
        size = sizeof value;
        Result("error", ::getsockopt(fd, SOL_SOCKET, SO_ERROR, number, &size));
        size = sizeof(tcp_info);
        Result("state", ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, number, &size));
        sockaddr_storage name;
        auto* const address = reinterpret_cast<sockaddr*>(&name);
        Result("getpeername", ::getpeername(fd, address, length));
        Result("getsockname", ::getsockname(fd, address, length));
        Result("recvfrom", ::recvfrom(fd, &byte, 1, 0, address, length));
        Log("%c", byte);
        if (protection == PROT_READ) continue;
        Result("set", ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, number,
                                   sizeof *number));
        Result("set", ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, number,
                                   sizeof *number));
        Result("FIONBIO", ::ioctl(fd, FIONBIO, number));
        Result("connect", ::connect(fd, At<sockaddr>(edge, 0), 16));
        for (const std::size_t good : {0, 8}) {
          Result("sendto",
                 ::sendto(fd, &byte, 1, 0, At<sockaddr>(edge, good), 16));
        }
        iovec iov{&byte, 1};
        mmsghdr one{};
        one.msg_hdr.msg_iov = &iov;
        one.msg_hdr.msg_iovlen = 1;
        Result("limit", ::recvmmsg(fd, &one, 1, 0, At<timespec>(edge, 0)));
      }
      AwaitBytes(fd, 3);
      char text[3];
      RecvAll(fd, text, 3);
      Log("%.3s", text);
      Done(fd);
    });

// What is waited for.
Case waits(
    "waits",
    [](int fd) {
      Answer(fd);
      SendAll(fd, "abc", 3);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      AwaitBytes(fd, 3);
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      for (const int protection : kUnwritable) {
        const Edge edge(protection);
        Log("%s", Name(protection));
        for (const std::size_t good : {0, 1}) {
          auto* const some = At<pollfd>(edge, good * sizeof(pollfd));
          if (good > 0) some[0] = {fd, POLLIN, 0};
          // (A number that is none, read-only: its answer does not fit.)
          if (good > 0 || protection != PROT_READ) {
            Result("poll", ::poll(some, 2, 0));
            Result("poll", ::poll(some, 2, 10));
            Result("ppoll", ::ppoll(some, 2, nullptr, nullptr));
          }
        }
        if (protection == PROT_READ) continue;
        fd_set good;
        FD_ZERO(&good);
        FD_SET(fd, &good);
        auto* const bad = At<fd_set>(edge, 0);
        timeval none{0, 0};
        Result("select", ::select(fd + 1, bad, nullptr, nullptr, &none));
        Result("select", ::select(fd + 1, &good, bad, nullptr, &none));
        Result("select", ::select(fd + 1, &good, nullptr, bad, nullptr));
        Result("pselect",
               ::pselect(fd + 1, bad, nullptr, nullptr, nullptr, nullptr));
        Result("ctl",
               ::epoll_ctl(set, EPOLL_CTL_MOD, fd, At<epoll_event>(edge, 0)));
        Result("ctl",
               ::epoll_ctl(set, EPOLL_CTL_MOD, fd, At<epoll_event>(edge, 4)));
        Result("pwait2",
               ::epoll_pwait2(set, &event, 1, At<timespec>(edge, 0), nullptr));
        Result("mask", ::epoll_pwait(set, &event, 1, 0, At<sigset_t>(edge, 0)));
      }
      Result("wait", ::epoll_wait(set, &event, 1, 0));
      ::close(set);
      char text[3];
      RecvAll(fd, text, 3);
      Done(fd);
    });

// Where epoll_wait is to tell: what it can't tell stays as it was.
void Events(int fd, int set, int all, const char* name, unsigned events) {
  epoll_event event{};
  event.events = events;
  for (const int protection : kUnwritable) {
    const Edge edge(protection);
    Log("%s, %s", name, Name(protection));
    for (const std::size_t good : {0, 4, 8}) {
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
      auto* const bad = At<epoll_event>(edge, good);
      Result("wait", ::epoll_wait(set, bad, 1, 0));
      Result("wait", ::epoll_wait(set, bad, 8, 0));
      Result("wait", ::epoll_wait(set, bad, 1, 10'000));
      Result("pwait", ::epoll_pwait(set, bad, 1, -1, nullptr));
      Result("pwait2", ::epoll_pwait2(set, bad, 1, nullptr, nullptr));
      epoll_event found{};
      Result("and then", ::epoll_wait(set, &found, 1, 10'000));
      Log("%x", found.events);
      Result("and then", ::epoll_wait(set, &found, 1, 0));
    }
    // Of two there is room for one.
    CHECK_THAT(::epoll_ctl(all, EPOLL_CTL_MOD, fd, &event) == 0);
    auto* const one = At<epoll_event>(edge, sizeof(epoll_event));
    Result("one of two", ::epoll_wait(all, one, 2, 0));
    epoll_event found[2];
    Log("%d", ::epoll_wait(all, found, 2, 0) > 0);
  }
}

Case events(
    "events",
    [](int fd) {
      Answer(fd);
      SendAll(fd, "abc", 3);
      Barrier();
      SendAll(fd, "d", 1);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      AwaitBytes(fd, 3);
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      const int all = ::epoll_create1(EPOLL_CLOEXEC);
      const int other = ::eventfd(1, EFD_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      CHECK_THAT(::epoll_ctl(all, EPOLL_CTL_ADD, fd, &event) == 0);
      CHECK_THAT(::epoll_ctl(all, EPOLL_CTL_ADD, other, &event) == 0);
      constexpr unsigned kEdge = EPOLLET;
      Events(fd, set, all, "in", EPOLLIN);
      Events(fd, set, all, "out", EPOLLOUT);
      Events(fd, set, all, "both", EPOLLIN | EPOLLOUT);
      Events(fd, set, all, "edge", EPOLLIN | kEdge);
      Events(fd, set, all, "edges", EPOLLIN | EPOLLOUT | kEdge);
      Events(fd, set, all, "once", EPOLLIN | EPOLLONESHOT);
      Events(fd, set, all, "once, edge", EPOLLIN | EPOLLONESHOT | kEdge);
      // While it waits.
      char text[4];
      RecvAll(fd, text, 3);
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
      const Edge edge(kHole);
      auto* const bad = At<epoll_event>(edge, 0);
      Result("nothing", ::epoll_wait(set, bad, 1, 0));
      Result("nothing", ::epoll_wait(set, bad, 1, 10));
      Barrier();
      Result("something", ::epoll_wait(set, bad, 1, -1));
      RecvAll(fd, text, 1);
      for (const int one : {set, all, other}) ::close(one);
      Done(fd);
    });

// Sets of select that can be read, and not written.
Case sets(
    "sets",
    [](int fd) {
      Answer(fd);
      SendAll(fd, "abc", 3);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      AwaitBytes(fd, 3);
      const Edge edge(PROT_READ);
      auto* const bad = At<fd_set>(edge, 0);
      fd_set good;
      const auto asked = [&] {
        FD_ZERO(&good);
        FD_SET(fd, &good);
        return &good;
      };
      timeval none{0, 0};
      Result("in", ::select(fd + 1, bad, asked(), nullptr, nullptr));
      Log("%d", FD_ISSET(fd, &good) != 0);
      Result("out", ::select(fd + 1, asked(), bad, nullptr, nullptr));
      Log("%d", FD_ISSET(fd, &good) != 0);
      Result("except", ::select(fd + 1, asked(), nullptr, bad, &none));
      Result("nothing", ::select(fd + 1, nullptr, bad, asked(), &none));
      Result("pselect",
             ::pselect(fd + 1, asked(), bad, nullptr, nullptr, nullptr));
      // One set for several questions has the answer to the last.
      const auto twice = [&](fd_set* in, fd_set* out, fd_set* except) {
        Result("the same", ::select(fd + 1, in, out, except, nullptr));
        Log("%d", FD_ISSET(fd, &good) != 0);
      };
      twice(asked(), Opaque(&good), nullptr);
      twice(asked(), Opaque(&good), Opaque(&good));
      twice(nullptr, asked(), Opaque(&good));
      char text[3];
      RecvAll(fd, text, 3);
      Done(fd);
    });

// Where recvmsg tells what is beside the bytes, and the head of the message.
Case beside(
    "beside",
    [](int fd) {
      Answer(fd);
      SendAll(fd, "abcdefgh", 8);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      AwaitBytes(fd, 8);
      char byte = 0;
      iovec iov{&byte, 1};
      msghdr whole{};
      whole.msg_iov = &iov;
      whole.msg_iovlen = 1;
      for (const bool tells : {false, true}) {
        const int on = tells;
        Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, 4));
        for (const int protection : kUnwritable) {
          const Edge edge(protection);
          Log("%d, %s", on, Name(protection));
          msghdr message = whole;
          message.msg_control = edge.end;
          message.msg_controllen = 64;
          Result("recvmsg", ::recvmsg(fd, &message, 0));
          Log("%c, %zu, %x", byte, message.msg_controllen, message.msg_flags);
        }
      }
      // What it tells it does not put there, and the byte is gone.
      for (const bool tells : {false, true}) {
        const int on = tells;
        Result("TCP_INQ", ::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, 4));
        const Edge edge(PROT_READ);
        CHECK_THAT(::mprotect(edge.end, edge::kRoom, PROT_WRITE) == 0);
        auto* const message = At<msghdr>(edge, 0);
        *message = whole;
        CHECK_THAT(::mprotect(edge.end, edge::kRoom, PROT_READ) == 0);
        byte = 0;
        Result("head", ::recvmsg(fd, message, 0));
        Log("%c", byte);
      }
      Done(fd);
    });

// Calls by syscall(2), to which libc adds nothing: neither its own reading of a
// time, nor the size of a mask.
template <class Say>
void Raw(Say&& say, int fd, const Edge& edge) {
  char* const bad = edge.end;
  pollfd one{fd, POLLOUT, 0};
  fd_set out;
  FD_ZERO(&out);
  FD_SET(fd, &out);
  const std::uint64_t none = 0;
  const void* const masks[] = {&none, bad};
  const struct {
    const void* mask;
    std::size_t size;
  } bad_mask{bad, sizeof none}, wrong_size{&none, 128};
  const timespec no_time{0, 1'000'000'000};
  const timeval past{-1, 0};
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLOUT;
  ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
  say("io_submit", ::syscall(SYS_io_submit, 0, 1, bad));
  say("clone3", ::syscall(SYS_clone3, bad, 88));
  say("clone3 of a half", ::syscall(SYS_clone3, bad - 8, 88));
  say("clone3, short", ::syscall(SYS_clone3, bad, 8));
  say("poll", ::syscall(SYS_poll, bad, 1, 0));
  say("select, time", ::syscall(SYS_select, 0, 0, 0, 0, bad));
  say("select, half a time", ::syscall(SYS_select, 0, 0, 0, 0, bad - 8));
  say("select, no time", ::syscall(SYS_select, 0, 0, 0, 0, &past));
  say("select, set", ::syscall(SYS_select, fd + 1, 0, bad, 0, 0));
  say("pselect6, time", ::syscall(SYS_pselect6, 0, 0, 0, 0, bad, 0));
  say("pselect6, no time", ::syscall(SYS_pselect6, 0, 0, 0, 0, &no_time, 0));
  say("pselect6, masks", ::syscall(SYS_pselect6, fd + 1, 0, &out, 0, 0, bad));
  say("pselect6, mask",
      ::syscall(SYS_pselect6, fd + 1, 0, &out, 0, 0, &bad_mask));
  say("pselect6, its size",
      ::syscall(SYS_pselect6, fd + 1, 0, &out, 0, 0, &wrong_size));
  say("pselect6, set", ::syscall(SYS_pselect6, fd + 1, 0, bad, 0, 0, 0));
  say("ppoll", ::syscall(SYS_ppoll, bad, 1, 0, 0, 0));
  say("ppoll, time", ::syscall(SYS_ppoll, &one, 1, bad, 0, 0));
  say("ppoll, no time", ::syscall(SYS_ppoll, &one, 1, &no_time, 0, 0));
  for (const void* const mask : masks) {
    for (const std::size_t size : {0, 4, 8, 16, 128}) {
      if (mask == &none && size == sizeof none) continue;
      say("ppoll, mask", ::syscall(SYS_ppoll, &one, 1, 0, mask, size));
      say("epoll_pwait, mask",
          ::syscall(SYS_epoll_pwait, set, &event, 1, 0, mask, size));
      say("epoll_pwait2, mask",
          ::syscall(SYS_epoll_pwait2, set, &event, 1, 0, mask, size));
    }
  }
  say("epoll_pwait2, time",
      ::syscall(SYS_epoll_pwait2, set, &event, 1, bad, 0, 0));
  say("epoll_pwait2, no time",
      ::syscall(SYS_epoll_pwait2, set, &event, 1, &no_time, 0, 0));
  ::close(set);
}

Case raw_calls(
    "raw_calls",
    [](int fd) {
      Answer(fd);
      Peer(fd);
    },
    [](int fd) {
      Ask(fd);
      for (const int protection : kUnreadable) {
        Log("%s", Name(protection));
        const Edge edge(protection);
        Raw([](const char* what, long n) { Result(what, n); }, fd, edge);
      }
      // A mask that ends with the page is read no further.
      const Edge edge(kHole);
      char* const mask = edge.end - 8;
      pollfd one{fd, POLLOUT, 0};
      Result("ppoll", ::syscall(SYS_ppoll, &one, 1, 0, mask, 8));
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLOUT;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      Result("epoll_pwait",
             ::syscall(SYS_epoll_pwait, set, &event, 1, -1, mask, 8));
      Result("epoll_pwait2",
             ::syscall(SYS_epoll_pwait2, set, &event, 1, 0, mask, 8));
      ::close(set);
      // What is left of the time has no place: nobody is told.
      const Edge constant(PROT_READ);
      CHECK_THAT(
          ::mprotect(constant.end, edge::kRoom, PROT_READ | PROT_WRITE) == 0);
      *At<timespec>(constant, 0) = {5, 0};
      CHECK_THAT(::mprotect(constant.end, edge::kRoom, PROT_READ) == 0);
      Result("ppoll", ::syscall(SYS_ppoll, &one, 1, constant.end, 0, 0));
      fd_set out;
      FD_ZERO(&out);
      FD_SET(fd, &out);
      Result("select", ::syscall(SYS_select, fd + 1, 0, &out, 0, constant.end));
      Result("pselect6",
             ::syscall(SYS_pselect6, fd + 1, 0, &out, 0, constant.end, 0));
      Done(fd);
    });

// In a process that has had no lane, and needs none: the same.
void Untouched(const char* what, int fd) {
  const Edge edge(kHole);
  char* const hole = edge.end;
  const auto say = [what](const char* call, long n) {
    Log("%s: %s: %s", what, call, n < 0 ? ErrorName(errno) : "done");
  };
  Raw(say, fd, edge);
  char byte;
  iovec iov{&byte, 1};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  say("sendmsg", ::sendmsg(fd, At<msghdr>(edge, 0), MSG_NOSIGNAL));
  say("sendmsg of a half", ::sendmsg(fd, At<msghdr>(edge, 8), MSG_NOSIGNAL));
  say("sendmmsg", ::sendmmsg(fd, At<mmsghdr>(edge, 0), 2, MSG_NOSIGNAL));
  say("recvmsg", ::recvmsg(fd, At<msghdr>(edge, 0), MSG_DONTWAIT));
  say("recvmmsg",
      ::recvmmsg(fd, At<mmsghdr>(edge, 0), 2, MSG_DONTWAIT, nullptr));
  message.msg_control = hole;
  message.msg_controllen = 64;
  say("control message", ::sendmsg(fd, &message, MSG_NOSIGNAL));
  say("writev", ::writev(fd, At<iovec>(edge, 0), 1));
  say("readv", ::readv(fd, At<iovec>(edge, 0), 1));
  say("preadv2", ::preadv2(fd, At<iovec>(edge, 0), 1, -1, 0));
  say("pwritev2", ::pwritev2(fd, At<iovec>(edge, 0), 1, -1, 0));
  say("sendto", ::sendto(fd, "x", 1, MSG_NOSIGNAL, At<sockaddr>(edge, 0), 16));
  say("poll", ::poll(At<pollfd>(edge, 0), 1, 0));
  pollfd one{fd, POLLOUT, 0};
  constexpr timespec kNow{0, 0};
  say("ppoll", ::ppoll(&one, 1, &kNow, At<sigset_t>(edge, 0)));
  say("select",
      ::select(fd + 1, At<fd_set>(edge, 0), nullptr, nullptr, nullptr));
  fd_set in;
  FD_ZERO(&in);
  FD_SET(fd, &in);
  say("pselect",
      ::pselect(fd + 1, &in, nullptr, nullptr, &kNow, At<sigset_t>(edge, 0)));
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  say("epoll_ctl",
      ::epoll_ctl(set, EPOLL_CTL_ADD, fd, At<epoll_event>(edge, 0)));
  epoll_event event{};
  say("epoll_pwait", ::epoll_pwait(set, &event, 1, 0, At<sigset_t>(edge, 0)));
  say("epoll_pwait2",
      ::epoll_pwait2(set, &event, 1, At<timespec>(edge, 0), nullptr));
  ::close(set);
  sockaddr_storage name;
  say("accept",
      ::accept(fd, reinterpret_cast<sockaddr*>(&name), At<socklen_t>(edge, 0)));
}

// (A process that has none but these has had no other.)
void OfItsOwn(const char* what, int domain, int type) {
  const pid_t child = ::fork();
  if (child == 0) {
    int ends[2] = {::socket(domain, type, 0), -1};
    if (domain == AF_UNIX) CHECK_THAT(::socketpair(domain, type, 0, ends) == 0);
    Untouched(what, ends[0]);
    ::_exit(0);
  }
  LogChild(child);
}

void NothingOnALane() {
  OfItsOwn("unix", AF_UNIX, SOCK_STREAM);
  OfItsOwn("udp", AF_INET, SOCK_DGRAM);
  OfItsOwn("tcp", AF_INET, SOCK_STREAM);
}

Case untouched(
    "no_lane", [](int) { NothingOnALane(); },
    [](int) {
      // And of a connection, before there is anything that could move it.
      int port;
      const int listener = Listen(&port);
      const int fd = Connect(port);
      const int other = Accept(listener);
      SetNonblock(fd, true);
      SetNonblock(listener, true);
      Untouched("connection", fd);
      Untouched("listener", listener);
      ::close(other);
    },
    {.warm = false, .connect = false});

// Where a file is sent from, and a new connection's name.
Case others(
    "others",
    [](int fd) {
      Answer(fd);
      Peer(fd);
      const int to = Connect(static_cast<int>(Hear()));
      LogDrain(to);
    },
    [](int fd) {
      Ask(fd);
      const int file = ::memfd_create("file", MFD_CLOEXEC);
      CHECK_THAT(::write(file, "abc", 3) == 3);
      int port;
      const int listener = Listen(&port);
      for (const int protection : kUnreadable) {
        const Edge edge(protection);
        Log("%s", Name(protection));
        Result("sendfile", ::sendfile(fd, file, At<off_t>(edge, 0), 3));
        sockaddr_storage name;
        SetNonblock(listener, true);
        Result("accept", ::accept(listener, reinterpret_cast<sockaddr*>(&name),
                                  At<socklen_t>(edge, 0)));
      }
      Done(fd);
      SetNonblock(listener, false);
      Tell(port);
      ::close(Accept(listener));
    });

}  // namespace
