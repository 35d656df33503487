// Connections that are passed by SCM_RIGHTS while another process keeps them,
// or a message that names them is still under way: no lane comes before the
// last of them has let go.
#include <linux/filter.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/posix/passed.h"

namespace {

using namespace pair;

// A process that takes the connection from `channel`, and answers once `go` has
// said so.
pid_t AnswersLater(const Channel& channel, const Channel& go) {
  return Worker([&] {
    const int fd = Take(channel.ends[1]);
    go.Await();
    AnswerByTcp(fd);
    LogDrain(fd);
  });
}

// A child that was forked before has it, and knows of no message.
Case family_then_passed(
    "passed_after_a_fork",
    [](int) {
      const Channel channel;
      const Channel go;
      const pid_t worker = AnswersLater(channel, go);
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      const Channel closed;
      const pid_t child = Worker([&] {
        closed.Await();
        AnswerByTcp(fd);
        ::close(fd);
      });
      Pass(channel.ends[0], fd);
      ::close(fd);
      closed.Say();
      LogChild(child);
      go.Say();
      LogChild(worker);
    },
    AskTwiceByTcp, kByItself);

Case by_a_child(
    "passed_by_a_child",
    [](int) {
      const Channel channel;
      const Channel go;
      const pid_t worker = AnswersLater(channel, go);
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      LogChild(Worker([&] { Pass(channel.ends[0], fd); }));
      AnswerByTcp(fd);
      ::close(fd);
      go.Say();
      LogChild(worker);
    },
    AskTwiceByTcp, kByItself);

// It is two connections to the parent.
Case back_to_parent(
    "passed_by_a_child_to_its_parent",
    [](int fd) {
      const Channel channel;
      LogChild(Worker([&] { Pass(channel.ends[0], fd); }));
      const int other = Take(channel.ends[1]);
      AnswerByTcp(fd);
      ::close(fd);
      AnswerByTcp(other);
      LogDrain(other);
    },
    [](int fd) {
      AskByTcp(fd);
      AskByTcp(fd);
      ::close(fd);
    });

// A program without rcsock: it echoes so many messages once it is told to.
constexpr char kEcho[] =
    "import socket, sys\n"
    "tcp, go = (socket.socket(fileno=int(n)) for n in sys.argv[1:])\n"
    "go.recv(1)\n"
    "for i in range(50):\n"
    "  tcp.sendall(tcp.recv(16, socket.MSG_WAITALL))\n"
    "go.send(b'e')\n";

pid_t SpawnEcho(int connection, int go) {
  const std::string one = std::to_string(connection);
  const std::string two = std::to_string(go);
  const char* const arguments[] = {"python3",   "-c",        kEcho,
                                   one.c_str(), two.c_str(), nullptr};
  ::unsetenv("LD_PRELOAD");
  pid_t child;
  CHECK_THAT(::posix_spawnp(&child, "python3", nullptr, nullptr,
                            const_cast<char**>(arguments), environ) == 0);
  return child;
}

void AskAllThree(int) {
  const int fd = Connect(HearPort());
  AskByTcp(fd);
  Call(fd, 50);
  Call(fd, 100);
  ::close(fd);
}

// The program has it for longer than the process that spawned it.
Case then_spawned(
    "passed_then_a_program_is_spawned",
    [](int) {
      const Channel channel;
      const Channel closed;
      const Channel go;
      const Channel gone;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        closed.Await();
        AnswerByTcp(fd);
        go.Say();
        gone.Await();
        Echo(fd, 100);
        LogDrain(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Pass(channel.ends[0], fd);
      const pid_t program = SpawnEcho(fd, go.ends[1]);
      ::close(fd);
      closed.Say();
      LogChild(program);
      gone.Say();
      LogChild(worker);
    },
    AskAllThree, kByItself);

// Nor do those know of it that its maker leaves behind.
Case spawned_by_a_child(
    "spawned_by_a_child_that_ends",
    [](int) {
      const Channel go;
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      LogChild(Worker([&] { SpawnEcho(fd, go.ends[1]); }));
      AnswerByTcp(fd);
      go.Say();
      char ended;
      CHECK_THAT(::read(go.ends[0], &ended, 1) == 1);
      Echo(fd, 100);
      LogDrain(fd);
    },
    AskAllThree, kByItself);

// What its sender has done to it no lane follows, whoever has it.
Case with_a_filter(
    "passed_with_a_filter",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        AnswerByTcp(fd);
        AnswerByTcp(fd);
        LogDrain(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      sock_filter all{BPF_RET | BPF_K, 0, 0, UINT32_MAX};
      const sock_fprog program{1, &all};
      Result("setsockopt", ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER,
                                        &program, sizeof program));
      Pass(channel.ends[0], fd);
      ::close(fd);
      LogChild(worker);
    },
    AskTwiceByTcp, kByItself);

// The message goes through a socket that is not connected: nobody knows whose
// it is.
Case to_an_address(
    "passed_to_an_address",
    [](int) {
      const int to = ::socket(AF_UNIX, SOCK_DGRAM, 0);
      const int from = ::socket(AF_UNIX, SOCK_DGRAM, 0);
      sockaddr_un address{};
      socklen_t length = sizeof address;
      address.sun_family = AF_UNIX;
      // (The kernel gives it a name.)
      CHECK_THAT(::bind(to, reinterpret_cast<sockaddr*>(&address),
                        sizeof address.sun_family) == 0);
      CHECK_THAT(::getsockname(to, reinterpret_cast<sockaddr*>(&address),
                               &length) == 0);
      const pid_t worker = Worker([&] {
        const int fd = Take(to);
        AnswerByTcp(fd);
        AnswerByTcp(fd);
        LogDrain(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Message message;
      message.Put({fd});
      message.header.msg_name = &address;
      message.header.msg_namelen = length;
      CHECK_THAT(::sendmsg(from, &message.header, 0) == 1);
      ::close(fd);
      LogChild(worker);
    },
    AskTwiceByTcp, kByItself);

// Two messages of a program without rcsock, and one of them is taken late: it
// names what the receiver has already.
constexpr char kTwice[] =
    "import socket, sys\n"
    "to, go = (socket.socket(fileno=int(n)) for n in sys.argv[1:])\n"
    "tcp = socket.create_connection(('127.0.0.1', int(go.recv(8))))\n"
    "socket.send_fds(to, [b'f'], [tcp.fileno()])\n"
    "socket.send_fds(to, [b'f'], [tcp.fileno()])\n";

Case taken_late(
    "passed_twice_by_another_program",
    [](int) {
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      AskByTcp(fd);
      Call(fd, kManyTurns);
      Call(fd, 50);
      LogDrain(fd);
    },
    [](int) {
      const Channel channel(SOCK_SEQPACKET);
      const Channel go;
      const std::string port = std::to_string(HearPort());
      const std::string to = std::to_string(channel.ends[0]);
      const std::string from = std::to_string(go.ends[1]);
      const pid_t program = Worker([&] {
        ::unsetenv("LD_PRELOAD");
        ::execlp("python3", "python3", "-c", kTwice, to.c_str(), from.c_str(),
                 static_cast<char*>(nullptr));
      });
      CHECK_THAT(::write(go.ends[0], port.data(), port.size()) ==
                 static_cast<ssize_t>(port.size()));
      LogChild(program);
      const int fd = Take(channel.ends[1]);
      AnswerByTcp(fd);
      const int other = Take(channel.ends[1]);
      Echo(fd, kManyTurns);
      Echo(other, 50);
      ::close(fd);
      ::close(other);
    },
    kByItself);

// Each descriptor in each message lands by itself.
struct TwoMessages {
  TwoMessages(int fd, bool good) {
    one.Put({fd});
    two.Put({fd});
    if (!good) two.part.iov_base = reinterpret_cast<void*>(8);
    both[0].msg_hdr = one.header;
    both[1].msg_hdr = two.header;
  }
  Message one;
  Message two;
  mmsghdr both[2] = {};
};

// The second is not sent: the first is under way all the same.
Case half_sent(
    "passed_by_a_message_before_one_that_fails",
    [](int) {
      const Channel channel(SOCK_SEQPACKET);
      const Channel go;
      const pid_t worker = Worker([&] {
        go.Await();
        Serve(Take(channel.ends[1]));
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      TwoMessages messages(fd, false);
      Result("sendmmsg", ::sendmmsg(channel.ends[0], messages.both, 2, 0));
      AnswerByTcp(fd);
      ::close(fd);
      go.Say();
      LogChild(worker);
    },
    AskByTcpThenWarm, kByItself);

// Two processes take from one socket.
template <class Send>
void ToOneSocket(Send&& send) {
  const Channel channel(SOCK_SEQPACKET);
  const Channel first_go;
  const Channel second_go;
  const pid_t first = Worker([&] {
    Message message;
    first_go.Await();
    CHECK_THAT(::recvmsg(channel.ends[1], &message.header, 0) == 1);
    const int fd = message.Got();
    AnswerByTcp(fd);
  });
  const pid_t second = Worker([&] {
    second_go.Await();
    Serve(Take(channel.ends[1]));
  });
  const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
  send(channel.ends[0], fd);
  ::close(fd);
  first_go.Say();
  LogChild(first);
  second_go.Say();
  LogChild(second);
}

Case by_two_messages(
    "passed_by_sendmmsg_twice",
    [](int) {
      ToOneSocket([](int to, int fd) {
        TwoMessages messages(fd, true);
        Result("sendmmsg", ::sendmmsg(to, messages.both, 2, 0));
      });
    },
    AskByTcpThenWarm, kByItself);

// The first message names it twice, and the second stands for itself.
Case twice_and_once(
    "passed_twice_and_by_another_message",
    [](int) {
      ToOneSocket([](int to, int fd) {
        Message message;
        message.Put({fd, fd});
        CHECK_THAT(::sendmsg(to, &message.header, 0) == 1);
        Pass(to, fd);
      });
    },
    AskByTcpThenWarm, kByItself);

}  // namespace
