// What calls make of their arguments: lengths, names, control messages, flags
// and options that the kernel refuses, cuts or leaves alone, and in which
// order.
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

void* At(std::uintptr_t value) {
  return reinterpret_cast<void*>(Opaque(value));
}

void DrainAndLog(int fd) {
  int error;
  const std::size_t n = Drain(fd, &error);
  Log("%zu bytes, %s", n, ErrorName(error));
}

// A name means nothing to TCP, but it is read.
Case named(
    "names_of_sends", [](int fd) { DrainAndLog(fd); },
    [](int fd) {
      sockaddr_storage name{};
      name.ss_family = AF_INET6;
      auto* const address = reinterpret_cast<sockaddr*>(&name);
      auto* const low = static_cast<sockaddr*>(At(8));
      auto* const high = static_cast<sockaddr*>(At(std::uintptr_t{1} << 63));
      const auto to = [&](const char* what, const sockaddr* at,
                          socklen_t length) {
        Result(what, ::sendto(fd, "x", 1, 0, at, length));
      };
      to("any name", address, sizeof name);
      to("a short one", address, 1);
      to("one of no length", low, 0);
      to("none of some length", nullptr, 200);
      to("one that is too long", address, sizeof name + 1);
      to("one of length -1", address, static_cast<socklen_t>(-1));
      to("one that is nowhere", low, 16);
      to("one that is the kernel's", high, 16);
      to("both", low, 200);
      char byte = 'x';
      iovec one{&byte, 1};
      const auto message = [&](const char* what, void* at, socklen_t length) {
        msghdr header{};
        header.msg_name = at;
        header.msg_namelen = length;
        header.msg_iov = &one;
        header.msg_iovlen = 1;
        Result(what, ::sendmsg(fd, &header, 0));
        mmsghdr several[2] = {};
        several[0].msg_hdr = several[1].msg_hdr = header;
        Result("two of them", ::sendmmsg(fd, several, 2, 0));
      };
      message("any name", address, sizeof name);
      message("one of no length", low, 0);
      message("none of some length", nullptr, static_cast<socklen_t>(-1));
      message("one that is too long", address, sizeof name + 1);
      message("one of length -1", address, static_cast<socklen_t>(-1));
      message("one that is nowhere", low, 16);
    });

// Nor do control messages, but they are looked at.
Case controlled(
    "control_messages_of_sends", [](int fd) { DrainAndLog(fd); },
    [](int fd) {
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      char byte = 'x';
      iovec one{&byte, 1};
      msghdr message{};
      message.msg_iov = &one;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      const auto send = [&](const char* what, int level, int type,
                            std::size_t length) {
        header->cmsg_level = level;
        header->cmsg_type = type;
        header->cmsg_len = length;
        Result(what, ::sendmsg(fd, &message, 0));
      };
      send("another level's", IPPROTO_UDP, 7, CMSG_LEN(4));
      send("credentials", SOL_SOCKET, SCM_CREDENTIALS, CMSG_LEN(4));
      send("what no socket knows", SOL_SOCKET, 12345, CMSG_LEN(4));
      send("no length", SOL_SOCKET, SCM_CREDENTIALS, 0);
      send("too long", IPPROTO_UDP, 7, sizeof control + 1);
      message.msg_controllen = sizeof(cmsghdr) - 1;
      send("too little for one", SOL_SOCKET, 12345, CMSG_LEN(4));
      message.msg_controllen = 1 << 30;
      Result("very many", ::sendmsg(fd, &message, 0));
      message.msg_control = At(8);
      message.msg_controllen = sizeof control;
      Result("nowhere", ::sendmsg(fd, &message, 0));
      message.msg_controllen = 0;
      Result("none there", ::sendmsg(fd, &message, 0));
      message.msg_control = nullptr;
      message.msg_controllen = 64;
      Result("some of none", ::sendmsg(fd, &message, 0));
      message.msg_controllen = 0;
      const int compat = static_cast<int>(0x80000000u);
      Result("a flag of the kernel's own", ::sendmsg(fd, &message, compat));
    });

