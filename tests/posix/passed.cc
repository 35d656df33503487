// Connections that processes pass to each other by SCM_RIGHTS.  Whoever holds
// one alone at the end has it on a lane (Warm fails if it is on TCP).
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr Options kByItself = {.warm = false, .connect = false};

// A message of one byte that may bring descriptors.
struct Message {
  explicit Message(std::size_t room = CMSG_SPACE(2 * sizeof(int))) {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = room;
  }
  void Put(const std::vector<int>& fds) {
    const std::size_t size = fds.size() * sizeof(int);
    header.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(first), fds.data(), size);
  }
  int Got(int which = 0) {
    const cmsghdr* const first = CMSG_FIRSTHDR(&header);
    if (first == nullptr || first->cmsg_type != SCM_RIGHTS) return -1;
    int fd;
    std::memcpy(&fd, CMSG_DATA(first) + which * sizeof fd, sizeof fd);
    return fd;
  }

  char byte = 'f';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr header{};
};

void Pass(int to, int fd) {
  Message message;
  message.Put({fd});
  CHECK_THAT(::sendmsg(to, &message.header, 0) == 1);
}

int Take(int from, int flags = 0) {
  Message message;
  CHECK_THAT(::recvmsg(from, &message.header, flags) == 1);
  const int fd = message.Got();
  CHECK_THAT(fd >= 0);
  return fd;
}

struct Channel {
  explicit Channel(int type = SOCK_STREAM) {
    CHECK_THAT(::socketpair(AF_UNIX, type, 0, ends) == 0);
  }
  ~Channel() {
    for (const int end : ends) ::close(end);
  }
  void Say() const { CHECK_THAT(::write(ends[0], "s", 1) == 1); }
  void Await() const {
    char byte;
    CHECK_THAT(::read(ends[1], &byte, 1) == 1);
  }
  int ends[2];
};

// A process of its own, made before there is a connection that it could have
// by fork.
template <class Body>
pid_t Worker(Body&& body) {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    body();
    ::_exit(0);
  }
  return child;
}

void Serve(int fd) {
  WarmAs(fd, false);
  LogDrain(fd);
  ::close(fd);
}

void Ask(int) {
  const int fd = Connect(HearPort());
  WarmAs(fd, true);
  ::close(fd);
}

// What a master of workers does: it accepts, passes and closes.
Case fresh(
    "passed_fresh",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] { Serve(Take(channel.ends[1])); });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Pass(channel.ends[0], fd);
      ::close(fd);
      LogChild(worker);
    },
    Ask, kByItself);

Case by_each_kind_of_socket(
    "passed_by_datagrams_and_packets",
    [](int) {
      for (const int type : {SOCK_DGRAM, SOCK_SEQPACKET}) {
        const Channel channel(type);
        const pid_t worker = Worker([&] { Serve(Take(channel.ends[1])); });
        const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
        Pass(channel.ends[0], fd);
        ::close(fd);
        LogChild(worker);
      }
    },
    [](int) {
      Ask(-1);
      Ask(-1);
    },
    kByItself);

// It has been on a lane, and bytes of it are not read yet.
Case warm_and_unread(
    "passed_warm_and_unread",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        char text[900];
        RecvAll(fd, text, sizeof text);
        Log("in order: %d", IsPattern(1, 100, text, sizeof text));
        SendAll(fd, text, 1);
        Serve(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      char text[100];
      RecvAll(fd, text, sizeof text);
      Log("in order: %d", IsPattern(1, 0, text, sizeof text));
      AwaitBytes(fd, 900);
      Pass(channel.ends[0], fd);
      ::close(fd);
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      char text[1000];
      Pattern(1, 0, text, sizeof text);
      SendAll(fd, text, sizeof text);
      RecvAll(fd, text, 1);
      WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

// The client's end is passed, while both directions carry bytes.
constexpr std::size_t kBulk = 3 << 20;

void SendPattern(int fd, std::uint64_t from, std::uint64_t to) {
  char text[4096];
  for (; from < to; from += sizeof text) {
    Pattern(5, from, text, sizeof text);
    SendAll(fd, text, sizeof text);
  }
}

void CheckPattern(int fd, std::uint64_t from, std::uint64_t to) {
  char text[4096];
  for (; from < to; from += sizeof text) {
    RecvAll(fd, text, sizeof text);
    CHECK_THAT(IsPattern(5, from, text, sizeof text));
  }
}

Case amid_bulk(
    "passed_amid_bulk",
    [](int) {
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      const pid_t writer = Worker([&] { SendPattern(fd, 0, kBulk); });
      CheckPattern(fd, 0, kBulk);
      LogChild(writer);
      Serve(fd);
    },
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        CheckPattern(fd, kBulk / 2, kBulk);
        SendPattern(fd, kBulk / 2, kBulk);
        WarmAs(fd, true);
      });
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      SendPattern(fd, 0, kBulk / 2);
      CheckPattern(fd, 0, kBulk / 2);
      Pass(channel.ends[0], fd);
      ::close(fd);
      LogChild(worker);
    },
    kByItself);

