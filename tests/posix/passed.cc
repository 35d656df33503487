// Connections that processes pass to each other by SCM_RIGHTS.  Whoever holds
// one alone at the end has it on a lane (Warm fails if it is on TCP).
#include "tests/posix/passed.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

namespace {

using namespace pair;

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

}  // namespace
