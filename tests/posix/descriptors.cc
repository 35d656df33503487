// Descriptors: passed on, closed, replaced, parted with, none left.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// A promoted stream is given to another process.
Case passing(
    "scm_rights",
    [](int fd) {
      Echo(fd, 800);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      int pair_fds[2];
      CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair_fds) == 0);
      const pid_t child = ::fork();
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
      char byte = 'f';
      iovec part{&byte, 1};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      if (child == 0) {
        ::close(fd);
        CHECK_THAT(::recvmsg(pair_fds[1], &message, 0) == 1);
        int got;
        std::memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
        Call(got, 400);
        ::_exit(0);
      }
      Call(fd, 200);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
      Result("sendmsg", ::sendmsg(pair_fds[0], &message, 0));
      ::close(fd);
      LogChild(child);
    });

// Programs that close everything they did not open.
Case close_all(
    "close_all",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int last = static_cast<int>(::sysconf(_SC_OPEN_MAX));
      for (int i = 30; i < (last < 5000 ? last : 5000); ++i) {
        if (i != fd) ::close(i);
      }
      Call(fd, 100);
      ::close_range(30, ~0u, 0);
      Call(fd, 100);
      ::close(fd);
    });

Case close_stream_range(
    "close_range_takes_stream",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int high = ::fcntl(fd, F_DUPFD, 50);
      ::close(fd);
      CHECK_THAT(high >= 50);
      Result("close_range", ::close_range(50, ~0u, 0));
      char byte;
      Result("recv", ::recv(high, &byte, 1, 0));
      // And a new connection afterwards.
      int port;
      const int listener = Listen(&port);
      const int out = Connect(port);
      const int in = ::accept(listener, nullptr, nullptr);
      for (int i = 0; i < 500; ++i) {
        SendAll(out, "ping", 4);
        char text[4];
        RecvAll(in, text, 4);
      }
      Log("done");
    });

// What the kernel refuses has closed nothing.
Case refused_range(
    "close_range_refused",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      const auto number = static_cast<unsigned>(fd);
      constexpr int kNoSuchFlag = 0x40;
      Result("close_range", ::close_range(number, number, kNoSuchFlag));
      Result("close_range", ::close_range(number, number - 1, 0));
      Call(fd, 100);
      ::close(fd);
    });

// closefrom, also where a filter says that the kernel has no close_range.
Case from(
    "closefrom",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      const int high = ::fcntl(fd, F_DUPFD, 50);
      const int other = ::fcntl(0, F_DUPFD, 60);
      CHECK_THAT(high >= 50 && other >= 60);
      ::closefrom(50);
      Result("fcntl", ::fcntl(high, F_GETFD));
      Result("fcntl", ::fcntl(other, F_GETFD));
      Call(fd, 100);
      sock_filter code[] = {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
      sock_fprog filter{sizeof code / sizeof code[0], code};
      CHECK_THAT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
      CHECK_THAT(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) ==
                 0);
      ::closefrom(fd);
      Result("fcntl", ::fcntl(fd, F_GETFD));
    });

Case cloexec_range(
    "close_range_cloexec",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      Result("close_range", ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
      Log("cloexec %d", (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
      Call(fd, 200);
      ::close(fd);
    });

// No descriptors left: the connection works as it is.
Case no_fds(
    "rlimit_nofile",
    [](int) {
      const int listener = ListenAndTell();
      const int fd = ::accept(listener, nullptr, nullptr);
      Echo(fd, 2000);
      LogDrain(fd);
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      const int fd = Connect(port);
      rlimit limit{static_cast<rlim_t>(fd) + 1, static_cast<rlim_t>(fd) + 1};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      Call(fd, 2000);
      Result("socket", ::socket(AF_INET, SOCK_STREAM, 0));
      Result("dup", ::dup(fd));
      Result("close", ::close(fd));
      Result("socket", ::socket(AF_INET, SOCK_STREAM, 0));
    },
    {.warm = false, .connect = false});

Case dup_over(
    "dup2_over_stream",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int null = ::open("/dev/null", O_RDWR);
      Result("dup2", ::dup2(null, fd) == fd ? 0 : -1);
      char byte;
      Result("read", ::read(fd, &byte, 1));
      Result("write", ::write(fd, "x", 1));
    });

// A dup2 that fails leaves the connection where it is.
Case dup_over_limit(
    "dup2_over_stream_past_limit",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int set = ::epoll_create1(0);
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      const rlimit low{static_cast<rlim_t>(fd), limit.rlim_max};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &low) == 0);
      Result("dup2", ::dup2(0, fd));
      Result("dup3", ::dup3(0, fd, O_CLOEXEC));
      Call(fd, 100);
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      const rlimit lower{static_cast<rlim_t>(set), limit.rlim_max};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
      Result("dup2 over a set", ::dup2(0, set));
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      epoll_event event{};
      event.events = EPOLLOUT;
      Result("add", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
      Result("wait", ::epoll_wait(set, &event, 1, 0));
      Call(fd, 100);
      ::close(fd);
    });

