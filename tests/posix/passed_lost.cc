// Connections that are passed by SCM_RIGHTS where nobody can know who holds
// them, or that no lane can follow: they work, over TCP.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/posix/passed.h"

namespace {

using namespace pair;

// Where nobody can know who holds it, it works, by TCP.
Case truncated(
    "passed_truncated",
    [](int) {
      const Channel channel;
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      Pass(channel.ends[0], fd);
      Message message(CMSG_SPACE(0));
      Result("recvmsg", ::recvmsg(channel.ends[1], &message.header, 0));
      Log("truncated: %d", (message.header.msg_flags & MSG_CTRUNC) != 0);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      Call(fd, 100);
      ::close(fd);
    },
    kByItself);

Case receiver_killed(
    "passed_to_one_that_is_killed",
    [](int) {
      Channel channel;
      const pid_t worker = Worker([] { ::pause(); });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      Pass(channel.ends[0], fd);
      ::kill(worker, SIGKILL);
      LogChild(worker);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      Call(fd, 100);
      ::close(fd);
    },
    kByItself);

Case sender_killed(
    "passed_by_one_that_is_killed",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        channel.Await();
        Echo(fd, 100);
        LogDrain(fd);
      });
      const int listener = ListenAndTell();
      const pid_t sender = Worker([&] {
        const int fd = ::accept(listener, nullptr, nullptr);
        WarmAs(fd, false);
        Pass(channel.ends[0], fd);
        ::kill(::getpid(), SIGKILL);
      });
      LogChild(sender);
      channel.Say();
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      Call(fd, 100);
      ::close(fd);
    },
    kByItself);

Case half_closed(
    "passed_half_closed",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        LogDrain(fd);
        SendAll(fd, "the end", 7);
        ::close(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      AwaitPoll(fd, POLLRDHUP, POLLRDHUP);
      Pass(channel.ends[0], fd);
      ::close(fd);
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      SendAll(fd, "some", 4);
      CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
      LogDrain(fd);
      ::close(fd);
    },
    kByItself);

// A program without rcsock: it takes the connection, hands it to a worker, and
// goes on with it afterwards.
constexpr char kForwarder[] =
    "import os, socket, sys\n"
    "a, b, c = (socket.socket(fileno=int(n)) for n in sys.argv[1:])\n"
    "data, fds, flags, where = socket.recv_fds(a, 1, 1)\n"
    "tcp = socket.socket(fileno=fds[0])\n"
    "socket.send_fds(b, [b'f'], fds)\n"
    "c.recv(1)\n"
    "for i in range(50):\n"
    "  tcp.sendall(tcp.recv(16, socket.MSG_WAITALL))\n";

Case through_another(
    "passed_through_another_program",
    [](int) {
      const Channel in;
      const Channel out;
      const Channel go;
      const pid_t other = Worker([&] {
        const std::string a = std::to_string(in.ends[1]);
        const std::string b = std::to_string(out.ends[0]);
        const std::string c = std::to_string(go.ends[1]);
        ::unsetenv("LD_PRELOAD");
        ::execlp("python3", "python3", "-c", kForwarder, a.c_str(), b.c_str(),
                 c.c_str(), static_cast<char*>(nullptr));
      });
      const pid_t worker = Worker([&] {
        const int fd = Take(out.ends[1]);
        Echo(fd, 100);
        go.Say();
        ::waitpid(other, nullptr, 0);
        ::close(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Pass(in.ends[0], fd);
      ::close(fd);
      LogChild(other);
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Call(fd, 100);
      Call(fd, 50);
      ::close(fd);
    },
    kByItself);
// An option that no lane honours stays with the connection.
void WithAnOption(int) {
  const Channel channel;
  const pid_t worker = Worker([&] {
    const int fd = Take(channel.ends[1]);
    char text[4];
    RecvAll(fd, text, 4);
    SendAll(fd, text, 4);
    AwaitBytes(fd, 2);
    pollfd one{fd, POLLIN, 0};
    Result("poll", ::poll(&one, 1, 0));
    RecvAll(fd, text, 2);
    SendAll(fd, text, 2);
    LogDrain(fd);
  });
  const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
  const int low = 4;
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0);
  Pass(channel.ends[0], fd);
  ::close(fd);
  LogChild(worker);
}

Case with_an_option(
    "passed_with_an_option", WithAnOption,
    [](int) {
      const int fd = Connect(HearPort());
      char text[4];
      SendAll(fd, "wxyz", 4);
      RecvAll(fd, text, 4);
      SendAll(fd, "yz", 2);
      RecvAll(fd, text, 2);
      ::close(fd);
    },
    kByItself);

}  // namespace
