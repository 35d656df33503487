// What a connection says of itself, whatever carries its bytes: its state, its
// names, what its descriptor is; and what becomes of calls that make a
// connection, on one that is made.
#include <execinfo.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/state.h"

namespace {

using namespace pair;

// Until poll says all of `wanted`, or for so long that it never will.
void PollForLong(int fd, int events, int wanted) {
  pollfd one{fd, static_cast<short>(events), 0};
  for (int i = 0; i < 3000; ++i) {
    ::poll(&one, 1, 1);
    if ((one.revents & wanted) == wanted) break;
    ::poll(nullptr, 0, 1);
  }
  Log("poll %x", static_cast<unsigned>(one.revents));
}

// Servers look whether it is worth to go on (Puma, Unicorn): a client that has
// gone leaves CLOSE_WAIT, read or not.
Case peer_shut(
    "state_when_the_peer_has_shut",
    [](int fd) {
      SendAll(fd, "abc", 3);
      ::shutdown(fd, SHUT_WR);
      AwaitState(fd, TCP_FIN_WAIT2);
      Barrier();
      Barrier();
      AwaitState(fd, TCP_CLOSE);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Log("%s", StateName(State(fd)));
    },
    [](int fd) {
      Barrier();
      AwaitState(fd, TCP_CLOSE_WAIT);
      char text[4];
      Result("recv", ::recv(fd, text, 3, 0));
      Result("recv", ::recv(fd, text, 3, 0));
      Log("%s", StateName(State(fd)));
      ::shutdown(fd, SHUT_WR);
      AwaitState(fd, TCP_CLOSE);
      Barrier();
    });

Case peer_closed(
    "state_when_the_peer_has_closed",
    [](int fd) {
      SendAll(fd, "abc", 3);
      ::close(fd);
      Barrier();
      Barrier();
    },
    [](int fd) {
      Barrier();
      AwaitState(fd, TCP_CLOSE_WAIT);
      // As much of it as is asked for.
      unsigned char some[4] = {9, 9, 9, 9};
      socklen_t length = 1;
      Result("one byte",
             ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, some, &length));
      Log("%u: %s, %u", length, StateName(some[0]), some[1]);
      length = 0;
      some[0] = 9;
      Result("no byte", ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, some, &length));
      Log("%u: %u", length, some[0]);
      char text[4];
      Result("recv", ::recv(fd, text, 3, 0));
      Result("recv", ::recv(fd, text, 3, 0));
      Log("%s", StateName(State(fd)));
      Barrier();
    });

Case peer_reset(
    "state_when_the_peer_has_reset",
    [](int fd) {
      ResetByClose(fd);
      Barrier();
    },
    [](int fd) {
      Barrier();
      AwaitState(fd, TCP_CLOSE);
      sockaddr_storage name{};
      socklen_t length = sizeof name;
      auto* const address = reinterpret_cast<sockaddr*>(&name);
      Result("getpeername", ::getpeername(fd, address, &length));
      Result("getsockname", ::getsockname(fd, address, &length));
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Result("recv", ::recv(fd, &byte, 1, 0));
    });

Case own_shut(
    "state_when_it_has_shut_itself",
    [](int fd) {
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Barrier();
      Barrier();
    },
    [](int fd) {
      ::shutdown(fd, SHUT_WR);
      Barrier();
      AwaitState(fd, TCP_FIN_WAIT2);
      Result("again", ::shutdown(fd, SHUT_WR));
      Result("reading", ::shutdown(fd, SHUT_RD));
      Result("both", ::shutdown(fd, SHUT_RDWR));
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Result("send nothing", ::send(fd, "", 0, MSG_NOSIGNAL));
      AwaitState(fd, TCP_FIN_WAIT2);
      Barrier();
    });

