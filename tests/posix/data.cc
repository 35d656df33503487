// Vectors, messages, full buffers and time-outs of the data calls.
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

Case vectors(
    "vectors",
    [](int fd) {
      char a[] = "abc", b[] = "defgh", c[] = "i";
      iovec many[6] = {{a, 3}, {nullptr, 0}, {b, 5},
                       {b, 0}, {c, 1},       {nullptr, 0}};
      Result("writev", ::writev(fd, many, 6));
      Result("writev none", ::writev(fd, many, 0));
      Result("writev empty", ::writev(fd, many + 1, 1));
      Result("writev -1", ::writev(fd, many, Opaque(-1)));
      Result("writev 2000", ::writev(fd, many, Opaque(2000)));
      msghdr message{};
      message.msg_iov = many;
      message.msg_iovlen = 6;
      Result("sendmsg", ::sendmsg(fd, &message, 0));
      message.msg_iovlen = 0;
      Result("sendmsg none", ::sendmsg(fd, &message, 0));
      message.msg_iovlen = 1025;
      Result("sendmsg 1025", ::sendmsg(fd, &message, 0));
      mmsghdr several[3] = {};
      for (auto& one : several) {
        one.msg_hdr.msg_iov = many;
        one.msg_hdr.msg_iovlen = 6;
      }
      Result("sendmmsg", ::sendmmsg(fd, several, 3, 0));
      for (auto& one : several) Log("len %u", one.msg_len);
      // As many elements as there may be.
      std::vector<iovec> most(IOV_MAX);
      std::vector<char> bytes(IOV_MAX * 7);
      Pattern(9, 0, bytes.data(), bytes.size());
      for (int i = 0; i < IOV_MAX; ++i) most[i] = {bytes.data() + 7 * i, 7};
      Result("writev most", ::writev(fd, most.data(), IOV_MAX));
      Result("pwritev2", ::pwritev2(fd, many, 6, -1, 0));
      Barrier();
    },
    [](int fd) {
      char text[45 + 1] = {};
      iovec parts[4] = {{text, 4}, {nullptr, 0}, {text + 4, 1}, {text + 5, 40}};
      AwaitBytes(fd, 45 + IOV_MAX * 7 + 9);  // all that comes
      Result("readv", ::readv(fd, parts, 4));
      Log("%s", text);
      Result("readv none", ::readv(fd, parts, 0));
      Result("readv -1", ::readv(fd, parts, Opaque(-1)));
      std::vector<iovec> most(IOV_MAX);
      std::vector<char> bytes(IOV_MAX * 7);
      for (int i = 0; i < IOV_MAX; ++i) most[i] = {bytes.data() + 7 * i, 7};
      msghdr message{};
      message.msg_iov = most.data();
      message.msg_iovlen = IOV_MAX;
      Result("recvmsg most", ::recvmsg(fd, &message, MSG_WAITALL));
      Log("flags %x, right %d", static_cast<unsigned>(message.msg_flags),
          IsPattern(9, 0, bytes.data(), bytes.size()));
      Result("preadv2", ::preadv2(fd, parts, 3, -1, 0));
      RecvAll(fd, text, 4);
      Result("preadv2 nowait", ::preadv2(fd, parts, 3, -1, RWF_NOWAIT));
      Barrier();
    });

