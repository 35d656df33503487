// Flags, vectors, options and time-outs of the data calls.
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// A count that the compiler has no opinion on.
int Opaque(int value) {
  static volatile int kept;
  kept = value;
  return kept;
}

void AwaitBytes(int fd, int wanted) {
  int n = 0;
  for (;;) {
    CHECK_THAT(::ioctl(fd, FIONREAD, &n) == 0);
    if (n >= wanted) break;
    pollfd none{-1, 0, 0};
    ::poll(&none, 1, 1);
  }
  Log("FIONREAD %d", n);
}

Case peek(
    "peek",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      SendAll(fd, "de", 2);
      Barrier();
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 5);
      SendAll(fd, "fgh", 3);
      Barrier();
      SendAll(fd, "ij", 2);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      char text[32] = {};
      Result("peek 4", ::recv(fd, text, 4, MSG_PEEK));
      Log("%s", text);
      Result("peek 20", ::recv(fd, text, 20, MSG_PEEK));
      Log("%s", text);
      Result("peek none", ::recv(fd, text, 0, MSG_PEEK));
      iovec two[3] = {{text, 3}, {nullptr, 0}, {text + 16, 4}};
      msghdr message{};
      message.msg_iov = two;
      message.msg_iovlen = 3;
      Result("peek vector", ::recvmsg(fd, &message, MSG_PEEK));
      Log("%.3s %.4s", text, text + 16);
      AwaitBytes(fd, 10);
      Result("recv", ::recv(fd, text, 5, 0));
      Log("%.5s", text);
      Result("peek", ::recv(fd, text, 20, MSG_PEEK | MSG_DONTWAIT));
      Log("%.5s", text);
      Result("recv", ::recv(fd, text, 20, 0));
      Result("peek empty", ::recv(fd, text, 20, MSG_PEEK | MSG_DONTWAIT));
      Barrier();
      Result("peek blocking", ::recv(fd, text, 1, MSG_PEEK));
      AwaitBytes(fd, 3);
      Result("peek waitall", ::recv(fd, text, 3, MSG_PEEK | MSG_WAITALL));
      Result("recv", ::recv(fd, text, 20, 0));
      Barrier();
      AwaitBytes(fd, 2);
      Barrier();
      Result("peek waitall", ::recv(fd, text, 5, MSG_PEEK | MSG_WAITALL));
      Log("%.5s", text);
      Result("recv", ::recv(fd, text, 20, 0));
      Barrier();
      AwaitBytes(fd, 2);
      Result("peek waitall, at once",
             ::recv(fd, text, 5, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
      Result("recv", ::recv(fd, text, 20, 0));
      SendAll(fd, "x", 1);
    });