// Both have said that they are done, and what the other has said is not read.
Case shut_when_over(
    "shutdown_when_both_have_ended",
    [](int fd) {
      SendAll(fd, "abc", 3);
      ::shutdown(fd, SHUT_WR);
      Barrier();
      AwaitState(fd, TCP_CLOSE);
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      Barrier();
      Barrier();
    },
    [](int fd) {
      ::shutdown(fd, SHUT_WR);
      Barrier();
      PollForLong(fd, POLLIN | POLLRDHUP, POLLHUP);
      AwaitState(fd, TCP_CLOSE);
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      Result("both", ::shutdown(fd, SHUT_RDWR));
      char text[4];
      Result("recv", ::recv(fd, text, sizeof text, 0));
      Result("recv", ::recv(fd, text, sizeof text, 0));
      Result("shutdown", ::shutdown(fd, SHUT_RDWR));
      Barrier();
      Barrier();
    });

// What makes a connection, of one that is made.
Case made_already(
    "made_already",
    [](int fd) {
      Echo(fd, 50);
      Barrier();
    },
    [](int fd) {
      sockaddr_in to{};
      socklen_t length = sizeof to;
      auto* const address = reinterpret_cast<sockaddr*>(&to);
      CHECK_THAT(::getpeername(fd, address, &length) == 0);
      Result("connect", ::connect(fd, address, length));
      Result("connect, no length", ::connect(fd, address, 0));
      Result("connect, null", ::connect(fd, nullptr, length));
      Result("bind", ::bind(fd, address, length));
      Result("listen", ::listen(fd, 1));
      Result("accept", ::accept(fd, nullptr, nullptr));
      Result("accept4, flags", ::accept4(fd, nullptr, nullptr, 1 << 5));
      int value = -1;
      socklen_t size = sizeof value;
      for (const int name : {SO_ACCEPTCONN, SO_TYPE, SO_PROTOCOL, SO_DOMAIN,
                             SO_ERROR, SO_RCVLOWAT, SO_SNDLOWAT}) {
        Result("get", ::getsockopt(fd, SOL_SOCKET, name, &value, &size));
        Log("%d", value);
      }
      Call(fd, 50);
      Barrier();
    });

// A connect() that was under way is told its end by another, whenever that
// comes.
Case connected_late(
    "connect_told_late",
    [](int) {
      const int listener = ListenAndTell();
      const int fd = Accept(listener);
      Warm(fd);
      Echo(fd, 400);
      Barrier();
    },
    [](int) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      sockaddr_in to = posix_test::Loopback(static_cast<int>(Hear()));
      auto* const address = reinterpret_cast<sockaddr*>(&to);
      Result("connect", ::connect(fd, address, sizeof to));
      pollfd one{fd, POLLOUT, 0};
      Result("poll", ::poll(&one, 1, 5000));
      SetNonblock(fd, false);
      Warm(fd);
      Call(fd, 200);
      Result("connect", ::connect(fd, address, sizeof to));
      Call(fd, 100);
      Result("connect", ::connect(fd, address, sizeof to));
      Call(fd, 100);
      Barrier();
    },
    {.warm = false, .connect = false});

// One that is connected to itself, as TCP lets it be.
Case self(
    "connected_to_itself", [](int) { Barrier(); },
    [](int) {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in at = posix_test::Loopback(0);
      socklen_t length = sizeof at;
      auto* const address = reinterpret_cast<sockaddr*>(&at);
      CHECK_THAT(::bind(fd, address, length) == 0);
      CHECK_THAT(::getsockname(fd, address, &length) == 0);
      Result("connect", ::connect(fd, address, length));
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      for (int i = 0; i < 2'000; ++i) {
        char text[16];
        Pattern(3, static_cast<std::uint64_t>(i) * 16, text, sizeof text);
        SendAll(fd, text, sizeof text);
        RecvAll(fd, text, sizeof text);
        CHECK_THAT(IsPattern(3, static_cast<std::uint64_t>(i) * 16, text, 16));
        // (A look for a peer has the time to find it.)
        if (i % 100 == 0) ::poll(nullptr, 0, 1);
      }
      ::shutdown(fd, SHUT_WR);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Result("close", ::close(fd));
      Barrier();
    },
    {.warm = false, .connect = false});