// The kernel refuses each of them, on TCP, on the lane, and while it comes.
// (Many bytes, since a send of few does not wait for it.)
Case refused_while_a_lane_comes(
    "refused_while_a_lane_comes", [](int fd) { DrainAndLog(fd); },
    [](int fd) {
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      std::vector<char> bytes(16384, 'x');
      iovec one{bytes.data(), bytes.size()};
      msghdr message{};
      message.msg_iov = &one;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = 12345;
      header->cmsg_len = CMSG_LEN(4);
      int taken = 0;
      for (int i = 0; i < 400; ++i) {
        if (::sendmsg(fd, &message, 0) != -1 || errno != EINVAL) ++taken;
        SendAll(fd, bytes.data(), bytes.size());
      }
      Log("%d that were not refused", taken);
    });

// Where the sender's name would go: asked for only when the bytes are taken.
Case nameless(
    "names_of_receives",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      DrainAndLog(fd);
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      sockaddr_storage name{};
      auto* const address = reinterpret_cast<sockaddr*>(&name);
      char text[4] = {};
      const auto from = [&](const char* what, socklen_t* length) {
        Result(what, ::recvfrom(fd, text, 1, 0, address, length));
        Log("%s", text);
      };
      socklen_t length = sizeof name;
      from("a name", &length);
      Log("length %u", length);
      from("no length", nullptr);
      from("a length nowhere", static_cast<socklen_t*>(At(8)));
      length = static_cast<socklen_t>(-1);
      from("length -1", &length);
      Log("length %d", static_cast<int>(length));
      iovec one{text, 1};
      msghdr message{};
      message.msg_iov = &one;
      message.msg_iovlen = 1;
      message.msg_name = &name;
      message.msg_namelen = static_cast<socklen_t>(-1);
      Result("recvmsg, length -1", ::recvmsg(fd, &message, 0));
      mmsghdr several[1] = {};
      several[0].msg_hdr = message;
      Result("recvmmsg", ::recvmmsg(fd, several, 1, 0, nullptr));
      message.msg_name = nullptr;
      Result("recvmsg, no name", ::recvmsg(fd, &message, 0));
      Log("%s, length %d", text, static_cast<int>(message.msg_namelen));
      message.msg_name = At(8);
      message.msg_namelen = 16;
      Result("recvmsg, nowhere", ::recvmsg(fd, &message, 0));
      Log("%s, length %d", text, static_cast<int>(message.msg_namelen));
      const int compat = static_cast<int>(0x80000000u);
      Result("a flag of the kernel's own", ::recvmsg(fd, &message, compat));
      AwaitBytes(fd, 4);
    });

Case fast_open(
    "fastopen_when_connected", [](int fd) { DrainAndLog(fd); },
    [](int fd) {
      Result("send", ::send(fd, "abc", 3, MSG_FASTOPEN));
      sockaddr_in to{};
      socklen_t length = sizeof to;
      auto* const address = reinterpret_cast<sockaddr*>(&to);
      CHECK_THAT(::getpeername(fd, address, &length) == 0);
      Result("sendto", ::sendto(fd, "abc", 3, MSG_FASTOPEN, address, length));
      Result("send", ::send(fd, "abc", 3, 0));
    });

// Flags of a vector's call.
Case vector_flags(
    "flags_of_preadv2",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      DrainAndLog(fd);
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      char text[4] = {};
      iovec one{text, 1};
      for (const int flags :
           {RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_APPEND, 1 << 20, -1}) {
        Result("read", ::preadv2(fd, &one, 1, -1, flags));
        Result("write", ::pwritev2(fd, &one, 1, -1, flags));
      }
      Result("at 0", ::preadv2(fd, &one, 1, 0, 0));
      Result("at -2", ::preadv2(fd, &one, 1, -2, 0));
      Result("at 0", ::pwritev2(fd, &one, 1, 0, 0));
      Result("none", ::preadv2(fd, &one, 0, -1, 1 << 20));
      char rest[6];
      RecvAll(fd, rest, sizeof rest);
      Result("pread", ::pread(fd, text, 1, 0));
      Result("pwrite", ::pwrite(fd, text, 1, 0));
      Result("preadv", ::preadv(fd, &one, 1, 0));
      Result("pwritev", ::pwritev(fd, &one, 1, -1));
    });