Case waitall(
    "waitall",
    [](int fd) {
      std::vector<char> text(300'000);
      Pattern(4, 0, text.data(), text.size());
      for (std::size_t at = 0; at < text.size(); at += 1000) {
        SendAll(fd, text.data() + at, 1000);
        if (at % 50'000 == 0) {
          pollfd none{-1, 0, 0};
          ::poll(&none, 1, 1);
        }
      }
      SendAll(fd, "tail", 4);
    },
    [](int fd) {
      std::vector<char> text(300'000);
      std::size_t at = 0;
      for (const std::size_t n : {1u, 10u, 99'989u, 200'000u}) {
        Result("waitall", ::recv(fd, text.data(), n, MSG_WAITALL));
        CHECK_THAT(IsPattern(4, at, text.data(), n));
        at += n;
      }
      Result("waitall to the end", ::recv(fd, text.data(), 1000, MSG_WAITALL));
      Result("at the end", ::recv(fd, text.data(), 1000, MSG_WAITALL));
    });

// The word of the end may be here before the bytes that it ends (over RDMA).
Case peek_to_end(
    "peek_waitall_to_the_end",
    [](int) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
      std::vector<char> text(8000);
      Pattern(6, 0, text.data(), text.size());
      for (int i = 0; i < 20; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
        SendAll(fd, text.data(), text.size());
        CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
        char byte;
        Result("end", ::recv(fd, &byte, 1, 0));
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (int i = 0; i < 20; ++i) {
        const int fd = Connect(port);
        Warm(fd);
        std::vector<char> text(8001);
        Result("peek",
               ::recv(fd, text.data(), text.size(), MSG_PEEK | MSG_WAITALL));
        RecvAll(fd, text.data(), 8000);
        CHECK_THAT(IsPattern(6, 0, text.data(), 8000));
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

// More than a small ring holds: it leaves its lane meanwhile.
Case peek_more(
    "peek_waitall_more_than_a_ring",
    [](int) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
      std::vector<char> text(60'000);
      Pattern(7, 0, text.data(), text.size());
      for (const bool end : {false, true}) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
        SendAll(fd, text.data(), 50'000);
        ::poll(nullptr, 0, 5);
        SendAll(fd, text.data() + 50'000, 10'000);
        if (end) CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
        char byte;
        Result("end", ::recv(fd, &byte, 1, 0));
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (const bool end : {false, true}) {
        const int fd = Connect(port);
        Warm(fd);
        std::vector<char> text(60'000 + (end ? 1 : 0));
        constexpr int kAll = MSG_PEEK | MSG_WAITALL;
        Result("peek", ::recv(fd, text.data(), text.size(), kAll));
        CHECK_THAT(IsPattern(7, 0, text.data(), 60'000));
        Result("count", ::recv(fd, nullptr, text.size(), kAll | MSG_TRUNC));
        text.assign(60'000, 0);
        RecvAll(fd, text.data(), 60'000);
        CHECK_THAT(IsPattern(7, 0, text.data(), 60'000));
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

Case dontwait(
    "dontwait",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      char byte;
      Result("recv", ::recv(fd, &byte, 1, MSG_DONTWAIT));
      Result("recv waitall", ::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_WAITALL));
      Result("read none", ::read(fd, &byte, 0));
      Result("send none", ::send(fd, "", 0, 0));
      Result("write none", ::write(fd, "", 0));
      SetNonblock(fd, true);
      Result("read", ::read(fd, &byte, 1));
      SetNonblock(fd, false);
      int on = 1;
      Result("FIONBIO", ::ioctl(fd, FIONBIO, &on));
      Result("read", ::read(fd, &byte, 1));
      Log("O_NONBLOCK %d", (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
      int copy = ::dup(fd);
      on = 0;
      Result("FIONBIO", ::ioctl(copy, FIONBIO, &on));
      Log("O_NONBLOCK %d", (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
      on = 1;
      ::ioctl(copy, FIONBIO, &on);
      Result("read", ::read(fd, &byte, 1));
      ::close(copy);
      Barrier();
    });

Case truncate_flag(
    "trunc", [](int fd) { SendAll(fd, "0123456789", 10); },
    [](int fd) {
      AwaitBytes(fd, 10);
      char text[16] = "untouched";
      Result("trunc 4", ::recv(fd, text, 4, MSG_TRUNC));
      Log("%s", text);
      Result("trunc null", ::recv(fd, nullptr, 2, MSG_TRUNC));
      Result("recv", ::recv(fd, text, 16, 0));
      Log("%.4s", text);
      Result("trunc at end", ::recv(fd, text, 4, MSG_TRUNC));
    });

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

Case sendfile_special(
    "sendfile_special",
    [](int fd) {
      // Files without a size: what a call that sends nothing of them says, and
      // what is read of those that may be sent.
      for (const char* name :
           {"/proc/self/comm", "/proc/self/status", "/proc/self/environ",
            "/proc/self/fd", "/proc/version",
            "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/null"}) {
        const int special = ::open(name, O_RDONLY);
        if (special < 0) continue;
        ssize_t n = ::sendfile(fd, special, nullptr, 1 << 15);
        Log("%s: %s", name, n < 0 ? ErrorName(errno) : "sent");
        off_t at = ::lseek(special, 0, SEEK_CUR);
        Log("read on at the end %d", n < 0 || at == n);
        while (n > 0 && (n = ::sendfile(fd, special, nullptr, 1 << 15)) > 0) {
        }
        at = 0;
        n = ::sendfile(fd, special, &at, 1 << 15);
        Log("from the start: %s, %d", n < 0 ? ErrorName(errno) : "sent",
            n < 0 || at == n);
        ::close(special);
      }
      ::close(fd);
    },
    [](int fd) {
      int error;
      Drain(fd, &error);
      Log("%s", ErrorName(error));
    });

Case sendfiles(
    "sendfile",
    [](int fd) {
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      CHECK_THAT(file >= 0);
      ::unlink(path);
      std::vector<char> text(500'000);
      Pattern(11, 0, text.data(), text.size());
      CHECK_THAT(::write(file, text.data(), text.size()) ==
                 static_cast<ssize_t>(text.size()));
      off_t offset = 1000;
      Result("sendfile offset", ::sendfile(fd, file, &offset, 200'000));
      Log("offset %lld, position %lld", static_cast<long long>(offset),
          static_cast<long long>(::lseek(file, 0, SEEK_CUR)));
      ::lseek(file, 300'000, SEEK_SET);
      Result("sendfile", ::sendfile(fd, file, nullptr, 100'000));
      Log("position %lld", static_cast<long long>(::lseek(file, 0, SEEK_CUR)));
      Result("sendfile past", ::sendfile(fd, file, nullptr, 1'000'000));
      Result("sendfile at end", ::sendfile(fd, file, nullptr, 10));
      offset = 0;
      Result("sendfile none", ::sendfile(fd, file, &offset, 0));
      offset = -1;
      Result("sendfile -1", ::sendfile(fd, file, &offset, 10));
      Result("sendfile bad", ::sendfile(fd, -1, nullptr, 10));
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0 && ::write(ends[1], "pipe", 4) == 4);
      Result("sendfile of a pipe", ::sendfile(fd, ends[0], nullptr, 4));
      offset = 0;
      Result("at an offset", ::sendfile(fd, ends[0], &offset, 4));
      Result("none of it", ::sendfile(fd, ends[0], nullptr, 0));
      char left[8];
      Result("still there", ::read(ends[0], left, sizeof left));
      ::close(ends[0]);
      ::close(ends[1]);
      Result("sendfile of a stream", ::sendfile(fd, fd, nullptr, 4));
      const int directory = ::open("/", O_RDONLY | O_DIRECTORY);
      Result("of a directory", ::sendfile(fd, directory, &offset, 4));
      Result("without offset", ::sendfile(fd, directory, nullptr, 4));
      ::close(directory);
      Result("none of what is closed", ::sendfile(fd, directory, nullptr, 0));
      Barrier();
      // To a full stream.
      SetNonblock(fd, true);
      std::uint64_t total = 0;
      for (;;) {
        offset = 0;
        const ssize_t n = ::sendfile(fd, file, &offset, text.size());
        if (n < 0) {
          Log("%s, offset %lld", ErrorName(errno),
              static_cast<long long>(offset));
          break;
        }
        CHECK_THAT(n == offset);
        total += static_cast<std::uint64_t>(n);
        if (n < static_cast<ssize_t>(text.size())) continue;
      }
      Tell(static_cast<std::int64_t>(total));
    },
    [](int fd) {
      std::vector<char> text(200'000);
      RecvAll(fd, text.data(), 200'000);
      CHECK_THAT(IsPattern(11, 1000, text.data(), 200'000));
      RecvAll(fd, text.data(), 200'000);
      CHECK_THAT(IsPattern(11, 300'000, text.data(), 200'000));
      Barrier();
      const auto total = static_cast<std::size_t>(Hear());
      int error;
      Log("all came %d", Drain(fd, &error) == total);
    });

Case spliced(
    "splice",
    [](int fd) {
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      CHECK_THAT(::write(pipe_fds[1], "by pipe", 7) == 7);
      Result("splice", ::splice(pipe_fds[0], nullptr, fd, nullptr, 7, 0));
      SendAll(fd, "after", 5);
      Barrier();
    },
    [](int fd) {
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      std::size_t left = 12;
      while (left > 0) {
        const ssize_t n = ::splice(fd, nullptr, pipe_fds[1], nullptr, left, 0);
        CHECK_THAT(n > 0);
        left -= static_cast<std::size_t>(n);
      }
      char text[16] = {};
      Result("read", ::read(pipe_fds[0], text, 12));
      Log("%s", text);
      Barrier();
    });

// MSG_OOB moves a stream to TCP; the mark and the byte are the kernel's.
Case urgent(
    "urgent",
    [](int fd) {
      SendAll(fd, "normal", 6);
      Result("send", ::send(fd, "!", 1, MSG_OOB));
      SendAll(fd, "more", 4);
      Barrier();
    },
    [](int fd) {
      pollfd one{fd, POLLPRI, 0};
      Result("poll", ::poll(&one, 1, -1));
      char text[16] = {};
      Result("recv", ::recv(fd, text, 1, MSG_OOB));
      Log("%s", text);
      RecvAll(fd, text, 10);
      Log("%s", text);
      Barrier();
    });

// The option alone moves nothing; the byte does, and is one of the stream then.
void UrgentInLine(int fd) {
  const int on = 1;
  Result("option", ::setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
  int got = 0;
  socklen_t size = sizeof got;
  ::getsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &got, &size);
  Log("is %d", got);
}

int AtMark(int fd) {
  int at = -1;
  Result("SIOCATMARK", ::ioctl(fd, SIOCATMARK, &at));
  return at;
}

Case urgent_in_line(
    "urgent_in_line",
    [](int fd) {
      UrgentInLine(fd);
      Echo(fd, 100);
      const std::uint64_t before = TcpBytes(fd);
      Echo(fd, 100);
      const char* warm = ::getenv("PAIR_WARM");
      Log("on the lane %d", warm == nullptr || TcpBytes(fd) - before < 1600);
      for (int i = 0; i < 3; ++i) {
        SendAll(fd, "abc", 3);
        Barrier();
        Result("urgent", ::send(fd, "!", 1, MSG_OOB));
        SendAll(fd, "def", 3);
        Barrier();
        Barrier();
      }
    },
    [](int fd) {
      UrgentInLine(fd);
      char text[16] = {};
      for (int i = 0; i < 200; ++i) {
        SendAll(fd, text, 16);
        RecvAll(fd, text, 16);
      }
      for (int i = 0; i < 3; ++i) {
        Barrier();
        Barrier();
        int count = 0;
        while (count < 7) CHECK_THAT(::ioctl(fd, FIONREAD, &count) == 0);
        pollfd one{fd, POLLPRI, 0};
        Result("poll", ::poll(&one, 1, 0));
        Log("at the mark %d", AtMark(fd));
        // No call goes past it, not even one that waits for all.
        Result("recv", ::recv(fd, text, 2, 0));
        Result("all", ::recv(fd, text, sizeof text, MSG_WAITALL));
        Log("%c, at the mark %d", text[0], AtMark(fd));
        Result("MSG_OOB", ::recv(fd, text, 1, MSG_OOB));
        Result("the rest", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
        Log("%.4s, at the mark %d", text, AtMark(fd));
        Barrier();
      }
    });

Case stdio(
    "stdio",
    [](int fd) {
      std::FILE* out = ::fdopen(::dup(fd), "w");
      std::fprintf(out, "first line\n");
      std::fflush(out);
      ::dprintf(fd, "second %d\n", 2);
      Barrier();
      std::fclose(out);
      SendAll(fd, "third\n", 6);
      Barrier();
    },
    [](int fd) {
      std::FILE* in = ::fdopen(fd, "r");
      char line[64];
      for (int i = 0; i < 2; ++i) {
        CHECK_THAT(std::fgets(line, sizeof line, in) != nullptr);
        Log("%.6s", line);
      }
      Barrier();
      CHECK_THAT(std::fgets(line, sizeof line, in) != nullptr);
      Log("%.5s", line);
      Barrier();
    });

// stdin, stdout and stderr where the connection has their numbers, and no
// fdopen says so: libc's own calls, among those of the program.
struct Standard {
  explicit Standard(int number, int fd) : number_(number) {
    std::fflush(nullptr);
    // (None if it is closed.)
    kept_ = ::fcntl(number, F_DUPFD_CLOEXEC, 100);
    CHECK_THAT(::dup2(fd, number) == number);
  }
  ~Standard() { kept_ < 0 ? ::close(number_) : ::dup2(kept_, number_); }
  int number_;
  int kept_;
};

void HearLines(int fd, int count) {
  for (int i = 0; i < count; ++i) {
    std::string line;
    for (char c = 0; c != '\n'; line += c) RecvAll(fd, &c, 1);
    line.pop_back();
    Log("%s", line.c_str());
  }
}

void CallAndAnswer(int fd, bool calls, int count) {
  for (int i = 0; i < count; ++i) {
    char text[4];
    if (calls) SendAll(fd, "call", 4);
    RecvAll(fd, text, 4);
    if (!calls) SendAll(fd, text, 4);
  }
}

Case standard_output(
    "stdio_standard_output",
    [](int fd) {
      {
        const Standard standard(STDOUT_FILENO, fd);
        for (int i = 0; i < 3; ++i) {
          std::printf("printed %d\n", i);
          std::fflush(stdout);
          CHECK_THAT(::write(STDOUT_FILENO, "written\n", 8) == 8);
        }
        // More than the buffer, and than one record of a lane.
        const std::string many(300'000, 'x');
        std::puts(many.c_str());
        std::fflush(stdout);
        CHECK_THAT(std::ferror(stdout) == 0);
      }
      CallAndAnswer(fd, true, 100);
      Barrier();
    },
    [](int fd) {
      HearLines(fd, 6);
      std::string many(300'001, ' ');
      RecvAll(fd, many.data(), many.size());
      Log("%d", many == std::string(300'000, 'x') + "\n");
      CallAndAnswer(fd, false, 100);
      Barrier();
    });

Case standard_error(
    "stdio_standard_error",
    [](int fd) {
      {
        const Standard standard(STDERR_FILENO, fd);
        errno = ENOENT;
        std::perror("said by perror");
        std::fprintf(stderr, "said %d\n", 1);
        ::openlog("log", LOG_PERROR, LOG_USER);
        ::syslog(LOG_INFO, "said by syslog");
        ::closelog();
        errno = EINTR;
        std::perror("again");
      }
      CallAndAnswer(fd, true, 100);
      Barrier();
    },
    [](int fd) {
      HearLines(fd, 4);
      CallAndAnswer(fd, false, 100);
      Barrier();
    });

Case standard_input(
    "stdio_standard_input",
    [](int fd) {
      {
        const Standard standard(STDIN_FILENO, fd);
        char line[64];
        for (int i = 0; i < 3; ++i) {
          SendAll(fd, "next", 4);
          CHECK_THAT(std::fgets(line, sizeof line, stdin) != nullptr);
          Log("%.6s", line);
        }
      }
      CallAndAnswer(fd, true, 100);
      Barrier();
    },
    [](int fd) {
      for (int i = 0; i < 3; ++i) {
        char text[4];
        RecvAll(fd, text, 4);
        SendAll(fd, i == 0 ? "line 0\n" : i == 1 ? "line 1\n" : "line 2\n", 7);
      }
      CallAndAnswer(fd, false, 100);
      Barrier();
    });

// The FILE lets go of the number, by its own close or dup3.
Case standard_closed(
    "stdio_standard_closed",
    [](int fd) {
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      CHECK_THAT(file >= 0 && ::close(file) == 0);
      std::fflush(stdout);
      CHECK_THAT(::dup2(fd, STDOUT_FILENO) == STDOUT_FILENO);
      CallAndAnswer(fd, true, 100);
      std::printf("to the connection\n");
      CHECK_THAT(std::freopen(path, "w", stdout) == stdout);
      std::printf("to the file\n");
      std::fflush(stdout);
      CHECK_THAT(::write(STDOUT_FILENO, "this too\n", 9) == 9);
      CallAndAnswer(fd, true, 100);
      CHECK_THAT(::dup2(fd, STDOUT_FILENO) == STDOUT_FILENO);
      std::printf("again\n");
      CHECK_THAT(::close(fd) == 0);
      Result("fclose", std::fclose(stdout));
      const int text = ::open(path, O_RDONLY);
      char all[64] = {};
      Result("in the file", ::read(text, all, sizeof all - 1));
      Log("%s", all);
      ::close(text);
      ::unlink(path);
      Barrier();
      // (Said by the other end: the connection is closed here.)
      Barrier();
    },
    [](int fd) {
      CallAndAnswer(fd, false, 100);
      HearLines(fd, 1);
      CallAndAnswer(fd, false, 100);
      HearLines(fd, 1);
      char end;
      Result("the end", ::recv(fd, &end, 1, 0));
      Barrier();
      Barrier();
    });

// What is in the buffer at exit.
Case standard_exit(
    "stdio_standard_exit",
    [](int fd) {
      const int pid = ::fork();
      CHECK_THAT(pid >= 0);
      if (pid == 0) {
        CHECK_THAT(::dup2(fd, STDOUT_FILENO) == STDOUT_FILENO);
        CallAndAnswer(fd, true, 200);
        std::printf("the last words\n");
        std::exit(0);
      }
      ::close(fd);
      int status = 0;
      CHECK_THAT(::waitpid(pid, &status, 0) == pid);
      Log("status %d", status);
      Barrier();
    },
    [](int fd) {
      CallAndAnswer(fd, false, 200);
      HearLines(fd, 1);
      char end;
      Result("the end", ::recv(fd, &end, 1, 0));
      Barrier();
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
