// Flags of the data calls: MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_TRUNC,
// MSG_OOB.  Flags of the file, and registrations, that a child changes.
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

Case peek(
    "peek",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      SendAll(fd, "de", 2);
      Barrier();
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 5);
      SendAll(fd, "fgh", 3);
      Barrier();
      SendAll(fd, "ij", 2);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      char text[32] = {};
      Result("peek 4", ::recv(fd, text, 4, MSG_PEEK));
      Log("%s", text);
      Result("peek 20", ::recv(fd, text, 20, MSG_PEEK));
      Log("%s", text);
      Result("peek none", ::recv(fd, text, 0, MSG_PEEK));
      iovec two[3] = {{text, 3}, {nullptr, 0}, {text + 16, 4}};
      msghdr message{};
      message.msg_iov = two;
      message.msg_iovlen = 3;
      Result("peek vector", ::recvmsg(fd, &message, MSG_PEEK));
      Log("%.3s %.4s", text, text + 16);
      AwaitBytes(fd, 10);
      Result("recv", ::recv(fd, text, 5, 0));
      Log("%.5s", text);
      Result("peek", ::recv(fd, text, 20, MSG_PEEK | MSG_DONTWAIT));
      Log("%.5s", text);
      Result("recv", ::recv(fd, text, 20, 0));
      Result("peek empty", ::recv(fd, text, 20, MSG_PEEK | MSG_DONTWAIT));
      Barrier();
      Result("peek blocking", ::recv(fd, text, 1, MSG_PEEK));
      AwaitBytes(fd, 3);
      Result("peek waitall", ::recv(fd, text, 3, MSG_PEEK | MSG_WAITALL));
      Result("recv", ::recv(fd, text, 20, 0));
      Barrier();
      AwaitBytes(fd, 2);
      Barrier();
      Result("peek waitall", ::recv(fd, text, 5, MSG_PEEK | MSG_WAITALL));
      Log("%.5s", text);
      Result("recv", ::recv(fd, text, 20, 0));
      Barrier();
      AwaitBytes(fd, 2);
      Result("peek waitall, at once",
             ::recv(fd, text, 5, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
      Result("recv", ::recv(fd, text, 20, 0));
      SendAll(fd, "x", 1);
    });