// Data that goes with the handshake, where it may.
Case fast_open(
    "fastopen_connect",
    [](int) {
      int port;
      const int listener = Listen(&port);
      for (int i = 0; i < 2; ++i) {
        Tell(port);
        const int fd = Accept(listener);
        char text[8] = {};
        RecvAll(fd, text, 5);
        Log("%s", text);
        Echo(fd, 300);
        int error;
        Log("%zu", Drain(fd, &error));
        ::close(fd);
      }
    },
    [](int) {
      for (const bool option : {false, true}) {
        sockaddr_in to = posix_test::Loopback(static_cast<int>(Hear()));
        auto* const address = reinterpret_cast<sockaddr*>(&to);
        const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
        const int on = 1;
        constexpr int kNoCookie = 34;  // TCP_FASTOPEN_NO_COOKIE
        ::setsockopt(fd, IPPROTO_TCP, kNoCookie, &on, sizeof on);
        if (option) {
          ::setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on);
          Result("connect", ::connect(fd, address, sizeof to));
          Result("send", ::send(fd, "hello", 5, 0));
        } else {
          Result("sendto",
                 ::sendto(fd, "hello", 5, MSG_FASTOPEN, address, sizeof to));
        }
        Call(fd, 300);
        Result("connect", ::connect(fd, address, sizeof to));
        ::close(fd);
      }
    },
    {.warm = false, .connect = false});

// It is a socket, and not a file that has places.
Case as_file(
    "as_a_file",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      Echo(fd, 20);
      Barrier();
      SendAll(fd, "abcdefghij", 10);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      struct stat what {};
      Result("fstat", ::fstat(fd, &what));
      Log("socket %d, mode %o, size %ld, links %ld", S_ISSOCK(what.st_mode),
          what.st_mode & 07777, static_cast<long>(what.st_size),
          static_cast<long>(what.st_nlink));
      Result("lseek", ::lseek(fd, 0, SEEK_CUR));
      Result("lseek", ::lseek(fd, 5, 77));
      Result("ftruncate", ::ftruncate(fd, 0));
      Result("fsync", ::fsync(fd));
      Result("fdatasync", ::fdatasync(fd));
      Log("fadvise %s", ErrorName(::posix_fadvise(fd, 0, 0, 0)));
      Log("fallocate %s", ErrorName(::posix_fallocate(fd, 0, 1)));
      Result("readahead", ::readahead(fd, 0, 1));
      Result("flock", ::flock(fd, LOCK_EX | LOCK_NB));
      Result("flock", ::flock(fd, LOCK_UN));
      Result("fchmod", ::fchmod(fd, 0640));
      Result("fchown",
             ::fchown(fd, static_cast<uid_t>(-1), static_cast<gid_t>(-1)));
      Result("fchdir", ::fchdir(fd));
      Result("isatty", ::isatty(fd));
      Log("%s", ErrorName(errno));
      void* const mapped =
          ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      Result("mmap", mapped == MAP_FAILED ? -1 : 0);
      char path[64];
      char name[64] = {};
      std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
      ::readlink(path, name, sizeof name - 1);
      char wanted[64];
      std::snprintf(wanted, sizeof wanted, "socket:[%lu]",
                    static_cast<unsigned long>(what.st_ino));
      Log("named so %d", std::strcmp(name, wanted) == 0);
      Result("open", ::open(path, O_RDWR));
      std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
      std::FILE* const info = std::fopen(path, "re");
      long place = -1;
      unsigned flags = 0;
      CHECK_THAT(info != nullptr &&
                 std::fscanf(info, "pos: %ld flags: %o", &place, &flags) == 2);
      std::fclose(info);
      Log("at %ld, flags %o", place, flags);
      Log("F_GETFL %o, F_GETFD %d", static_cast<unsigned>(::fcntl(fd, F_GETFL)),
          ::fcntl(fd, F_GETFD));
      Result("F_SETPIPE_SZ", ::fcntl(fd, F_SETPIPE_SZ, 4096));
      Result("F_SETFL", ::fcntl(fd, F_SETFL, O_DIRECT));
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      char byte = 0;
      iovec one{&byte, 1};
      Result("vmsplice", ::vmsplice(fd, &one, 1, 0));
      Result("tee", ::tee(fd, ends[1], 1, 0));
      Result("tee", ::tee(ends[0], fd, 1, 0));
      const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
      Result("copy_file_range",
             ::copy_file_range(file, nullptr, fd, nullptr, 1, 0));
      Result("copy_file_range",
             ::copy_file_range(fd, nullptr, file, nullptr, 1, 0));
      off_t at = 0;
      Result("sendfile", ::sendfile(ends[1], fd, &at, 1));
      Result("sendfile of none", ::sendfile(fd, file, &at, 0));
      AwaitBytes(fd, 10);
      char text[11] = {};
      Result("recv", ::recv(fd, text, 10, 0));
      Log("%s", text);
      Call(fd, 20);
      // Last: a stream that is spliced stays on TCP.
      Barrier();
      AwaitBytes(fd, 10);
      Result("sendfile to a file", ::sendfile(file, fd, nullptr, 4));
      Result("sendfile to itself", ::sendfile(fd, fd, nullptr, 4));
      Result("sendfile of none", ::sendfile(ends[1], fd, nullptr, 0));
      Result("sendfile to a pipe", ::sendfile(ends[1], fd, nullptr, 4));
      Result("read", ::read(ends[0], text, 10));
      Log("%.4s", text);
      Result("recv", ::recv(fd, text, 10, 0));
      Log("%.6s", text);
      loff_t offset = 0;
      Result("splice", ::splice(fd, &offset, ends[1], nullptr, 1, 0));
      Result("splice", ::splice(ends[0], nullptr, fd, &offset, 1, 0));
      Result("splice", ::splice(fd, nullptr, fd, nullptr, 1, 0));
      Result("splice", ::splice(fd, nullptr, ends[1], nullptr, 0, 0));
      Barrier();
    });

