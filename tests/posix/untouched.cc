// Children of fork that inherit a connection.  While a child does not use it,
// the parent keeps its lane; the child's first use, whatever it is, finds what
// TCP would have.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "tests/posix/pair.h"

extern char** environ;

namespace {

using namespace pair;

// A child that waits to be told, and then does `act`.
class Child {
 public:
  explicit Child(const std::function<void()>& act) {
    CHECK_THAT(::pipe(gate_) == 0);
    pid_ = ::fork();
    CHECK_THAT(pid_ >= 0);
    if (pid_ == 0) {
      ::close(gate_[1]);
      char byte;
      (void)!::read(gate_[0], &byte, 1);
      act();
      ::_exit(3);
    }
    ::close(gate_[0]);
  }
  void Go() {
    // Later children have copies of this end.
    CHECK_THAT(::write(gate_[1], "", 1) == 1);
    ::close(gate_[1]);
  }
  void Await() { LogChild(pid_); }
  void Ends() {
    Go();
    Await();
  }
  pid_t pid() const { return pid_; }

 private:
  int gate_[2];
  pid_t pid_;
};

void EchoWarm(int fd, int times) {
  for (int i = 0; i < times; ++i) Warm(fd);
}

// The lane stays, or comes back, while the child lives.
Case lives(
    "untouched_child_lives",
    [](int fd) {
      EchoWarm(fd, 2);
      Echo(fd, 300);
      LogDrain(fd);
    },
    [](int fd) {
      Child child([] {});
      Warm(fd);
      Child other([] {});
      Warm(fd);
      Call(fd, 200);
      child.Ends();
      other.Ends();
      Call(fd, 100);
      ::close(fd);
    });

Case closes(
    "untouched_child_closes",
    [](int fd) {
      EchoWarm(fd, 2);
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, 50));
      Barrier();
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      int told[2];
      CHECK_THAT(::pipe(told) == 0);
      Child child([fd, told] {
        Result("close", ::close(fd));
        Result("twice", ::close(fd));
        CHECK_THAT(::write(told[1], "", 1) == 1);
        for (;;) ::pause();
      });
      Warm(fd);
      child.Go();
      char byte;
      CHECK_THAT(::read(told[0], &byte, 1) == 1);
      Warm(fd);
      ::kill(child.pid(), SIGKILL);
      child.Await();
      Barrier();
      Warm(fd);
      ::close(fd);
    });

// Killed, and counted for ever: the parent's end is the connection's.
Case killed(
    "untouched_child_killed",
    [](int fd) {
      EchoWarm(fd, 2);
      LogDrain(fd);
    },
    [](int fd) {
      Child child([] {});
      Warm(fd);
      ::kill(child.pid(), SIGKILL);
      child.Await();
      Warm(fd);
      SendAll(fd, "last", 4);
      ::close(fd);
    });

Case uses(
    "untouched_child_uses_it",
    [](int fd) {
      Warm(fd);
      Echo(fd, 500);
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Child child([fd] { Call(fd, 300); });
      Warm(fd);
      child.Ends();
      Call(fd, 200);
      Warm(fd);
      ::close(fd);
    });