Case wait_arguments(
    "arguments_of_epoll_wait",
    [](int fd) {
      Barrier();
      SendAll(fd, "x", 1);
      DrainAndLog(fd);
    },
    [](int fd) {
      const int set = ::epoll_create1(0);
      // (Behind it is no end of what a program may have mapped.)
      static epoll_event event;
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      // (Room for so many nobody has.)
      const int most = INT_MAX / static_cast<int>(sizeof event);
      auto* const nowhere = static_cast<epoll_event*>(At(8));
      auto* const none = static_cast<epoll_event*>(At(0));
      auto* const high = static_cast<epoll_event*>(At(std::uintptr_t{1} << 63));
      for (int i = 0; i < 2; ++i) {
        Result("most", ::epoll_wait(set, &event, Opaque(most), 0));
        Result("more", ::epoll_wait(set, &event, Opaque(most + 1), 0));
        Result("all", ::epoll_wait(set, &event, Opaque(INT_MAX), 0));
        Result("pwait",
               ::epoll_pwait(set, &event, Opaque(INT_MAX), 0, nullptr));
        const timespec now{0, 0};
        Result("pwait2",
               ::epoll_pwait2(set, &event, Opaque(INT_MAX), &now, nullptr));
        const timespec bad{0, -1};
        Result("no time", ::epoll_pwait2(set, &event, 1, &bad, nullptr));
        Result("no time, no room",
               ::epoll_pwait2(set, &event, 0, &bad, nullptr));
        Result("nowhere", ::epoll_wait(set, nowhere, 1, 0));
        Result("null", ::epoll_wait(set, none, 1, i == 0 ? 20 : -1));
        Result("the kernel's", ::epoll_wait(set, high, 1, 0));
        Result("nowhere, no room", ::epoll_wait(set, nowhere, 0, 0));
        Result("a time below -1",
               i == 0 ? 0 : ::epoll_wait(set, &event, 1, -7));
        if (i > 0) break;
        Barrier();
        AwaitBytes(fd, 1);
      }
      ::close(set);
    });

// Which of two errors is told.
Case ctl_order(
    "order_of_epoll_ctl", [](int fd) { DrainAndLog(fd); },
    [](int fd) {
      const int set = ::epoll_create1(0);
      const auto ctl = [&](const char* what, int op, int to,
                           std::uint32_t events) {
        epoll_event event{};
        event.events = events;
        Result(what, ::epoll_ctl(set, op, to, &event));
      };
      constexpr std::uint32_t kBad = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
      ctl("not exclusive so", EPOLL_CTL_ADD, fd, kBad);
      ctl("nor when known", EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE);
      ctl("add", EPOLL_CTL_ADD, fd, EPOLLIN);
      ctl("again", EPOLL_CTL_ADD, fd, EPOLLIN);
      ctl("again, exclusive", EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE);
      ctl("again, not exclusive so", EPOLL_CTL_ADD, fd, kBad);
      ctl("to exclusive", EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE);
      ctl("no such operation", 0, fd, EPOLLIN);
      ctl("of a closed one", EPOLL_CTL_ADD, 777, kBad);
      ctl("of itself", EPOLL_CTL_ADD, set, EPOLLIN);
      ctl("wakeup", EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLWAKEUP);
      Result("nowhere", ::epoll_ctl(set, EPOLL_CTL_MOD, fd,
                                    static_cast<epoll_event*>(At(8))));
      Result("nowhere, no operation",
             ::epoll_ctl(set, 9, fd, static_cast<epoll_event*>(At(8))));
      Result("del", ::epoll_ctl(set, EPOLL_CTL_DEL, fd,
                                static_cast<epoll_event*>(At(8))));
      ::close(set);
    });