// Room for one, and all have something: each has its turn.
Case in_turn(
    "room_for_one_in_turn",
    [](int) {
      const int listener = ListenAndTell();
      int fds[6];
      for (int& fd : fds) {
        fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
      }
      for (const int fd : fds) SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      const int set = ::epoll_create1(0);
      int fds[6];
      for (unsigned i = 0; i < 6; ++i) {
        fds[i] = Connect(port);
        Warm(fds[i]);
      }
      Barrier();
      for (unsigned i = 0; i < 6; ++i) {
        pollfd one{fds[i], POLLIN, 0};
        CHECK_THAT(::poll(&one, 1, 5000) == 1);
        epoll_event event{};
        // One of them is told by another way than the others.
        event.events = i == 2 ? EPOLLIN | EPOLLOUT : EPOLLIN;
        event.data.u32 = i;
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
      }
      // (Each move between TCP and a lane may begin the round anew.)
      int told[6] = {};
      for (int k = 0; k < 600; ++k) {
        epoll_event event{};
        CHECK_THAT(::epoll_wait(set, &event, 1, 5000) == 1);
        ++told[event.data.u32];
      }
      for (const int times : told) Log("told %d", times >= 50);
      Barrier();
      ::close(set);
    },
    {.warm = false, .connect = false});

