// Programs that enter the kernel past libc's names: syscall(2), io_uring,
// libaio, pidfd_getfd.
#include <fcntl.h>
#include <libaio.h>
#include <liburing.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lib/posix/hooks/uring.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kBulk = 400'000;

void Bulk(int fd, std::uint64_t seed) {
  std::vector<char> buffer(kBulk);
  Pattern(seed, 0, buffer.data(), kBulk);
  SendAll(fd, buffer.data(), kBulk);
}

void CheckBulk(int fd, std::uint64_t seed) {
  std::vector<char> buffer(kBulk);
  RecvAll(fd, buffer.data(), kBulk);
  Log("bulk %d", IsPattern(seed, 0, buffer.data(), kBulk));
}

// The other end of most cases.
void SendThenCheck(int fd) {
  Bulk(fd, 1);
  CheckBulk(fd, 2);
}

// One end moves bytes by the way under test, in turn with named calls; the
// other one by named calls alone.
template <class Read>
void ReadBulk(int fd, std::uint64_t seed, Read&& read_some) {
  std::vector<char> buffer(20'000);
  std::size_t at = 0;
  for (int i = 0; at < kBulk; ++i) {
    const std::size_t room = std::min(buffer.size(), kBulk - at);
    const long n = i % 3 == 2 ? ::recv(fd, buffer.data(), room, 0)
                              : read_some(buffer.data(), room);
    if (n <= 0) Fail("read %ld at %zu: %s", n, at, ErrorName(errno));
    if (!IsPattern(seed, at, buffer.data(), static_cast<std::size_t>(n))) {
      Fail("foreign bytes at %zu", at);
    }
    at += static_cast<std::size_t>(n);
  }
  Log("read all");
}

template <class Write>
void WriteBulk(int fd, std::uint64_t seed, Write&& write_some) {
  std::vector<char> buffer(20'000);
  std::size_t at = 0;
  for (int i = 0; at < kBulk; ++i) {
    const std::size_t room = std::min(buffer.size(), kBulk - at);
    Pattern(seed, at, buffer.data(), room);
    const long n = i % 3 == 2 ? ::send(fd, buffer.data(), room, MSG_NOSIGNAL)
                              : write_some(buffer.data(), room);
    if (n <= 0) Fail("write %ld at %zu: %s", n, at, ErrorName(errno));
    at += static_cast<std::size_t>(n);
  }
  Log("wrote all");
}

// --- syscall(2)

Case raw_data("raw_data", SendThenCheck, [](int fd) {
  int turn = 0;
  ReadBulk(fd, 1, [&](void* to, std::size_t room) {
    iovec iov{to, room};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    switch (turn++ % 4) {
      case 0:
        return ::syscall(SYS_read, fd, to, room);
      case 1:
        return ::syscall(SYS_recvfrom, fd, to, room, 0, nullptr, nullptr);
      case 2:
        return ::syscall(SYS_readv, fd, &iov, 1);
      default:
        return ::syscall(SYS_recvmsg, fd, &message, 0);
    }
  });
  WriteBulk(fd, 2, [&](void* from, std::size_t room) {
    iovec iov{from, room};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    switch (turn++ % 4) {
      case 0:
        return ::syscall(SYS_write, fd, from, room);
      case 1:
        return ::syscall(SYS_sendto, fd, from, room, MSG_NOSIGNAL, nullptr, 0);
      case 2:
        return ::syscall(SYS_writev, fd, &iov, 1);
      default:
        return ::syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL);
    }
  });
});

Case raw_waits(
    "raw_waits",
    [](int fd) {
      Barrier();
      SendAll(fd, "ab", 2);
      Barrier();
      Barrier();
      ::close(fd);
    },
    [](int fd) {
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      Result("epoll_ctl",
             ::syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event));
      Result("epoll_wait", ::syscall(SYS_epoll_wait, set, &event, 1, 0));
      Barrier();
      Result("epoll_wait", ::syscall(SYS_epoll_wait, set, &event, 1, -1));
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::syscall(SYS_poll, &one, 1, -1));
      Log("revents %x", static_cast<unsigned>(one.revents));
      char text[4];
      Result("read", ::syscall(SYS_read, fd, text, sizeof text));
      Barrier();
      const int copy = static_cast<int>(::syscall(SYS_dup, fd));
      Result("close", ::syscall(SYS_close, fd));
      Barrier();
      Result("read", ::syscall(SYS_read, copy, text, sizeof text));
      Result("close", ::syscall(SYS_close, copy));
      Result("read closed", ::syscall(SYS_read, copy, text, sizeof text));
      Result("read null", ::syscall(SYS_read, -1, nullptr, 1));
    });

