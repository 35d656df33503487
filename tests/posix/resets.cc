// Connections that end for one who still sends, or has not read: resets, EPIPE,
// SIGPIPE.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "tests/posix/bulk.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

// The peer closes; a write is taken, and the answer to it ends the connection.
Case write_after_close(
    "write_after_close",
    [](int fd) {
      Result("close", ::close(fd));
      Barrier();
      Barrier();
    },
    [](int fd) {
      Barrier();
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
      Result("first send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      for (;;) {
        const ssize_t n = ::send(fd, "x", 1, MSG_NOSIGNAL);
        if (n < 0) {
          Result("a later send", n);
          break;
        }
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 1);
      }
      Result("send again", ::send(fd, "x", 1, MSG_NOSIGNAL));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      AwaitPoll(fd, POLLIN | POLLRDHUP | POLLOUT, POLLHUP);
      Result("close", ::close(fd));
      Barrier();
    });

// The peer exits: a last word to it is taken all the same.
Case write_after_exit(
    "write_after_exit",
    [](int) {
      Barrier();
      ::_exit(0);
    },
    [](int fd) {
      Barrier();
      LogDrain(fd);
      Result("first send", ::write(fd, "x", 1));
    });

volatile sig_atomic_t pipes = 0;

Case sigpipe(
    "sigpipe",
    [](int fd) {
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      struct sigaction action {};
      action.sa_handler = [](int) { pipes = pipes + 1; };
      ::sigaction(SIGPIPE, &action, nullptr);
      Barrier();
      LogDrain(fd);
      ssize_t n;
      do {
        n = ::write(fd, "x", 1);
      } while (n > 0);
      Result("write", n);
      Log("SIGPIPE %d times", static_cast<int>(pipes));
      Result("send, no signal", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Log("SIGPIPE %d times", static_cast<int>(pipes));
      // And the default action.
      ::signal(SIGPIPE, SIG_DFL);
      ::write(fd, "x", 1);
      Log("not reached");
    });

Case own_shutdown_sigpipe(
    "own_shutdown_sigpipe", [](int fd) { LogDrain(fd); },
    [](int fd) {
      struct sigaction action {};
      action.sa_handler = [](int) { pipes = pipes + 1; };
      ::sigaction(SIGPIPE, &action, nullptr);
      ::shutdown(fd, SHUT_WR);
      Result("write", ::write(fd, "x", 1));
      Result("write nothing", ::write(fd, "", 0));
      Log("SIGPIPE %d times", static_cast<int>(pipes));
    });

// Unread data at close: the peer gets a reset.
Case close_unread(
    "close_unread",
    [](int fd) {
      Barrier();
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      Result("close", ::close(fd));
      Barrier();
      Barrier();
    },
    [](int fd) {
      SendAll(fd, "never read", 10);
      Barrier();
      Barrier();
      // The reset throws away nothing here: nothing was sent to us.
      LogDrain(fd);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Barrier();
    });

// What poll says of a reset, until somebody has been told of it: by what each
// letter of `order` does.
const char* const kOrders[] = {"wp",  "wpr",  "wrp",  "wps", "weps",
                               "rwp", "rwpr", "rwsp", "wepr"};
const char* const kResets[] = {"p", "pr", "prp", "psp", "pep", "rp"};

void SayAll(int fd, const char* order) {
  for (const char* at = order; *at != 0; ++at) {
    char byte = 'x';
    if (*at == 'w') {
      // The answer is a reset.
      Result("write", ::send(fd, &byte, 1, MSG_NOSIGNAL));
      AwaitPoll(fd, 0, POLLHUP);
    } else if (*at == 'r') {
      Result("recv", ::recv(fd, &byte, 1, 0));
    } else if (*at == 's') {
      Result("send", ::send(fd, &byte, 1, MSG_NOSIGNAL));
    } else if (*at == 'e') {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      Log("error: %s", error == 0 ? "none" : ErrorName(error));
    }
    pollfd one{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    ::poll(&one, 1, 0);
    Log("%c: %x", *at, static_cast<unsigned>(one.revents));
  }
}

Case reset_polled(
    "reset_polled",
    [](int) {
      const int listener = ListenAndTell();
      for (std::size_t i = 0; i < std::size(kOrders) + std::size(kResets);
           ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        if (i >= std::size(kOrders)) {
          pollfd one{fd, POLLIN, 0};
          ::poll(&one, 1, -1);
        }
        ::close(fd);
        Barrier();
        Barrier();
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (const char* order : kOrders) {
        const int fd = Connect(port);
        Warm(fd);
        Barrier();
        AwaitPoll(fd, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
        Log("closed, %s", order);
        SayAll(fd, order);
        ::close(fd);
        Barrier();
      }
      for (const char* order : kResets) {
        const int fd = Connect(port);
        Warm(fd);
        SendAll(fd, "never read", 10);
        Barrier();
        AwaitPoll(fd, 0, POLLHUP);
        Log("reset, %s", order);
        SayAll(fd, order);
        ::close(fd);
        Barrier();
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

Case linger_reset(
    "linger_reset",
    [](int fd) {
      linger option{1, 0};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option) == 0);
      Result("close", ::close(fd));
      Barrier();
    },
    [](int fd) {
      LogDrain(fd);
      LogDrain(fd);
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Barrier();
    });

// The same by the end of the process, which nobody but the kernel closes for.
void ExitsLingering(int fd) {
  const linger option{1, 0};
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option) ==
             0);
  Barrier();
}
void IsReset(int fd) {
  Barrier();
  LogDrain(fd);
}
Case linger_exit("linger_exit", ExitsLingering, IsReset);
Case linger_exit_copy(
    "linger_exit_of_a_copy",
    [](int fd) {
      CHECK_THAT(::dup(fd) >= 0);
      ExitsLingering(fd);
      ::close(fd);
    },
    IsReset);

// Whoever sees by TCP_INFO that it is over, as soon as it can be seen, is told
// the same by shutdown.
enum class Over { kLinger, kUnread, kShut, kCount };
int Overs() { return Scale(20); }

Case shutdown_when_closed(
    "shutdown_when_closed",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < Overs() * static_cast<int>(Over::kCount); ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        Barrier();
        const auto over = static_cast<Over>(i / Overs());
        if (over == Over::kLinger) {
          const linger now{1, 0};
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        } else {
          pollfd one{fd, POLLIN, 0};
          ::poll(&one, 1, -1);
        }
        if (over == Over::kShut) {
          char byte;
          CHECK_THAT(::recv(fd, &byte, 1, 0) == 0);
          ::shutdown(fd, SHUT_WR);
          Barrier();
        }
        ::close(fd);
        Barrier();
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      int told[static_cast<int>(Over::kCount)][2] = {};
      for (int i = 0; i < Overs() * static_cast<int>(Over::kCount); ++i) {
        const int fd = Connect(port);
        Warm(fd);
        const auto over = static_cast<Over>(i / Overs());
        if (over == Over::kUnread) SendAll(fd, "never read", 10);
        if (over == Over::kShut) ::shutdown(fd, SHUT_WR);
        Barrier();
        tcp_info info{};
        do {
          socklen_t length = sizeof info;
          CHECK_THAT(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) ==
                     0);
        } while (info.tcpi_state != TCP_CLOSE);
        for (int& n : told[i / Overs()]) {
          if (::shutdown(fd, SHUT_WR) < 0 && errno == ENOTCONN) ++n;
        }
        if (over == Over::kShut) Barrier();
        ::close(fd);
        Barrier();
      }
      for (const auto& both : told) Log("told %d, %d", both[0], both[1]);
    },
    {.warm = false, .connect = false, .seconds = 60});

Case exit_unread(
    "exit_unread",
    [](int fd) {
      Barrier();
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      ::exit(0);
    },
    [](int fd) {
      SendAll(fd, "never read", 10);
      Barrier();
      LogDrain(fd);
    });

Case blocked_writer(
    "blocked_writer_peer_closes",
    [](int fd) {
      char text[1000];
      RecvAll(fd, text, sizeof text);
      Barrier();
      Result("close", ::close(fd));
    },
    [](int fd) {
      std::vector<char> big(1 << 20);
      SendAll(fd, big.data(), 2000);
      Barrier();
      ssize_t n;
      do {
        n = ::send(fd, big.data(), big.size(), MSG_NOSIGNAL);
      } while (n > 0);
      // Which of the two TCP gives depends on whether the close came first.
      Log("send ends: %s",
          errno == ECONNRESET || errno == EPIPE ? "reset" : ErrorName(errno));
    });

// The reader closes its descriptor in the middle of the other's bulk.
Case close_in_bulk(
    "close_in_bulk",
    [](int fd) {
      RecvEvenly(fd, 3, 5'000'000);
      Result("close", ::close(fd));
    },
    [](int fd) {
      std::vector<char> buffer(100'000);
      std::size_t at = 0;
      for (;;) {
        Pattern(3, at, buffer.data(), buffer.size());
        const ssize_t n =
            ::send(fd, buffer.data(), buffer.size(), MSG_NOSIGNAL);
        if (n <= 0) break;
        at += static_cast<std::size_t>(n);
      }
      Log("send ends: %s",
          errno == ECONNRESET || errno == EPIPE ? "reset" : ErrorName(errno));
      CHECK_THAT(at >= 5'000'000);
    });

}  // namespace
