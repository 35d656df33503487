// What few programs do with a connection, and some of it no lane can follow.
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
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

void Echo(int fd, int count) {
  char text[16];
  for (int i = 0; i < count; ++i) {
    RecvAll(fd, text, sizeof text);
    SendAll(fd, text, sizeof text);
  }
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
      }
      Result("poll", ::poll(static_cast<pollfd*>(At(0)), 1, 0));
      char text[16] = {};
      Result("recv", ::recv(fd, text, sizeof text, 0));
      Log("%s", text);
      SendAll(fd, "done", 4);
      Barrier();
    });

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

}  // namespace