// What is left of a time-out is told, but by epoll_pwait2.
Case raw_times(
    "raw_times", [](int fd) { LogDrain(fd); },
    [](int fd) {
      pollfd one{};
      fd_set in;
      fd_set out;
      timespec time;
      timeval brief;
      const auto begin = [&](short events, time_t seconds) {
        one = {fd, events, 0};
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_SET(fd, events == POLLIN ? &in : &out);
        time = {seconds, 30'000'000};
        brief = {seconds, 30'000};
      };
      const auto log = [&](const char* what, long result) {
        Log("%s: %ld, revents %x, left %d %d, %d %d", what, result, one.revents,
            static_cast<int>(time.tv_sec), time.tv_nsec != 0,
            static_cast<int>(brief.tv_sec), brief.tv_usec != 0);
      };
      for (const time_t seconds : {0, 3}) {
        // Nothing comes, or there is room.
        const short events = seconds == 0 ? POLLIN : POLLOUT;
        begin(events, seconds);
        log("ppoll", ::syscall(SYS_ppoll, &one, 1, &time, nullptr, 0));
        begin(events, seconds);
        log("select", ::syscall(SYS_select, fd + 1, &in, &out, 0, &brief));
        begin(events, seconds);
        log("pselect6",
            ::syscall(SYS_pselect6, fd + 1, &in, &out, 0, &time, nullptr));
      }
      begin(POLLIN, 0);
      log("ppoll of none", ::syscall(SYS_ppoll, nullptr, 0, &time, nullptr, 0));
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      begin(POLLIN, 0);
      log("epoll_pwait2",
          ::syscall(SYS_epoll_pwait2, set, &event, 1, &time, nullptr, 0));
      ::close(set);
      // No time at all stays none, and one that is not normal becomes so.
      time = {0, 0};
      log("ppoll", ::syscall(SYS_ppoll, &one, 1, &time, nullptr, 0));
      begin(POLLOUT, 0);
      brief = {1, 3'500'000};
      log("select", ::syscall(SYS_select, fd + 1, 0, &out, 0, &brief));
      ::shutdown(fd, SHUT_WR);
    });

Case raw_close(
    "raw_close",
    [](int fd) {
      int error;
      const std::size_t n = Drain(fd, &error);
      Log("drained %zu, %s", n, error == 0 ? "EOF" : ErrorName(error));
    },
    [](int fd) {
      Bulk(fd, 1);
      Result("shutdown", ::syscall(SYS_shutdown, fd, SHUT_WR));
      char byte;
      Result("read", ::syscall(SYS_read, fd, &byte, 1));
      ::syscall(SYS_exit_group, 0);
    });

// Numbers far above the program's own are none that it has opened: closed by
// who closes all, or made another file's, they are still nothing that the
// stream could miss.
Case raw_close_all(
    "raw_close_all", [](int fd) { Echo(fd, 300); },
    [](int fd) {
      int refused = 0;
      for (int number = 100; number < 70'000; ++number) {
        if (::fcntl(number, F_GETFD) < 0) continue;
        refused += ::syscall(SYS_dup2, fd, number) < 0 && errno == EBUSY;
        refused += ::syscall(SYS_dup3, fd, number, 0) < 0 && errno == EBUSY;
        ::syscall(SYS_close, number);
      }
      std::fprintf(stderr, "refused: %d\n", refused);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      Result("epoll_ctl", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
      for (int i = 0; i < 300; ++i) {
        char text[16] = {};
        SendAll(fd, text, sizeof text);
        if (::epoll_wait(set, &event, 1, 5000) != 1) {
          Log("nothing came");
          break;
        }
        RecvAll(fd, text, sizeof text);
      }
      ::close(set);
      Log("done");
    });

// --- io_uring

class Ring {
 public:
  Ring() {
    const int r = ::io_uring_queue_init(8, &ring_, 0);
    Log("ring: %s", r == 0 ? "made" : ErrorName(-r));
    ok_ = r == 0;
    if (!ok_) {
      std::fprintf(stderr, "SKIPPED: io_uring is not to be had here: %s\n",
                   ErrorName(-r));
    }
  }
  bool ok() const { return ok_; }
  io_uring* get() { return &ring_; }
  template <class Fill>
  long Do(Fill&& fill) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    fill(sqe);
    if (::io_uring_submit(&ring_) != 1) Fail("submit");
    io_uring_cqe* cqe = nullptr;
    if (::io_uring_wait_cqe(&ring_, &cqe) != 0) Fail("wait");
    const long result = cqe->res;
    ::io_uring_cqe_seen(&ring_, cqe);
    if (result < 0) errno = static_cast<int>(-result);
    return result;
  }

 private:
  io_uring ring_{};
  bool ok_ = false;
};

void ByRing(int fd, Ring& ring) {
  ReadBulk(fd, 1, [&](void* to, std::size_t room) {
    return ring.Do(
        [&](io_uring_sqe* sqe) { ::io_uring_prep_recv(sqe, fd, to, room, 0); });
  });
  WriteBulk(fd, 2, [&](void* from, std::size_t room) {
    return ring.Do([&](io_uring_sqe* sqe) {
      ::io_uring_prep_write(sqe, fd, from, static_cast<unsigned>(room), 0);
    });
  });
}

Case ring_late("io_uring", SendThenCheck, [](int fd) {
  Ring ring;
  if (ring.ok()) {
    ByRing(fd, ring);
  } else {
    CheckBulk(fd, 1);
    Bulk(fd, 2);
  }
});

Case ring_early(
    "io_uring_first",
    [](int fd) {
      char message[8];
      for (int i = 0; i < 100; ++i) {
        RecvAll(fd, message, sizeof message);
        SendAll(fd, message, sizeof message);
      }
      Bulk(fd, 1);
      CheckBulk(fd, 2);
    },
    [](int fd) {
      Ring ring;
      char message[8] = "message";
      for (int i = 0; i < 100; ++i) {
        SendAll(fd, message, sizeof message);
        RecvAll(fd, message, sizeof message);
      }
      if (ring.ok()) {
        ByRing(fd, ring);
      } else {
        CheckBulk(fd, 1);
        Bulk(fd, 2);
      }
    },
    {.warm = false});

// Once a ring is there, requests that do not name the connection leave it on
// its lane.
Case ring_of_files(
    "io_uring_files",
    [](int fd) {
      Barrier();
      for (int i = 0; i < 4; ++i) Bulk(fd, 1);
      CheckBulk(fd, 2);
    },
    [](int fd) {
      Ring ring;
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      const std::uint64_t before = TcpBytes(fd);
      Barrier();
      char message[8] = "message", back[8];
      static char room[4096];
      for (int i = 0; i < 4; ++i) {
        CheckBulk(fd, 1);
        if (!ring.ok()) continue;
        // What stands where others name a descriptor is a number of buffers.
        Result("buffers", ring.Do([&](io_uring_sqe* sqe) {
          ::io_uring_prep_provide_buffers(sqe, room, 4, fd, 1, 0);
        }));
        ring.Do([&](io_uring_sqe* sqe) {
          ::io_uring_prep_write(sqe, ends[1], message, sizeof message, 0);
        });
        Result("of the pipe", ring.Do([&](io_uring_sqe* sqe) {
          ::io_uring_prep_read(sqe, ends[0], back, sizeof back, 0);
        }));
      }
      // (A connection that only waits asks for little.)
      if (const char* warm = std::getenv("PAIR_WARM");
          warm != nullptr && std::strcmp(warm, "lane") == 0 &&
          TcpBytes(fd) - before > kBulk) {
        Fail("%lu bytes went over TCP",
             static_cast<unsigned long>(TcpBytes(fd) - before));
      }
      Bulk(fd, 2);
    });

// Requests that name it by its place in a table, as the source of a splice, or
// that wait for it.
Case ring_registered("io_uring_registered", SendThenCheck, [](int fd) {
  Ring ring;
  if (ring.ok()) {
    Log("nothing there: %s", ErrorName(-::io_uring_register_files(
                                 ring.get(), reinterpret_cast<int*>(16), 1)));
    const int table[] = {-1, fd};
    Result("register", ::io_uring_register_files(ring.get(), table, 2));
    ReadBulk(fd, 1, [&](void* to, std::size_t room) {
      return ring.Do([&](io_uring_sqe* sqe) {
        ::io_uring_prep_recv(sqe, 1, to, room, 0);
        sqe->flags |= IOSQE_FIXED_FILE;
      });
    });
  } else {
    CheckBulk(fd, 1);
  }
  Bulk(fd, 2);
});

Case ring_splice("io_uring_splice", SendThenCheck, [](int fd) {
  Ring ring;
  if (ring.ok()) {
    int ends[2];
    CHECK_THAT(::pipe(ends) == 0);
    ReadBulk(fd, 1, [&](void* to, std::size_t room) -> long {
      const long n = ring.Do([&](io_uring_sqe* sqe) {
        ::io_uring_prep_splice(sqe, fd, -1, ends[1], -1,
                               static_cast<unsigned>(room), 0);
      });
      return n <= 0 ? n : ::read(ends[0], to, static_cast<std::size_t>(n));
    });
  } else {
    CheckBulk(fd, 1);
  }
  Bulk(fd, 2);
});

// The connection is not what is read or written, but what is passed on; whoever
// has it then knows nothing of a lane.
Case ring_passes(
    "io_uring_passes",
    [](int) {
      const int listener = ListenAndTell();
      const int fd = Accept(listener);
      Warm(fd);
      SendThenCheck(fd);
      Barrier();
    },
    [](int) {
      int ends[2];
      CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      char byte = 'f';
      iovec part{&byte, 1};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        CHECK_THAT(::recvmsg(ends[1], &message, 0) == 1);
        int fd;
        std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        // (The parent has its line in the log first.)
        CHECK_THAT(::read(ends[1], &byte, 1) == 1);
        CheckBulk(fd, 1);
        Bulk(fd, 2);
        ::_exit(0);
      }
      const int fd = Connect(HearPort());
      Warm(fd);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
      Ring ring;
      Result("sendmsg", ring.ok() ? ring.Do([&](io_uring_sqe* sqe) {
        ::io_uring_prep_sendmsg(sqe, ends[0], &message, 0);
      })
                                  : ::sendmsg(ends[0], &message, 0));
      CHECK_THAT(::write(ends[0], "g", 1) == 1);
      ::close(fd);
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      Log("child: %d", status);
      Barrier();
    },
    {.warm = false, .connect = false});

