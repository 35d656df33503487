// getpeername: who the peer is, and from when on nobody can say.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "tests/posix/pair.h"
#include "tests/posix/state.h"

namespace {

using namespace pair;

// Who the peer is, which nobody can say of a connection that is over: before
// what is given for the answer is looked at.
void AskForPeer(const char* when, int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  Result(when, ::getpeername(fd, address, &length));
  Result("own", ::getsockname(fd, address, &length));
  Result("nowhere", ::getpeername(fd, nullptr, &length));
  Result("no length", ::getpeername(fd, address, nullptr));
  length = static_cast<socklen_t>(-1);
  Result("less than none", ::getpeername(fd, address, &length));
  length = 0;
  Result("no room", ::getpeername(fd, address, &length));
  Log("%u", length);
  length = sizeof name;
  Result("by number",
         ::syscall(SYS_getpeername, fd, static_cast<void*>(&name), &length));
}

Case peer_of_the_ended(
    "peer_when_both_have_ended",
    [](int fd) {
      AskForPeer("open", fd);
      ::shutdown(fd, SHUT_WR);
      Barrier();
      AwaitState(fd, TCP_FIN_WAIT2);
      AskForPeer("ended here", fd);
      Barrier();
      AwaitState(fd, TCP_CLOSE);
      AskForPeer("ended there too", fd);
      Barrier();
    },
    [](int fd) {
      Barrier();
      AwaitState(fd, TCP_CLOSE_WAIT);
      AskForPeer("ended there", fd);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      AskForPeer("and read", fd);
      Barrier();
      ::shutdown(fd, SHUT_RDWR);
      AwaitState(fd, TCP_CLOSE);
      AskForPeer("ended here too", fd);
      Barrier();
    });

Case peer_of_the_shut(
    "peer_when_it_is_shut",
    [](int fd) {
      Barrier();
      ::shutdown(fd, SHUT_RD);
      AskForPeer("reading", fd);
      SendAll(fd, "abc", 3);
      Barrier();
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      ::shutdown(fd, SHUT_RDWR);
      AwaitState(fd, TCP_FIN_WAIT2);
      AskForPeer("both", fd);
      Barrier();
      Barrier();
      Barrier();
      AwaitState(fd, TCP_CLOSE);
      AskForPeer("and closed there", fd);
    });

void CloseAndWait(int fd) {
  ::close(fd);
  Barrier();
  Barrier();
}

// What is written to an end that is closed comes back as a reset.
Case peer_of_the_closed("peer_when_it_has_been_written_to", CloseAndWait,
                        [](int fd) {
                          Barrier();
                          AwaitState(fd, TCP_CLOSE_WAIT);
                          AskForPeer("closed there", fd);
                          Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
                          AwaitState(fd, TCP_CLOSE);
                          AskForPeer("reset", fd);
                          char byte;
                          Result("recv", ::recv(fd, &byte, 1, 0));
                          AskForPeer("and read", fd);
                          Barrier();
                        });

Case peer_of_the_reset(
    "peer_when_it_has_reset",
    [](int fd) {
      ResetByClose(fd);
      Barrier();
    },
    [](int fd) {
      Barrier();
      AwaitState(fd, TCP_CLOSE);
      AskForPeer("reset", fd);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      AskForPeer("and read", fd);
    });

// fork() gives the connection to the kernel, which is to know of its end what
// has been told.
void AskBehindFork(int fd, short tells = -1) {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    const int r =
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length);
    ::_exit(r == 0 ? 0 : errno);
  }
  LogChild(child);
  AskForPeer("behind a fork", fd);
  pollfd entry{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
  Result("poll", ::poll(&entry, 1, 0));
  Log("%x", static_cast<unsigned>(entry.revents & tells));
  char byte;
  Result("recv", ::recv(fd, &byte, 1, 0));
  Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
  AskForPeer("and used", fd);
}

Case forked_when_closed("peer_when_written_to_behind_a_fork", CloseAndWait,
                        [](int fd) {
                          Barrier();
                          AwaitState(fd, TCP_CLOSE_WAIT);
                          Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
                          AwaitState(fd, TCP_CLOSE);
                          // (POLLERR does not come back to the kernel with it.)
                          AskBehindFork(fd, ~POLLERR);
                          Barrier();
                        });

Case forked_when_reset(
    "peer_when_it_has_reset_behind_a_fork",
    [](int fd) {
      SendAll(fd, "x", 1);
      Barrier();
      ResetByClose(fd);
      Barrier();
    },
    [](int fd) {
      char first;
      Result("peek", ::recv(fd, &first, 1, MSG_PEEK));
      Barrier();
      Barrier();
      AwaitState(fd, TCP_CLOSE);
      AskBehindFork(fd);
    });

void EndAndAskBehindFork(int fd) {
  ::shutdown(fd, SHUT_WR);
  Barrier();
  AwaitState(fd, TCP_CLOSE);
  AskBehindFork(fd);
  Barrier();
}

Case forked_when_ended("peer_when_both_have_ended_behind_a_fork",
                       EndAndAskBehindFork, EndAndAskBehindFork);

Case peer_of_others(
    "peer_of_what_has_none", [](int) { Barrier(); },
    [](int fd) {
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      int local[2];
      CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, local) == 0);
      const int datagrams = ::socket(AF_INET, SOCK_DGRAM, 0);
      const int unmade = ::socket(AF_INET, SOCK_STREAM, 0);
      int port;
      const int listener = Listen(&port);
      AskForPeer("minus one", -1);
      AskForPeer("none", 1 << 20);
      AskForPeer("a pipe", pipe_fds[0]);
      AskForPeer("of this host", local[0]);
      AskForPeer("datagrams", datagrams);
      AskForPeer("unmade", unmade);
      AskForPeer("a listener", listener);
      const int copy = ::dup(fd);
      AskForPeer("a copy", copy);
      ::close(fd);
      AskForPeer("closed", fd);
      AskForPeer("the copy", copy);
      Barrier();
    });

}  // namespace