// Around what goes in a slot, what is put together first, and a record.
constexpr std::size_t kPieces[] = {2,    48,   49,   112,    113,    1023,
                                   1024, 1025, 4096, 16'384, 16'385, 50'000};

Case pieces(
    "pieces",
    [](int fd) {
      std::uint64_t at = 0;
      for (int round = 0; round < 4; ++round) {
        for (std::size_t size : kPieces) {
          std::vector<char> bytes(size);
          Pattern(3, at, bytes.data(), size);
          at += size;
          iovec parts[5] = {{nullptr, 0},
                            {bytes.data(), 1},
                            {bytes.data(), 0},
                            {bytes.data() + 1, size / 2},
                            {bytes.data() + 1 + size / 2, size - 1 - size / 2}};
          iovec whole = {bytes.data(), size};
          msghdr message{};
          message.msg_iov = round < 2 ? parts : &whole;
          message.msg_iovlen = round < 2 ? 5 : 1;
          const ssize_t n = round % 2 == 0
                                ? ::writev(fd, message.msg_iov,
                                           static_cast<int>(message.msg_iovlen))
                                : ::sendmsg(fd, &message, 0);
          Log("%zu: %zd", size, n);
        }
        Barrier();
      }
    },
    [](int fd) {
      std::uint64_t at = 0;
      for (int round = 0; round < 4; ++round) {
        for (std::size_t size : kPieces) {
          std::vector<char> bytes(size);
          RecvAll(fd, bytes.data(), size);
          Log("%zu right %d", size, IsPattern(3, at, bytes.data(), size));
          at += size;
        }
        Barrier();
      }
    });

Case messages(
    "messages",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      Barrier();
      SendAll(fd, "0123456789", 10);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      char text[16];
      char name[64];
      char control[64];
      iovec part{text, 4};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_namelen = 99;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      message.msg_flags = 77;
      Result("recvmsg", ::recvmsg(fd, &message, 0));
      Log("namelen %u controllen %zu flags %x", message.msg_namelen,
          message.msg_controllen, static_cast<unsigned>(message.msg_flags));
      message.msg_name = name;
      message.msg_namelen = sizeof name;
      Result("recvmsg", ::recvmsg(fd, &message, MSG_PEEK));
      Log("namelen %u controllen %zu flags %x", message.msg_namelen,
          message.msg_controllen, static_cast<unsigned>(message.msg_flags));
      socklen_t length = sizeof name;
      Result("recvfrom",
             ::recvfrom(fd, text, 2, 0, reinterpret_cast<sockaddr*>(name),
                        &length));
      Log("length %u", length);
      mmsghdr several[4] = {};
      iovec parts[4];
      for (int i = 0; i < 4; ++i) {
        parts[i] = {text + 2 * i, 2};
        several[i].msg_hdr.msg_iov = &parts[i];
        several[i].msg_hdr.msg_iovlen = 1;
      }
      Result("recvmmsg", ::recvmmsg(fd, several, 4, MSG_WAITFORONE, nullptr));
      Result("recvmmsg", ::recvmmsg(fd, several, 4, MSG_DONTWAIT, nullptr));
      Barrier();
      Result("recvmmsg", ::recvmmsg(fd, several, 4, 0, nullptr));
      for (auto& one : several) Log("len %u", one.msg_len);
      // (taken while the peer is still there)
      Result("sendto",
             ::sendto(fd, "x", 1, 0, reinterpret_cast<sockaddr*>(name),
                      sizeof(sockaddr)));
      Barrier();
    });

Case faults(
    "faults",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      Result("recvmsg null", ::recvmsg(fd, nullptr, 0));
      Result("sendmsg null", ::sendmsg(fd, nullptr, 0));
      char text[16] = {};
      Result("recv", ::recv(fd, text, 16, 0));
      Log("%s", text);
      Barrier();
    });

Case timeouts(
    "timeouts",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      timeval time{0, 50'000};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
      char byte;
      std::uint64_t start = NowMs();
      Result("recv", ::recv(fd, &byte, 1, 0));
      std::uint64_t took = NowMs() - start;
      Log("not early %d, not late %d", took >= 49, took < 500);
      start = NowMs();
      Result("peek", ::recv(fd, &byte, 1, MSG_PEEK));
      took = NowMs() - start;
      Log("not early %d, not late %d", took >= 49, took < 500);
      timeval got{};
      socklen_t length = sizeof got;
      ::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &length);
      Log("about 50 ms %d", got.tv_usec >= 50'000 && got.tv_usec < 60'000);
      time = {0, 0};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
      Result("recv", ::recv(fd, &byte, 1, MSG_DONTWAIT));
      time = {0, 60'000};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0);
      // To a peer that does not read: short at first, then nothing.
      std::vector<char> big(8 << 20);
      start = NowMs();
      ssize_t n;
      int calls = 0;
      do {
        n = ::send(fd, big.data(), big.size(), 0);
        ++calls;
      } while (n > 0 && calls < 50);
      Result("send", n);
      took = NowMs() - start;
      Log("not early %d, not late %d", took >= 59, took < 3000);
      Barrier();
    });

// EAGAIN when all buffers are full; the peer reads it all; writable again.
Case full(
    "full",
    [](int fd) {
      const auto total = static_cast<std::uint64_t>(Hear());
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, -1));
      std::vector<char> text(100'000);
      for (std::uint64_t at = 0; at < total;) {
        const std::size_t n = std::min<std::uint64_t>(text.size(), total - at);
        RecvAll(fd, text.data(), n);
        CHECK_THAT(IsPattern(6, at, text.data(), n));
        at += n;
      }
      Barrier();
      RecvAll(fd, text.data(), 3);
      Barrier();
      int error;
      Log("rest %zu", Drain(fd, &error));
    },
    [](int fd) {
      SetNonblock(fd, true);
      std::vector<char> text(50'000);
      std::uint64_t at = 0;
      for (;;) {
        Pattern(6, at, text.data(), text.size());
        const ssize_t n = ::send(fd, text.data(), text.size(), 0);
        if (n < 0) {
          // The kernel's buffers, too, drain a little by themselves.
          Log("%s", ErrorName(errno));
          break;
        }
        CHECK_THAT(n > 0);
        at += static_cast<std::uint64_t>(n);
      }
      int unsent = 0;
      CHECK_THAT(::ioctl(fd, SIOCOUTQ, &unsent) == 0);
      Log("SIOCOUTQ positive %d, no more than was sent %d", unsent > 0,
          static_cast<std::uint64_t>(unsent) <= at + 1'000'000);
      Tell(static_cast<std::int64_t>(at));
      pollfd one{fd, POLLOUT, 0};
      Result("poll", ::poll(&one, 1, -1));
      Log("revents %x", static_cast<unsigned>(one.revents));
      Barrier();
      Result("send", ::send(fd, "end", 3, 0));
      Barrier();
      // All has been read, so nothing may stay unacknowledged.
      for (int i = 0; i < 2000; ++i) {
        CHECK_THAT(::ioctl(fd, SIOCOUTQ, &unsent) == 0);
        if (unsent == 0) break;
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 1);
      }
      Log("SIOCOUTQ in the end: %d", unsent);
    });