Case odd_events(
    "odd_events_of_poll",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      const auto look = [&](const char* what, int events, int timeout) {
        pollfd one{fd, static_cast<short>(events), 0x7fff};
        const int n = ::poll(&one, 1, timeout);
        Log("%s: %d, %x", what, n, static_cast<unsigned>(one.revents));
      };
      Barrier();
      AwaitBytes(fd, 3);
      look("band of input", POLLRDBAND, 10);
      look("band of output", POLLWRBAND, 10);
      look("message", POLLMSG, 10);
      look("urgent", POLLPRI, 10);
      look("the end", POLLRDHUP, 10);
      look("errors", POLLERR | POLLHUP | POLLNVAL, 10);
      look("normal", POLLRDNORM | POLLWRNORM, -1);
      look("all", 0x7fff, -1);
      Barrier();
      look("the end alone", POLLRDHUP, -1);
      look("and output", POLLRDHUP | POLLOUT, -1);
      // Numbers that are none.
      pollfd some[3] = {{-7, POLLIN, 1}, {999, POLLIN, 0}, {fd, 0, 0}};
      Result("poll", ::poll(some, 3, -1));
      for (const pollfd& one : some) {
        Log("%x", static_cast<unsigned>(one.revents));
      }
      ::shutdown(fd, SHUT_WR);
      PollForLong(fd, 0, POLLHUP);
      look("all", 0x7fff, -1);
      Barrier();
    });

// A number that is closed is told of beside a connection that always has
// something.
Case closed_number(
    "closed_number_of_poll",
    [](int fd) {
      SendAll(fd, "abc", 3);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 3);
      const int closed = ::dup(fd);
      ::close(closed);
      int told = 0;
      for (int i = 0; i < 100; ++i) {
        pollfd two[2] = {{fd, POLLIN, 0}, {closed, POLLIN, 0}};
        if (::poll(two, 2, -1) == 2 && two[1].revents == POLLNVAL) ++told;
      }
      // (The first may come at once behind another look at the kernel.)
      Log("in most of them %d", told > 80);
      Barrier();
    });

// What libc does by calls of its own.
Case past_the_names(
    "past_the_names_of_calls",
    [](int fd) {
      // (Addresses that are no functions.)
      void* const frames[] = {reinterpret_cast<void*>(16),
                              reinterpret_cast<void*>(32)};
      ::backtrace_symbols_fd(frames, 2, fd);
      SendAll(fd, "end.", 4);
      Barrier();
      // (A number that is none, and one that is no socket.)
      Result("sockatmark", ::sockatmark(-1));
      Result("sockatmark", ::sockatmark(fd));
    },
    [](int fd) {
      std::string all;
      char byte;
      while (all.find("end.") == std::string::npos) {
        RecvAll(fd, &byte, 1);
        all += byte;
      }
      Log("%s", all.c_str());
      Barrier();
    });

// Where the second piece is nowhere, what fits into the first is received.
Case piece_nowhere(
    "piece_that_is_nowhere",
    [](int fd) {
      for (const char* text : {"abc", "abcdefgh"}) {
        SendAll(fd, text, std::strlen(text));
        Barrier();
        Barrier();
      }
    },
    [](int fd) {
      for (const int length : {3, 8}) {
        Barrier();
        AwaitBytes(fd, length);
        char text[16] = {};
        iovec two[2] = {{text, 4}, {nullptr, 4}};
        if (Result("readv", ::readv(fd, two, 2)) > 0) Log("%.4s", text);
        AwaitBytes(fd, length == 3 ? 0 : 8);
        Barrier();
      }
    });

// libc's own calls put something else where the connection was.
Case daemon_over(
    "daemon_over_the_standard_numbers",
    [](int fd) {
      char text[16] = {};
      RecvAll(fd, text, 5);
      Log("%s", text);
      Echo(fd, 300);
      int error;
      Log("rest %zu", Drain(fd, &error));
    },
    [](int fd) {
      std::fflush(nullptr);
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        for (int number = 0; number < 3; ++number) ::dup2(fd, number);
        if (::daemon(0, 0) != 0) ::_exit(1);
        char text[16] = {};
        Result("of nothing", ::read(0, text, sizeof text));
        Result("to nothing", ::write(1, "lost", 4));
        SendAll(fd, "hello", 5);
        Call(fd, 150);
        ::write(1, text, sizeof text);
        Call(fd, 150);
        ::_exit(0);
      }
      ::close(fd);
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0);
    });

}  // namespace