Case option_lengths(
    "lengths_of_options", [](int fd) { DrainAndLog(fd); },
    [](int fd) {
      const char value[16] = {1};
      for (const int name : {TCP_NODELAY, TCP_CORK, TCP_QUICKACK}) {
        for (const int length : {0, 3, 4, 16, -1, INT_MIN}) {
          char text[32];
          std::snprintf(text, sizeof text, "%d, %d bytes", name, length);
          Result(text, ::setsockopt(fd, IPPROTO_TCP, name, value,
                                    static_cast<socklen_t>(Opaque(length))));
        }
        for (const int length : {0, 1, 3, 4, 16, -1}) {
          auto size = static_cast<socklen_t>(length);
          unsigned char got[16];
          std::memset(got, 0xaa, sizeof got);
          Result("get", ::getsockopt(fd, IPPROTO_TCP, name, got, &size));
          Log("%d: %d %d %d %d %d", static_cast<int>(size), got[0], got[1],
              got[2], got[3], got[4]);
        }
        const int off = 0;
        ::setsockopt(fd, IPPROTO_TCP, name, &off, sizeof off);
      }
      for (const int name : {SO_RCVTIMEO, SO_LINGER, SO_RCVLOWAT, SO_ERROR}) {
        for (const int length : {0, 3, 7, 8, -1}) {
          char text[32];
          std::snprintf(text, sizeof text, "%d, %d bytes", name, length);
          const char zeros[16] = {};
          Result(text, ::setsockopt(fd, SOL_SOCKET, name, zeros,
                                    static_cast<socklen_t>(Opaque(length))));
        }
      }
      for (const int length : {0, 1, 3, 4, 16, -1}) {
        auto size = static_cast<socklen_t>(length);
        unsigned char got[16];
        std::memset(got, 0xaa, sizeof got);
        Result("SO_ERROR", ::getsockopt(fd, SOL_SOCKET, SO_ERROR, got, &size));
        Log("%d: %d %d", static_cast<int>(size), got[0], got[4]);
      }
      timeval odd{0, 1'000'000};
      Result("a second of microseconds",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &odd, sizeof odd));
      odd.tv_usec = -1;
      Result("less than none",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &odd, sizeof odd));
      Result("send", ::send(fd, "end", 3, 0));
    });

// Less than nothing is as much as there is room for.
Case low_water(
    "rcvlowat_below_zero",
    [](int fd) {
      SendAll(fd, "abc", 3);
      Barrier();
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      const int mark = -1;
      Result("set",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
      AwaitBytes(fd, 3);
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, 20));
      Barrier();
      Result("poll", ::poll(&one, 1, 5000));
      Barrier();
    });

// The names that programs with 64 bits of time have on machines of 32.
Case new_times(
    "new_names_of_time_outs",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      const std::int64_t time[2] = {0, 50'000};
      Result("set",
             ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO_NEW, time, sizeof time));
      char byte;
      const std::uint64_t start = NowMs();
      Result("recv", ::recv(fd, &byte, 1, 0));
      const std::uint64_t took = NowMs() - start;
      Log("not early %d, not late %d", took >= 49, took < 1000);
      Result("set",
             ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO_NEW, time, sizeof time));
      std::vector<char> big(1 << 20);
      ssize_t n;
      int calls = 0;
      do {
        n = ::send(fd, big.data(), big.size(), 0);
      } while (n > 0 && ++calls < 200);
      Result("send", n);
      Barrier();
    });

// Nothing gets past it.
Case filtered(
    "socket_filter",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      DrainAndLog(fd);
    },
    [](int fd) {
      sock_filter none[] = {{BPF_RET | BPF_K, 0, 0, 0}};
      const sock_fprog program{1, none};
      Result("attach", ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program,
                                    sizeof program));
      Barrier();
      Barrier();
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, 50));
      Result("detach",
             ::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, none, sizeof none));
      char text[4] = {};
      RecvAll(fd, text, 3);
      Log("%s", text);
    });

// Who is said to have sent it.
int pipe_codes[2];
pid_t pipe_sender;
Case sigpipe_info(
    "sigpipe_info", [](int fd) { DrainAndLog(fd); },
    [](int fd) {
      struct sigaction action {};
      action.sa_flags = SA_SIGINFO;
      action.sa_sigaction = [](int, siginfo_t* info, void*) {
        pipe_codes[0] = info->si_code;
        pipe_codes[1] = info->si_errno;
        pipe_sender = info->si_pid;
      };
      ::sigaction(SIGPIPE, &action, nullptr);
      Result("send", ::send(fd, "bye", 3, 0));
      ::shutdown(fd, SHUT_WR);
      Result("send", ::send(fd, "x", 1, 0));
      Log("code %d, error %d, by itself %d", pipe_codes[0], pipe_codes[1],
          pipe_sender == ::getpid());
      // What waits is the thread's own.
      sigset_t set;
      ::sigemptyset(&set);
      ::sigaddset(&set, SIGPIPE);
      ::sigprocmask(SIG_BLOCK, &set, nullptr);
      Result("send", ::send(fd, "x", 1, 0));
      siginfo_t info{};
      const timespec now{0, 0};
      Log("waits %d", ::sigtimedwait(&set, &info, &now) == SIGPIPE);
      Log("code %d", info.si_code);
    });

}  // namespace