// recvmmsg looks at its time-out between messages, and does not end at the end.
Case many_messages(
    "recvmmsg_timeout_and_end",
    [](int fd) {
      for (int i = 0; i < 3; ++i) {
        SendAll(fd, "abc", 3);
        Barrier();
      }
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      constexpr int kMost = 4;
      char text[kMost][3];
      iovec iov[kMost];
      mmsghdr some[kMost] = {};
      for (int i = 0; i < kMost; ++i) {
        iov[i] = {text[i], 3};
        some[i].msg_hdr.msg_iov = &iov[i];
        some[i].msg_hdr.msg_iovlen = 1;
      }
      timespec time{-1, 0};
      Result("no time", ::recvmmsg(fd, some, kMost, MSG_DONTWAIT, &time));
      time = {0, 1'000'000'000};
      Result("no time", ::recvmmsg(fd, some, kMost, MSG_DONTWAIT, &time));
      time = {0, 0};
      Result("at once", ::recvmmsg(fd, some, kMost, 0, &time));
      Log("left %ld %ld", static_cast<long>(time.tv_sec), time.tv_nsec);
      Barrier();
      time = {0, 1};
      Result("soon", ::recvmmsg(fd, some, kMost, 0, &time));
      Log("left %ld %ld", static_cast<long>(time.tv_sec), time.tv_nsec);
      Barrier();
      time = {1000, 0};
      Result("later", ::recvmmsg(fd, some, 1, 0, &time));
      Log("left %d", time.tv_sec > 0 && time.tv_sec < 1000);
      Barrier();
      pollfd ended{fd, POLLRDHUP, 0};
      CHECK_THAT(::poll(&ended, 1, 5000) == 1);
      for (auto& message : some) message.msg_len = 77;
      Result("at the end", ::recvmmsg(fd, some, kMost, 0, nullptr));
      for (const auto& message : some) Log("%u", message.msg_len);
      Barrier();
    });

// What follows a message that went in part is the caller's to send: sendmmsg
// ends there, however soon there is room again.
Case sendmmsg_part(
    "sendmmsg_part",
    [](int fd) {
      constexpr std::size_t kMessage = 40'000;
      constexpr int kMost = 8;
      constexpr int kRounds = 100;
      SetNonblock(fd, true);
      std::vector<char> bytes(kMessage * kMost);
      std::uint64_t sent = 0;
      const std::uint64_t all = std::uint64_t{kRounds} * bytes.size();
      while (sent < all) {
        const std::size_t left =
            std::min<std::size_t>(bytes.size(), all - sent);
        Pattern(9, sent, bytes.data(), left);
        mmsghdr some[kMost] = {};
        iovec iov[kMost];
        int count = 0;
        for (std::size_t at = 0; at < left; at += kMessage, ++count) {
          iov[count] = {bytes.data() + at, std::min(kMessage, left - at)};
          some[count].msg_hdr.msg_iov = &iov[count];
          some[count].msg_hdr.msg_iovlen = 1;
        }
        const int n = ::sendmmsg(fd, some, static_cast<unsigned>(count), 0);
        if (n < 0) {
          CHECK_THAT(errno == EAGAIN);
          pollfd room{fd, POLLOUT, 0};
          CHECK_THAT(::poll(&room, 1, -1) == 1);
          continue;
        }
        for (int i = 0; i < n; ++i) sent += some[i].msg_len;
      }
      SetNonblock(fd, false);
      Barrier();
    },
    [](int fd) {
      std::vector<char> got(40'000 * 8);
      bool good = true;
      for (int i = 0; i < 100; ++i) {
        RecvAll(fd, got.data(), got.size());
        good = good && IsPattern(9, std::uint64_t(i) * got.size(), got.data(),
                                 got.size());
      }
      Log("in order: %d", good);
      Barrier();
    });

}  // namespace