Case ring_poll(
    "io_uring_poll",
    [](int fd) {
      Barrier();
      Bulk(fd, 1);
      CheckBulk(fd, 2);
    },
    [](int fd) {
      Ring ring;
      const int set = ::epoll_create1(0);
      epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      Barrier();
      const std::uint64_t before = TcpBytes(fd);
      if (ring.ok()) {
        // The set itself is what the kernel waits for.
        Result("poll", ring.Do([&](io_uring_sqe* sqe) {
          ::io_uring_prep_poll_add(sqe, set, POLLIN);
        }));
      }
      CheckBulk(fd, 1);
      const char* warm = std::getenv("PAIR_WARM");
      const bool lane = warm != nullptr && std::strcmp(warm, "lane") == 0;
      Log("lane kept: %d", !lane || TcpBytes(fd) < before + 10'000);
      Bulk(fd, 2);
    });

// The part of liburing's struct that rcsock reads.
namespace uring = rcsock::posix::uring;
static_assert(offsetof(io_uring, sq.kring_mask) ==
              offsetof(uring::Ring, kring_mask));
static_assert(offsetof(io_uring, sq.sqes) == offsetof(uring::Ring, sqes));
static_assert(offsetof(io_uring, sq.sqe_head) ==
              offsetof(uring::Ring, sqe_head));
static_assert(offsetof(io_uring, sq.sqe_tail) ==
              offsetof(uring::Ring, sqe_tail));
static_assert(offsetof(io_uring, flags) == offsetof(uring::Ring, flags));
static_assert(offsetof(io_uring, ring_fd) == offsetof(uring::Ring, fd));

// --- libaio

Case aio("libaio", SendThenCheck, [](int fd) {
  io_context_t context{};
  const int r = ::io_setup(4, &context);
  Log("context: %s", r == 0 ? "made" : ErrorName(-r));
  if (r != 0) {
    CheckBulk(fd, 1);
    Bulk(fd, 2);
    return;
  }
  const auto run = [&](iocb* block) -> long {
    if (::io_submit(context, 1, &block) != 1) Fail("io_submit");
    io_event event{};
    if (::io_getevents(context, 1, 1, &event, nullptr) != 1) {
      Fail("io_getevents");
    }
    return static_cast<long>(event.res);
  };
  ReadBulk(fd, 1, [&](void* to, std::size_t room) {
    iocb block{};
    ::io_prep_pread(&block, fd, to, room, 0);
    return run(&block);
  });
  WriteBulk(fd, 2, [&](void* from, std::size_t room) {
    iocb block{};
    ::io_prep_pwrite(&block, fd, from, room, 0);
    return run(&block);
  });
});

// --- pidfd_getfd

Case pidfd("pidfd_of_itself", SendThenCheck, [](int fd) {
  const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  const int copy = static_cast<int>(::syscall(SYS_pidfd_getfd, self, fd, 0));
  Log("taken %d", copy >= 0);
  if (copy < 0) {
    CheckBulk(fd, 1);
    Bulk(fd, 2);
    return;
  }
  ReadBulk(fd, 1,
           [&](void* to, std::size_t room) { return ::read(copy, to, room); });
  WriteBulk(fd, 2, [&](void* from, std::size_t room) {
    return ::write(copy, from, room);
  });
});

}  // namespace