Case waitall(
    "waitall",
    [](int fd) {
      std::vector<char> text(300'000);
      Pattern(4, 0, text.data(), text.size());
      for (std::size_t at = 0; at < text.size(); at += 1000) {
        SendAll(fd, text.data() + at, 1000);
        if (at % 50'000 == 0) {
          pollfd none{-1, 0, 0};
          ::poll(&none, 1, 1);
        }
      }
      SendAll(fd, "tail", 4);
    },
    [](int fd) {
      std::vector<char> text(300'000);
      std::size_t at = 0;
      for (const std::size_t n : {1u, 10u, 99'989u, 200'000u}) {
        Result("waitall", ::recv(fd, text.data(), n, MSG_WAITALL));
        CHECK_THAT(IsPattern(4, at, text.data(), n));
        at += n;
      }
      Result("waitall to the end", ::recv(fd, text.data(), 1000, MSG_WAITALL));
      Result("at the end", ::recv(fd, text.data(), 1000, MSG_WAITALL));
    });

// The word of the end may be here before the bytes that it ends (over RDMA).
Case peek_to_end(
    "peek_waitall_to_the_end",
    [](int) {
      const int listener = ListenAndTell();
      std::vector<char> text(8000);
      Pattern(6, 0, text.data(), text.size());
      for (int i = 0; i < 20; ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        SendAll(fd, text.data(), text.size());
        CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
        char byte;
        Result("end", ::recv(fd, &byte, 1, 0));
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (int i = 0; i < 20; ++i) {
        const int fd = Connect(port);
        Warm(fd);
        std::vector<char> text(8001);
        Result("peek",
               ::recv(fd, text.data(), text.size(), MSG_PEEK | MSG_WAITALL));
        RecvAll(fd, text.data(), 8000);
        CHECK_THAT(IsPattern(6, 0, text.data(), 8000));
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

// More than a small ring holds: it leaves its lane meanwhile.
Case peek_more(
    "peek_waitall_more_than_a_ring",
    [](int) {
      const int listener = ListenAndTell();
      std::vector<char> text(60'000);
      Pattern(7, 0, text.data(), text.size());
      for (const bool end : {false, true}) {
        const int fd = Accept(listener);
        Warm(fd);
        SendAll(fd, text.data(), 50'000);
        ::poll(nullptr, 0, 5);
        SendAll(fd, text.data() + 50'000, 10'000);
        if (end) CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
        char byte;
        Result("end", ::recv(fd, &byte, 1, 0));
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (const bool end : {false, true}) {
        const int fd = Connect(port);
        Warm(fd);
        std::vector<char> text(60'000 + (end ? 1 : 0));
        constexpr int kAll = MSG_PEEK | MSG_WAITALL;
        Result("peek", ::recv(fd, text.data(), text.size(), kAll));
        CHECK_THAT(IsPattern(7, 0, text.data(), 60'000));
        Result("count", ::recv(fd, nullptr, text.size(), kAll | MSG_TRUNC));
        text.assign(60'000, 0);
        RecvAll(fd, text.data(), 60'000);
        CHECK_THAT(IsPattern(7, 0, text.data(), 60'000));
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

Case dontwait(
    "dontwait",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      char byte;
      Result("recv", ::recv(fd, &byte, 1, MSG_DONTWAIT));
      Result("recv waitall", ::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_WAITALL));
      Result("read none", ::read(fd, &byte, 0));
      Result("send none", ::send(fd, "", 0, 0));
      Result("write none", ::write(fd, "", 0));
      SetNonblock(fd, true);
      Result("read", ::read(fd, &byte, 1));
      SetNonblock(fd, false);
      int on = 1;
      Result("FIONBIO", ::ioctl(fd, FIONBIO, &on));
      Result("read", ::read(fd, &byte, 1));
      Log("O_NONBLOCK %d", (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
      int copy = ::dup(fd);
      on = 0;
      Result("FIONBIO", ::ioctl(copy, FIONBIO, &on));
      Log("O_NONBLOCK %d", (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
      on = 1;
      ::ioctl(copy, FIONBIO, &on);
      Result("read", ::read(fd, &byte, 1));
      ::close(copy);
      Barrier();
    });

Case truncate_flag(
    "trunc", [](int fd) { SendAll(fd, "0123456789", 10); },
    [](int fd) {
      AwaitBytes(fd, 10);
      char text[16] = "untouched";
      Result("trunc 4", ::recv(fd, text, 4, MSG_TRUNC));
      Log("%s", text);
      Result("trunc null", ::recv(fd, nullptr, 2, MSG_TRUNC));
      Result("recv", ::recv(fd, text, 16, 0));
      Log("%.4s", text);
      Result("trunc at end", ::recv(fd, text, 4, MSG_TRUNC));
    });

// MSG_OOB moves a stream to TCP; the mark and the byte are the kernel's.
Case urgent(
    "urgent",
    [](int fd) {
      SendAll(fd, "normal", 6);
      Result("send", ::send(fd, "!", 1, MSG_OOB));
      SendAll(fd, "more", 4);
      Barrier();
    },
    [](int fd) {
      pollfd one{fd, POLLPRI, 0};
      Result("poll", ::poll(&one, 1, -1));
      char text[16] = {};
      Result("recv", ::recv(fd, text, 1, MSG_OOB));
      Log("%s", text);
      RecvAll(fd, text, 10);
      Log("%s", text);
      Barrier();
    });

// The option alone moves nothing; the byte does, and is one of the stream then.
void UrgentInLine(int fd) {
  const int on = 1;
  Result("option", ::setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
  int got = 0;
  socklen_t size = sizeof got;
  ::getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &got, &size);
  Log("is %d", got);
}

int AtMark(int fd) {
  int at = -1;
  Result("SIOCATMARK", ::ioctl(fd, SIOCATMARK, &at));
  return at;
}

Case urgent_in_line(
    "urgent_in_line",
    [](int fd) {
      UrgentInLine(fd);
      Echo(fd, 100);
      const std::uint64_t before = TcpBytes(fd);
      Echo(fd, 100);
      const char* warm = ::getenv("PAIR_WARM");
      Log("on the lane %d", warm == nullptr || TcpBytes(fd) - before < 1600);
      for (int i = 0; i < 3; ++i) {
        SendAll(fd, "abc", 3);
        Barrier();
        Result("urgent", ::send(fd, "!", 1, MSG_OOB));
        SendAll(fd, "def", 3);
        Barrier();
        Barrier();
      }
    },
    [](int fd) {
      UrgentInLine(fd);
      char text[16] = {};
      for (int i = 0; i < 200; ++i) {
        SendAll(fd, text, 16);
        RecvAll(fd, text, 16);
      }
      for (int i = 0; i < 3; ++i) {
        Barrier();
        Barrier();
        int count = 0;
        while (count < 7) CHECK_THAT(::ioctl(fd, FIONREAD, &count) == 0);
        pollfd one{fd, POLLPRI, 0};
        Result("poll", ::poll(&one, 1, 0));
        Log("at the mark %d", AtMark(fd));
        // No call goes past it, not even one that waits for all.
        Result("recv", ::recv(fd, text, 2, 0));
        Result("all", ::recv(fd, text, sizeof text, MSG_WAITALL));
        Log("%c, at the mark %d", text[0], AtMark(fd));
        Result("MSG_OOB", ::recv(fd, text, 1, MSG_OOB));
        Result("the rest", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
        Log("%.4s, at the mark %d", text, AtMark(fd));
        Barrier();
      }
    });

// What rcsock may answer without the kernel, until a child has a copy.
void LogFlags(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  Log("nonblock %d, append %d", (flags & O_NONBLOCK) != 0,
      (flags & O_APPEND) != 0);
}

Case changed_by_a_child(
    "changed_by_a_child", [](int) { Barrier(); },
    [](int) {
      int port = 0;
      const int listener = Listen(&port);
      const int fd = Connect(port);  // no byte goes there, so it stays on TCP
      const int set = NewSet();
      epoll_event event{};
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT);
      for (int i = 0; i < 3; ++i) {
        Result("again", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT));
      }
      Result("wait", ::epoll_wait(set, &event, 1, kQuiet));
      LogFlags(fd);
      SetNonblock(fd, true);
      LogFlags(fd);
      ::fcntl(fd, F_SETFL, O_APPEND);
      LogFlags(fd);
      ::fcntl(fd, F_SETFL, 0);
      int on = 1;
      Result("FIONBIO", ::ioctl(fd, FIONBIO, &on));
      LogFlags(fd);
      const pid_t child = ::fork();
      if (child == 0) {
        ::fcntl(fd, F_SETFL, 0);
        ::_exit(Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN) == 0 ? 0 : 1);
      }
      LogChild(child);
      LogFlags(fd);
      Result("wait", ::epoll_wait(set, &event, 1, kQuiet));
      Result("again", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT));
      Result("wait", ::epoll_wait(set, &event, 1, kQuiet));
      Result("DEL", Ctl(set, EPOLL_CTL_DEL, fd, 0));
      Result("MOD", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT));
      ::close(fd);
      Result("MOD", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT));
      Result("F_GETFL", ::fcntl(fd, F_GETFL));
      ::close(listener);
      Barrier();
    });

// An option may make a socket ready, and wake nobody.  Then a MOD that changes
// nothing finds that.  By then rcsock has read the program's code, and leaves
// out such calls where they are of no use.
Case told_by_mod(
    "told_by_mod",
    [](int fd) {
      Barrier();
      CHECK_THAT(::send(fd, "!", 1, MSG_OOB) == 1);
      Barrier();
    },
    [](int fd) {
      std::thread([] {}).join();
      const int set = NewSet();
      epoll_event event{};
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
      for (int burst = 0; burst < 5; ++burst) {
        for (int i = 0; i < 1100; ++i) Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN);
        ::usleep(100'000);
      }
      Barrier();
      AwaitPoll(fd, POLLPRI, POLLPRI);
      Result("before", ::epoll_wait(set, &event, 1, 0));
      const int one = 1;
      CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one) ==
                 0);
      Result("MOD", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN));
      Result("behind", ::epoll_wait(set, &event, 1, 1000));
      Barrier();
      // libc sets O_APPEND by itself.
      const int other = ::socket(AF_INET, SOCK_STREAM, 0);
      std::FILE* const file = ::fdopen(other, "a");
      LogFlags(other);
      std::fclose(file);
    },
    {.warm = false});

}  // namespace