// The number is never free meanwhile, for another thread's new descriptor would
// have it, and be closed.
constexpr int kReplaced = 60;
Case dup_over_race(
    "dup2_over_streams_beside_open",
    [](int) {
      const int listener = ListenAndTell();
      std::vector<int> fds;
      for (int i = 0; i < kReplaced; ++i) {
        fds.push_back(::accept(listener, nullptr, nullptr));
        CHECK_THAT(fds.back() >= 0);
        Warm(fds.back());
      }
      for (const int fd : fds) LogDrain(fd);
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      const int null = ::open("/dev/null", O_RDWR);
      std::vector<int> fds;
      for (int i = 0; i < kReplaced; ++i) {
        fds.push_back(Connect(port));
        Warm(fds.back());
      }
      // (Beside them a set of epoll, and a stream with two numbers.)
      fds.push_back(::epoll_create1(0));
      fds.push_back(::dup(fds[0]));
      const std::set<int> numbers(fds.begin(), fds.end());
      std::atomic<bool> done{false};
      std::atomic<int> rounds{0};
      int stolen = 0;
      std::thread other([&] {
        while (!done.load()) {
          const int fd = ::open("/dev/zero", O_RDONLY);
          CHECK_THAT(fd >= 0);
          if (numbers.contains(fd)) ++stolen;
          ::close(fd);
          rounds.fetch_add(1);
        }
      });
      for (const int fd : fds) {
        const int before = rounds.load();
        while (rounds.load() == before) ::sched_yield();
        CHECK_THAT(::dup2(null, fd) == fd);
      }
      done.store(true);
      other.join();
      Log("%d stolen", stolen);
    },
    {.warm = false, .connect = false});

Case dup_over_peer(
    "reuse_number",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      ::close(fd);
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      Log("number is taken again %d", pipe_fds[0] == fd || pipe_fds[1] == fd);
      Result("write", ::write(pipe_fds[1], "abc", 3));
      char text[4];
      Result("read", ::read(pipe_fds[0], text, 4));
    });

// A table of descriptors of its own for a thread that has no other beside it:
// what it closes is closed.
void Part(int fd, int port, bool by_range) {
  int pipe[2];
  CHECK_THAT(::pipe(pipe) == 0);
  if (by_range) {
    const auto number = static_cast<unsigned>(pipe[1]);
    Result("close_range", ::close_range(number, number, CLOSE_RANGE_UNSHARE));
  } else {
    Result("unshare", ::unshare(CLONE_FILES));
    Result("close", ::close(pipe[1]));
  }
  pollfd end{pipe[0], POLLIN, 0};
  Result("poll", ::poll(&end, 1, 2000));
  Log("%x", static_cast<unsigned>(end.revents));
  const auto ask = [](int on) {
    char text[4];
    for (int i = 0; i < 50; ++i) {
      SendAll(on, "ping", 4);
      RecvAll(on, text, 4);
    }
  };
  ask(fd);
  // The number is another connection's now.
  const int other = Connect(port);
  Warm(other);
  ask(other);
  ::close(other);
  ::close(pipe[0]);
  Log("goes on");
}

void AnswerAll(int listener, int connections) {
  for (int i = 0; i < connections; ++i) {
    const int fd = Accept(listener);
    Warm(fd);
    std::thread([fd] {
      char text[4];
      while (::recv(fd, text, 4, MSG_WAITALL) == 4) SendAll(fd, text, 4);
      ::close(fd);
    }).detach();
  }
}

Case parted(
    "unshare_descriptors",
    [](int) {
      const int listener = ListenAndTell();
      AnswerAll(listener, 3);
      Barrier();
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      const int fd = Connect(port);
      Warm(fd);
      Part(fd, port, true);
      Part(fd, port, false);
      ::close(fd);
      Barrier();
    },
    {.warm = false, .connect = false});

// With another thread: the streams go on.
Case parted_beside(
    "unshare_descriptors_beside",
    [](int fd) {
      char text[4];
      while (::recv(fd, text, 4, MSG_WAITALL) == 4) SendAll(fd, text, 4);
    },
    [](int fd) {
      std::atomic<bool> done{false};
      std::thread beside([&] {
        while (!done) ::poll(nullptr, 0, 1);
      });
      Result("unshare", ::unshare(CLONE_FILES));
      char text[4];
      for (int i = 0; i < 50; ++i) {
        SendAll(fd, "ping", 4);
        RecvAll(fd, text, 4);
      }
      done = true;
      beside.join();
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      int error;
      Result("rest", static_cast<long>(Drain(fd, &error)));
    });

// A thread parts and closes all that it has then: the others keep theirs.
Case parted_closes(
    "close_range_parts_beside",
    [](int fd) {
      char text[4];
      while (::recv(fd, text, 4, MSG_WAITALL) == 4) SendAll(fd, text, 4);
    },
    [](int fd) {
      for (const bool named : {false, true}) {
        long result = -1;
        std::thread([&] {
          result =
              named ? ::close_range(3, ~0u, CLOSE_RANGE_UNSHARE)
                    : ::syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_UNSHARE);
        }).join();
        Result("close_range", result);
        char text[4];
        for (int i = 0; i < 50; ++i) {
          SendAll(fd, "ping", 4);
          RecvAll(fd, text, 4);
        }
      }
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      int error;
      Result("rest", static_cast<long>(Drain(fd, &error)));
    });

}  // namespace