// What has come, and the parent has not read, is the child's to read.
void SayTen(int fd) {
  Warm(fd);
  SendAll(fd, "0123456789", 10);
  Barrier();
  Echo(fd, 100);
  LogDrain(fd);
}
template <class Use>
void FirstUse(int fd, Use use) {
  Child child([fd, use] {
    use(fd);
    char text[10] = {};
    RecvAll(fd, text, 7);
    Log("read %.7s", text);
    Call(fd, 50);
  });
  Warm(fd);
  Barrier();
  AwaitBytes(fd, 10);
  char text[10] = {};
  RecvAll(fd, text, 3);
  child.Ends();
  Call(fd, 50);
  ::close(fd);
}
Case by_poll("untouched_child_polls", SayTen, [](int fd) {
  FirstUse(fd, [](int n) { AwaitPoll(n, POLLIN, POLLIN); });
});
Case by_dup("untouched_child_dups", SayTen, [](int fd) {
  FirstUse(fd, [](int n) {
    const int copy = ::dup(n);
    char text[2] = {};
    Result("peek", ::recv(copy, text, 2, MSG_PEEK));
    Log("%.2s", text);
    ::close(copy);
  });
});
Case by_ioctl("untouched_child_asks", SayTen, [](int fd) {
  FirstUse(fd, [](int n) {
    int bytes = 0;
    Result("ioctl", ::ioctl(n, FIONREAD, &bytes));
    Log("%d bytes", bytes);
  });
});
Case by_option("untouched_child_sets", SayTen, [](int fd) {
  FirstUse(fd, [](int n) {
    const timeval time{5, 0};
    Result("setsockopt",
           ::setsockopt(n, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
  });
});
Case by_epoll("untouched_child_epolls", SayTen, [](int fd) {
  FirstUse(fd, [](int n) {
    const int set = ::epoll_create1(0);
    epoll_event event{EPOLLIN, {.u64 = 7}};
    Result("add", ::epoll_ctl(set, EPOLL_CTL_ADD, n, &event));
    Result("wait", ::epoll_wait(set, &event, 1, 5000));
    Log("%d", static_cast<int>(event.data.u64));
  });
});
Case by_passing("untouched_child_passes", SayTen, [](int fd) {
  FirstUse(fd, [](int n) {
    int ends[2];
    CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    char control[CMSG_SPACE(sizeof(int))] = {};
    iovec one{control, 1};
    msghdr message{};
    message.msg_iov = &one;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof n);
    *reinterpret_cast<int*>(CMSG_DATA(head)) = n;
    Result("pass", ::sendmsg(ends[0], &message, 0));
    ::close(ends[0]);
    ::close(ends[1]);
  });
});
Case by_shutdown(
    "untouched_child_shuts",
    [](int fd) {
      Warm(fd);
      SendAll(fd, "0123456789", 10);
      LogDrain(fd);
      SendAll(fd, "end", 3);
    },
    [](int fd) {
      Child child([fd] {
        Result("shutdown", ::shutdown(fd, SHUT_WR));
        LogDrain(fd);
      });
      Warm(fd);
      child.Ends();
      LogDrain(fd);
      ::close(fd);
    });

// The registration in the set that both have is the parent's, and moves with
// the stream.
Case in_set(
    "untouched_set_of_both",
    [](int fd) {
      Warm(fd);
      Echo(fd, 100);
      Barrier();
      SendAll(fd, "0123", 4);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int fd) {
      const int set = ::epoll_create1(0);
      epoll_event event{EPOLLIN, {.u64 = 7}};
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      Child child([fd, set] {
        epoll_event found{};
        Result("wait", ::epoll_wait(set, &found, 1, 5000));
        Log("%d", static_cast<int>(found.data.u64));
        char text[5] = {};
        RecvAll(fd, text, 4);
        Log("%s", text);
        Call(fd, 50);
      });
      Warm(fd);
      // As programs do: other data, for the same stream.
      event.data.u64 = 8;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
      for (int i = 0; i < 100; ++i) {
        char text[16] = {};
        SendAll(fd, text, sizeof text);
        CHECK_THAT(::epoll_wait(set, &event, 1, 5000) == 1);
        RecvAll(fd, text, sizeof text);
      }
      Log("%d", static_cast<int>(event.data.u64));
      Barrier();
      child.Ends();
      Call(fd, 50);
      ::close(fd);
    });

// The parent sleeps in a call when the child comes.
Case asleep(
    "untouched_parent_sleeps",
    [](int fd) {
      Warm(fd);
      char text[4];
      RecvAll(fd, text, 4);
      SendAll(fd, "back", 4);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int fd) {
      Child child([fd] {
        AwaitAsleep(::getppid(), ::getppid());
        SendAll(fd, "ping", 4);
      });
      Warm(fd);
      child.Go();
      char text[5] = {};
      RecvAll(fd, text, 4);
      Log("%s", text);
      child.Await();
      Call(fd, 100);
      ::close(fd);
    });

// The parent is stopped for a while.
Case stopped(
    "untouched_parent_is_stopped",
    [](int fd) {
      Warm(fd);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int fd) {
      Child waker([] {
        ::usleep(300'000);
        ::kill(::getppid(), SIGCONT);
      });
      Child child([fd] {
        ::kill(::getppid(), SIGSTOP);
        Call(fd, 100);
      });
      Warm(fd);
      waker.Go();
      child.Go();
      waker.Await();
      child.Await();
      ::close(fd);
    });

// A process between, whose end is not this program's.  `end` is its end, behind
// its fork; the child then alone has the connection.
void WithMiddle(int fd, const std::function<void(int)>& end, int left = 4) {
  int done[2];
  CHECK_THAT(::pipe(done) == 0);
  const pid_t middle = ::fork();
  CHECK_THAT(middle >= 0);
  if (middle == 0) {
    ::close(done[0]);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    ::fcntl(done[1], F_SETFD, FD_CLOEXEC);
    WarmAs(fd, true);
    int gate[2];
    CHECK_THAT(::pipe2(gate, O_CLOEXEC) == 0);
    if (::fork() == 0) {
      ::close(gate[1]);
      char byte;
      (void)!::read(gate[0], &byte, 1);  // the end of the process between
      std::string text(static_cast<std::size_t>(left), 0);
      RecvAll(fd, text.data(), text.size());
      Log("child: %d", text == std::string(text.size(), 'l'));
      Call(fd, 300);
      ::close(fd);
      ::_exit(0);
    }
    ::close(gate[0]);
    ::close(done[1]);
    WarmAs(fd, true);
    Barrier();
    AwaitBytes(fd, left);
    end(fd);
    ::close(gate[1]);
    for (;;) ::pause();
  }
  ::close(fd);
  ::close(done[1]);
  char byte;
  Result("child's end", ::read(done[0], &byte, 1));
  ::kill(middle, SIGKILL);
  ::waitpid(middle, nullptr, 0);
  ::close(done[0]);
}
void PeerOfMiddle(int fd) {
  WarmAs(fd, false);
  WarmAs(fd, false);
  SendAll(fd, "llll", 4);
  Barrier();
  Echo(fd, 300);
  LogDrain(fd);
}
Case parent_closes("untouched_parent_closes", PeerOfMiddle, [](int fd) {
  WithMiddle(fd, [](int n) {
    const int copy = ::dup(n);
    ::close(n);
    ::close(copy);
  });
});
Case parent_replaces("untouched_parent_replaces", PeerOfMiddle, [](int fd) {
  WithMiddle(fd, [](int n) {
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, n);
  });
});
Case parent_exits("untouched_parent_exits", PeerOfMiddle,
                  [](int fd) { WithMiddle(fd, [](int) { ::_exit(0); }); });
// As much as its receive queue takes.
constexpr int kMuch = 100'000;
void PeerOfMuch(int fd) {
  WarmAs(fd, false);
  WarmAs(fd, false);
  const std::string much(kMuch, 'l');
  SendAll(fd, much.data(), much.size());
  Barrier();
  Echo(fd, 300);
  LogDrain(fd);
}
Case much_closes("untouched_parent_closes_before_much", PeerOfMuch, [](int fd) {
  WithMiddle(
      fd, [](int n) { ::close(n); }, kMuch);
});
Case much_exits("untouched_parent_exits_before_much", PeerOfMuch, [](int fd) {
  WithMiddle(
      fd, [](int) { ::_exit(0); }, kMuch);
});
Case parent_execs("untouched_parent_execs", PeerOfMiddle, [](int fd) {
  WithMiddle(fd, [](int) { ::execl("/bin/true", "true", nullptr); });
});

// The owner is killed: what is in its ring is lost, and nobody hangs.
Case owner_killed(
    "untouched_parent_is_killed",
    [](int fd) {
      WarmAs(fd, false);
      WarmAs(fd, false);
      Barrier();
      int error = 0;
      Drain(fd, &error);
      Log("over");
    },
    [](int fd) {
      int done[2];
      CHECK_THAT(::pipe(done) == 0);
      const pid_t middle = ::fork();
      if (middle == 0) {
        ::close(done[0]);
        WarmAs(fd, true);
        int gate[2];
        CHECK_THAT(::pipe(gate) == 0);
        if (::fork() == 0) {
          ::close(gate[1]);
          char byte;
          (void)!::read(gate[0], &byte, 1);
          ::signal(SIGPIPE, SIG_IGN);
          (void)!::send(fd, "x", 1, 0);
          ::close(fd);
          ::_exit(0);
        }
        ::close(gate[0]);
        WarmAs(fd, true);
        Barrier();
        ::kill(::getpid(), SIGKILL);
      }
      ::close(fd);
      ::close(done[1]);
      char byte;
      Result("child's end", ::read(done[0], &byte, 1));
      ::waitpid(middle, nullptr, 0);
    });

Case generations(
    "untouched_grandchild",
    [](int fd) {
      EchoWarm(fd, 2);
      Echo(fd, 300);
      LogDrain(fd);
    },
    [](int fd) {
      Child child([fd] {
        Child grandchild([fd] { Call(fd, 100); });
        Child untouched([] {});
        grandchild.Ends();
        untouched.Ends();
        Call(fd, 100);
      });
      Warm(fd);
      Child other([fd] {
        if (::fork() == 0) ::_exit(0);
        ::wait(nullptr);
        ::close(fd);
      });
      other.Ends();
      Warm(fd);
      child.Ends();
      Call(fd, 100);
      ::close(fd);
    });

// exec closes the connection, or hands it on; and fails.
Case execs(
    "untouched_child_execs",
    [](int fd) {
      EchoWarm(fd, 2);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int fd) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      Child child([] { ::execl("/bin/true", "true", nullptr); });
      Child fails([fd] {
        ::execl("/no/such/file", "file", nullptr);
        Call(fd, 50);
      });
      Warm(fd);
      child.Ends();
      Warm(fd);
      fails.Ends();
      Call(fd, 50);
      ::close(fd);
    });