// Both processes hold it, and use it in turn; then one closes it.
Case both_use(
    "passed_and_used_by_both",
    [](int) {
      const Channel channel;
      const Channel back;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        Echo(fd, 40);
        back.Say();
        channel.Await();
        Serve(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      Pass(channel.ends[0], fd);
      back.Await();
      Echo(fd, 40);
      ::close(fd);
      channel.Say();
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      Call(fd, 80);
      WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

// The receiver lets go, and the sender has it alone again.
Case comes_back(
    "passed_and_let_go",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        Echo(fd, 40);
        ::close(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Pass(channel.ends[0], fd);
      LogChild(worker);
      Serve(fd);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Call(fd, 40);
      WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

// From one to the next, on a lane at each, and back to the first.
Case round(
    "passed_round",
    [](int) {
      const Channel one;
      const Channel two;
      const Channel three;
      const auto hand_on = [](const Channel& from, const Channel& to) {
        return Worker([&] {
          const int fd = Take(from.ends[1]);
          WarmAs(fd, false);
          Pass(to.ends[0], fd);
        });
      };
      const pid_t first = hand_on(one, two);
      const pid_t second = hand_on(two, three);
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      Pass(one.ends[0], fd);
      ::close(fd);
      LogChild(first);
      LogChild(second);
      Serve(Take(three.ends[1]));
    },
    [](int) {
      const int fd = Connect(HearPort());
      for (int i = 0; i < 4; ++i) WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

Case to_self(
    "passed_to_itself",
    [](int fd) {
      const Channel channel;
      WarmAs(fd, false);
      Pass(channel.ends[0], fd);
      const int other = Take(channel.ends[1]);
      Echo(other, 20);
      Echo(fd, 20);
      ::close(fd);
      Serve(other);
    },
    [](int fd) {
      WarmAs(fd, true);
      Call(fd, 40);
      WarmAs(fd, true);
      ::close(fd);
    },
    {.warm = false});

// One message names it twice, and another thing too.
Case twice(
    "passed_twice_in_a_message",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        Message message;
        CHECK_THAT(::recvmsg(channel.ends[1], &message.header, 0) == 1);
        const int fd = message.Got(0);
        const int other = message.Got(1);
        Echo(fd, 20);
        Echo(other, 20);
        ::close(fd);
        Serve(other);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Message message;
      message.Put({fd, fd});
      CHECK_THAT(::sendmsg(channel.ends[0], &message.header, 0) == 1);
      ::close(fd);
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Call(fd, 40);
      WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

Case peeked(
    "passed_peeked",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int shown = Take(channel.ends[1], MSG_PEEK);
        Echo(shown, 20);
        const int fd = Take(channel.ends[1]);
        Echo(fd, 20);
        ::close(shown);
        Serve(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Pass(channel.ends[0], fd);
      ::close(fd);
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Call(fd, 40);
      WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

// Two get it, and one after the other reads.
Case to_two(
    "passed_to_two",
    [](int) {
      const Channel one;
      const Channel two;
      const Channel next;
      const pid_t first = Worker([&] {
        const int fd = Take(one.ends[1]);
        Echo(fd, 30);
        ::close(fd);
      });
      const pid_t second = Worker([&] {
        const int fd = Take(two.ends[1]);
        next.Await();
        Serve(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Pass(one.ends[0], fd);
      Pass(two.ends[0], fd);
      ::close(fd);
      LogChild(first);
      next.Say();
      LogChild(second);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Call(fd, 30);
      WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

// The receiver forks: a child answers, and the receiver after it.
Case then_forked(
    "passed_then_forked",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        const int fd = Take(channel.ends[1]);
        WarmAs(fd, false);
        const pid_t child = Worker([&] {
          Echo(fd, 30);
          ::close(fd);
        });
        CHECK_THAT(::waitpid(child, nullptr, 0) == child);
        Serve(fd);
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Pass(channel.ends[0], fd);
      ::close(fd);
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      Call(fd, 30);
      WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

void FillUp(int fd) {
  char text[1024] = {};
  while (::send(fd, text, sizeof text, MSG_DONTWAIT) > 0) {
  }
}

void Empty(int fd) {
  char text[1024];
  while (::recv(fd, text, sizeof text, MSG_DONTWAIT) > 0) {
  }
}

// The channel is full: nothing has been passed.
Case refused(
    "passed_not_at_first",
    [](int) {
      const Channel channel;
      const Channel go;
      const pid_t worker = Worker([&] {
        go.Await();
        Serve(Take(channel.ends[1]));
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      FillUp(channel.ends[0]);
      Message message;
      message.Put({fd});
      Result("sendmsg",
             ::sendmsg(channel.ends[0], &message.header, MSG_DONTWAIT));
      WarmAs(fd, false);
      Empty(channel.ends[1]);
      Pass(channel.ends[0], fd);
      ::close(fd);
      go.Say();
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      for (int i = 0; i < 3; ++i) WarmAs(fd, true);
      ::close(fd);
    },
    kByItself);

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

// By the other calls that pass and take.
Case by_many(
    "passed_by_sendmmsg",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        Message message;
        mmsghdr one{message.header, 0};
        CHECK_THAT(::recvmmsg(channel.ends[1], &one, 1, 0, nullptr) == 1);
        message.header = one.msg_hdr;
        Serve(message.Got());
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      Message message;
      message.Put({fd});
      mmsghdr one{message.header, 0};
      CHECK_THAT(::sendmmsg(channel.ends[0], &one, 1, 0) == 1);
      ::close(fd);
      LogChild(worker);
    },
    Ask, kByItself);

Case raw(
    "passed_by_syscall",
    [](int) {
      const Channel channel;
      const pid_t worker = Worker([&] {
        Message message;
        CHECK_THAT(
            ::syscall(SYS_recvmsg, channel.ends[1], &message.header, 0) == 1);
        Serve(message.Got());
      });
      const int fd = ::accept(ListenAndTell(), nullptr, nullptr);
      WarmAs(fd, false);
      Message message;
      message.Put({fd});
      CHECK_THAT(::syscall(SYS_sendmsg, channel.ends[0], &message.header, 0) ==
                 1);
      ::close(fd);
      LogChild(worker);
    },
    [](int) {
      const int fd = Connect(HearPort());
      WarmAs(fd, true);
      WarmAs(fd, true);
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