Case spawns(
    "untouched_child_spawns",
    [](int fd) {
      Warm(fd);
      SpeakToCat(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Child child([fd] {
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, fd, 0);
        ::posix_spawn_file_actions_adddup2(&actions, fd, 1);
        char cat[] = "cat";
        char* const arguments[] = {cat, nullptr};
        pid_t pid = 0;
        CHECK_THAT(::posix_spawnp(&pid, "cat", &actions, nullptr, arguments,
                                  environ) == 0);
        ::close(fd);
        LogChild(pid);
      });
      Warm(fd);
      child.Go();
      ::close(fd);
      child.Await();
    });
Case vforks(
    "untouched_child_vforks",
    [](int fd) {
      Warm(fd);
      SpeakToCat(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Child child([fd] {
        const pid_t pid = ::vfork();
        if (pid == 0) {
          ::dup2(fd, 0);
          ::dup2(fd, 1);
          ::execlp("cat", "cat", nullptr);
          ::_exit(1);
        }
        ::close(fd);
        LogChild(pid);
      });
      Warm(fd);
      child.Go();
      ::close(fd);
      child.Await();
    });

// Threads go on while their process forks; some children use the connection.
Case threads(
    "untouched_beside_threads",
    [](int fd) {
      Echo(fd, 4000);
      LogDrain(fd);
    },
    [](int fd) {
      std::thread caller([fd] { Call(fd, 4000); });
      for (int i = 0; i < 30; ++i) {
        const pid_t child = ::fork();
        CHECK_THAT(child >= 0);
        if (child == 0) {
          int error = 0;
          socklen_t size = sizeof error;
          if (i % 3 == 0) {
            ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
          }
          if (i % 3 == 1) ::close(fd);
          ::_exit(0);
        }
        CHECK_THAT(::waitpid(child, nullptr, 0) == child);
      }
      caller.join();
      ::close(fd);
    });

}  // namespace
