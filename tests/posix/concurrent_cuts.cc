// Connections that end in the middle.  Each end has a thread that reads, one
// that writes, and one that looks at the connection, copies it, and in most of
// them cuts it at some time: shuts it down, resets it, or puts another
// descriptor in its place.  Whatever the order, what has been read is the
// beginning of what was written, who hears of an orderly end has had all of it,
// and nobody hangs.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "tests/posix/churn.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;
using namespace churn;

constexpr int kThreads = 4;  // of the client; each has one connection at a time
const int kEach = Scale(50);
constexpr int kMost = 4 * 50;

// What a thread of an end has met.
enum : unsigned {
  kEnd = 1,    // 0 of a read
  kReset = 2,  // ECONNRESET
  kPipe = 4,   // EPIPE
  kGone = 8,   // the number is another descriptor's
  kCut = 16,   // the cut has been made
};

// What both processes can see of an end.
struct End {
  std::atomic<std::uint64_t> wrote{0};
  std::atomic<std::uint64_t> read{0};
  std::atomic<unsigned> met{0};
};
// Of the cases' connections, one after the other.
struct Shared {
  End ends[kMost][2];
};

Shared* Share() {
  void* const at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) Fail("no memory");
  return new (at) Shared();
}

enum class Cut { kNone, kWrite, kRead, kBoth, kReset, kReplace };

struct Head {
  std::uint64_t seed;
  std::uint64_t total;
  int number;
  bool by_client;  // the cut
  Cut cut;
  std::uint64_t at;  // bytes that its end has moved
};

// One end of a connection.
struct Side {
  int fd;
  int dead;  // a socket that is not connected
  const Head& head;
  End& own;
  bool cuts;  // by this end

  // The number may become another descriptor's while somebody waits.
  bool Replaces() const {
    return cuts && (head.cut == Cut::kReset || head.cut == Cut::kReplace);
  }
  void Meet(unsigned what) const { own.met |= what; }
  // Whether an error is one that may come; it ends its thread.
  bool Ends(int error) const {
    if (error == ECONNRESET) Meet(kReset);
    if (error == EPIPE) Meet(kPipe);
    if (error == ENOTCONN && Replaces()) Meet(kGone);
    return error == ECONNRESET || error == EPIPE ||
           (error == ENOTCONN && Replaces());
  }
};

// (Not inline: by this name TSan is told that other threads may be inside.)
[[gnu::noinline]] int ReplaceUnderOthers(int fd, int by) {
  const int result = ::dup2(by, fd);
  return result;
}
[[gnu::noinline]] int CloseUnderOthers(int fd) {
  const int result = ::close(fd);
  return result;
}

// --- The thread that writes

void Write(const Side& side, std::uint64_t seed, Random random) {
  std::vector<char> bytes(kLongest);
  const int file = ::memfd_create("concurrent_cuts", MFD_CLOEXEC);
  CHECK_THAT(file >= 0);
  std::size_t at = 0;
  bool over = false;
  while (at < side.head.total && !over) {
    const std::size_t n =
        std::min<std::size_t>(Length(&random, 3000), side.head.total - at);
    Pattern(seed, at, bytes.data(), n);
    const std::uint64_t how = random.Below(5);
    // (TCP sends the file's own pages: none is written twice.)
    if (how == 4) {
      CHECK_THAT(::pwrite(file, bytes.data(), n, static_cast<off_t>(at)) ==
                 static_cast<ssize_t>(n));
    }
    for (std::size_t done = 0; done < n && !over;) {
      char* const from = bytes.data() + done;
      const std::size_t left = n - done;
      iovec two[2] = {{from, left / 2}, {from + left / 2, left - left / 2}};
      msghdr message{};
      message.msg_iov = two;
      message.msg_iovlen = 2;
      auto place = static_cast<off_t>(at + done);
      const ssize_t k =
          how == 0   ? ::write(side.fd, from, left)
          : how == 1 ? ::writev(side.fd, two, 2)
          : how == 2 ? ::sendmsg(side.fd, &message, MSG_NOSIGNAL)
          : how == 3 ? ::send(side.fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                     : ::sendfile(side.fd, file, &place, left);
      if (k > 0) {
        done += static_cast<std::size_t>(k);
        side.own.wrote += static_cast<std::uint64_t>(k);
      } else if (k < 0 && Again()) {
        Wait(side.fd, POLLOUT, &random, side.Replaces());
      } else {
        CHECK_THAT(k < 0 && side.Ends(errno));
        over = true;
      }
    }
    at += n;
  }
  ::close(file);
  // (ENOTCONN, where the peer has reset it.  TCP sends no reset where both ends
  // have been said, and what is lost then on its way is never sent again.)
  if (!side.cuts || side.head.cut != Cut::kReset) ::shutdown(side.fd, SHUT_WR);
}

// --- The thread that reads

// What a look shows can be read by who does not wait, if nobody cuts.
ssize_t LookAndRead(const Side& side, std::uint64_t seed, std::size_t at,
                    char* to, std::size_t most, int flags) {
  const ssize_t shown = ::recv(side.fd, to, most, MSG_PEEK | flags);
  if (shown <= 0) return shown;
  if (!IsPattern(seed, at, to, static_cast<std::size_t>(shown))) {
    Fail("a look shows other bytes");
  }
  const ssize_t n =
      ::recv(side.fd, to, static_cast<std::size_t>(shown), MSG_DONTWAIT);
  if (n == 0) Fail("the end, where a look has shown bytes");
  return n;
}

void Read(const Side& side, std::uint64_t seed, Random random) {
  std::vector<char> bytes(kLongest);
  char* const to = bytes.data();
  std::size_t at = 0;
  for (;;) {
    const std::size_t n = Length(&random, 5000);
    const std::size_t few = std::min<std::size_t>(n, 3000);
    ssize_t k;
    switch (random.Below(8)) {
      case 0:
        k = ::read(side.fd, to, n);
        break;
      case 1:
        k = ::recv(side.fd, to, n, MSG_DONTWAIT);
        break;
      case 2:
        k = ::recv(side.fd, to, few, MSG_WAITALL);
        break;
      case 3: {
        iovec two[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
        k = ::readv(side.fd, two, 2);
        break;
      }
      case 4:
        k = LookAndRead(side, seed, at, to, n, 0);
        break;
      case 5:
        k = LookAndRead(side, seed, at, to, few, MSG_DONTWAIT);
        break;
      case 6: {
        iovec one{to, n};
        mmsghdr message{};
        message.msg_hdr.msg_iov = &one;
        message.msg_hdr.msg_iovlen = 1;
        k = ::recvmmsg(side.fd, &message, 1, MSG_DONTWAIT, nullptr);
        if (k > 0) k = message.msg_len;
        break;
      }
      default:
        Wait(side.fd, POLLIN, &random, side.Replaces());
        k = ::recv(side.fd, to, n, MSG_DONTWAIT);
    }
    if (k > 0) {
      if (!IsPattern(seed, at, to, static_cast<std::size_t>(k))) {
        Fail("other bytes at %zu", at);
      }
      at += static_cast<std::size_t>(k);
      side.own.read = at;
    } else if (k == 0) {
      side.Meet(kEnd);
      return;
    } else if (Again()) {
      Wait(side.fd, POLLIN, &random, side.Replaces());
    } else {
      CHECK_THAT(side.Ends(errno));
      return;
    }
  }
}

// --- The thread that looks, copies and cuts

// In two sets and by poll at once.
void LookInAllWays(int fd, Random* random) {
  int sets[2];
  for (int& set : sets) {
    set = ::epoll_create1(EPOLL_CLOEXEC);
    CHECK_THAT(set >= 0);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP |
                   (random->Below(2) == 0 ? EPOLLOUT : 0u) |
                   (random->Below(2) == 0 ? EPOLLET : 0u) |
                   (random->Below(2) == 0 ? EPOLLONESHOT : 0u);
    event.data.u64 = ids++;
    // (The number may be closed, or any other descriptor's by now.)
    ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    epoll_event found{};
    const int n =
        ::epoll_wait(set, &found, 1, static_cast<int>(random->Below(3)));
    CHECK_THAT(n >= 0 || errno == EINTR);
    if (n > 0 && found.data.u64 != event.data.u64) {
      Fail("an event of another set");
    }
  }
  pollfd some[3] = {
      {fd, POLLIN, 0}, {sets[0], POLLIN, 0}, {fd, POLLOUT | POLLRDHUP, 0}};
  // (A set that is asked for by poll sends its streams back to TCP.)
  if (random->Below(8) != 0) some[1].fd = -1;
  ::poll(some, 3, static_cast<int>(random->Below(3)));
  for (const int set : sets) CHECK_THAT(::close(set) == 0);
}

// `spare`: a live descriptor that a copy takes the place of.  `own`: the number
// is the connection's for as long as this thread looks.
void Meddle(const Side& side, int spare, bool own, Random* random) {
  char text[512];
  switch (random->Below(own ? 8 : 6)) {
    case 0:
    case 1:
      LookInAllWays(side.fd, random);
      break;
    case 2: {
      // (Or it is that of a socket that another thread is about to connect.)
      if (!own) break;
      const int flags = ::fcntl(side.fd, F_GETFL);
      if (flags >= 0) ::fcntl(side.fd, F_SETFL, flags ^ O_NONBLOCK);
      break;
    }
    case 3: {
      const int copy = ::fcntl(side.fd, F_DUPFD_CLOEXEC, 0);
      if (copy < 0) break;
      LookInAllWays(copy, random);
      ::close(copy);
      break;
    }
    case 4:
      if (::dup2(side.fd, spare) != spare) break;
      LookInAllWays(spare, random);
      CHECK_THAT(::dup2(side.dead, spare) == spare);
      break;
    // (These two take the connection's error.)
    case 6:
      if (::recv(side.fd, text, sizeof text, MSG_PEEK | MSG_DONTWAIT) < 0 &&
          !Again() && !side.Ends(errno)) {
        Fail("a look: %s", ErrorName(errno));
      }
      break;
    case 7: {
      int error = 0;
      socklen_t length = sizeof error;
      if (::getsockopt(side.fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 &&
          error != 0 && !side.Ends(error)) {
        Fail("SO_ERROR %s", ErrorName(error));
      }
      break;
    }
    default:
      ::usleep(static_cast<useconds_t>(random->Below(3000)));
  }
}

void MakeCut(const Side& side) {
  switch (side.head.cut) {
    case Cut::kNone:
      return;
    case Cut::kWrite:
      ::shutdown(side.fd, SHUT_WR);
      break;
    case Cut::kRead:
      ::shutdown(side.fd, SHUT_RD);
      break;
    case Cut::kBoth:
      ::shutdown(side.fd, SHUT_RDWR);
      break;
    case Cut::kReset: {
      const linger now{1, 0};
      CHECK_THAT(
          ::setsockopt(side.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
      [[fallthrough]];
    }
    case Cut::kReplace:
      CHECK_THAT(ReplaceUnderOthers(side.fd, side.dead) == side.fd);
  }
  side.Meet(kCut);
}

// A reset whose place in the sequence is behind what TCP has lost on its way is
// answered by a challenge, of which there are few, and else by nothing: who
// waits then would do so for ever.
void KeepAlive(int fd) {
  const int one = 1;
  CHECK_THAT(
      ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0 &&
      ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof one) == 0 &&
      ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof one) == 0);
}

void Work(int fd, const Head& head, bool client, Shared* shared) {
  Random random{head.seed + (client ? 1 : 2)};
  KeepAlive(fd);
  if (random.Below(2) == 0) SetNonblock(fd, true);
  const int dead = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int spare = ::dup(dead);
  CHECK_THAT(dead >= 0 && spare >= 0);
  const Side side{fd, dead, head, shared->ends[head.number][client ? 1 : 0],
                  head.cut != Cut::kNone && head.by_client == client};
  // Whether the number is closed while the meddler still looks.
  const bool beside = random.Below(2) == 0;
  const std::uint64_t there = 2 * head.seed;
  std::thread writer([&, own = Random{random.Next()}] {
    Write(side, client ? there : there + 1, own);
  });
  std::atomic<bool> done{false};
  std::mutex mutex;
  bool may_cut = side.cuts;
  std::thread meddler([&, own = Random{random.Next()}]() mutable {
    while (!done) {
      Meddle(side, spare, !beside, &own);
      if (side.own.wrote + side.own.read < head.at) continue;
      const std::scoped_lock hold(mutex);
      if (may_cut) MakeCut(side);
      may_cut = false;
    }
  });
  Read(side, client ? there + 1 : there, Random{random.Next()});
  writer.join();
  {
    const std::scoped_lock hold(mutex);
    may_cut = false;
  }
  const auto end = [&] {
    done = true;
    meddler.join();
  };
  if (!beside) end();
  CHECK_THAT(CloseUnderOthers(fd) == 0);
  if (beside) end();
  ::close(spare);
  ::close(dead);
}

// --- Both processes

void Server(bool forks, Shared* shared) {
  ::signal(SIGPIPE, SIG_IGN);
  const int listener = ListenAndTell();
  Beside(forks, [&] {
    std::vector<std::thread> all;
    for (int i = 0; i < kThreads * kEach; ++i) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      CHECK_THAT(fd >= 0);
      all.emplace_back([fd, shared] {
        Head head;
        RecvAll(fd, &head, sizeof head);
        Work(fd, head, false, shared);
      });
    }
    for (std::thread& one : all) one.join();
  });
  ::close(listener);
  Barrier();
}

// What `to` has had of what `from` has written.
void Judge(const char* way, int number, const End& from, const End& to,
           bool reset) {
  const std::uint64_t wrote = from.wrote, read = to.read;
  if (read > wrote) {
    Fail("%d %s: %llu bytes of %llu", number, way,
         static_cast<unsigned long long>(read),
         static_cast<unsigned long long>(wrote));
  }
  const bool whole = (to.met & kEnd) != 0 && read == wrote;
  const bool failed = (to.met & (kReset | kPipe)) != 0;
  if (reset && (from.met & kCut) != 0 && !failed && !whole) {
    Fail("%d %s: no error, where the peer has reset", number, way);
  }
  if (!whole && !failed && (to.met & kCut) == 0) {
    Fail("%d %s: an orderly end after %llu of %llu bytes", number, way,
         static_cast<unsigned long long>(read),
         static_cast<unsigned long long>(wrote));
  }
}

void Client(bool forks, Shared* shared) {
  ::signal(SIGPIPE, SIG_IGN);
  const int port = static_cast<int>(Hear());
  std::vector<Head> heads(static_cast<std::size_t>(kThreads * kEach));
  Beside(forks, [&] {
    std::vector<std::thread> all;
    for (int i = 0; i < kThreads; ++i) {
      all.emplace_back([=, &heads] {
        Random random{Seed() + 1000 * static_cast<std::uint64_t>(i)};
        for (int k = 0; k < kEach; ++k) {
          Head head{};
          head.seed = random.Next() >> 8;
          head.total =
              1 + random.Below(random.Below(3) == 0 ? 2'000'000 : 200'000);
          head.number = i * kEach + k;
          head.by_client = random.Below(2) == 0;
          head.cut = static_cast<Cut>(random.Below(6));
          head.at = random.Below(2 * head.total);
          heads[static_cast<std::size_t>(head.number)] = head;
          const int fd = Connect(port);
          SendAll(fd, &head, sizeof head);
          Work(fd, head, true, shared);
        }
      });
    }
    for (std::thread& one : all) one.join();
  });
  Barrier();
  for (const Head& head : heads) {
    const auto& [server, client] = shared->ends[head.number];
    const bool reset = head.cut == Cut::kReset;
    Judge("there", head.number, client, server, reset);
    Judge("back", head.number, server, client, reset);
    const bool cut = ((server.met | client.met) & kCut) != 0;
    if (!cut && (client.wrote != head.total || server.wrote != head.total)) {
      Fail("%d: not all was written", head.number);
    }
  }
  Log("as it must be");
}

constexpr Options kOptions{.warm = false, .connect = false, .seconds = 60};

struct Cuts {
  Cuts(const char* name, bool server_forks, bool client_forks)
      : shared(Share()),
        one(
            name, [=, this](int) { Server(server_forks, shared); },
            [=, this](int) { Client(client_forks, shared); }, kOptions) {}
  Shared* const shared;
  const Case one;
};

Cuts quiet("cuts", false, false);
Cuts server_forks("cuts_server_forks", true, false);
Cuts client_forks("cuts_client_forks", false, true);
Cuts both_fork("cuts_both_fork", true, true);

}  // namespace

#if defined(__SANITIZE_THREAD__)
// What the cuts do on purpose: numbers closed under calls.
extern "C" [[gnu::visibility("default")]] const char*
__tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:ReplaceUnderOthers\nrace:CloseUnderOthers\n";
}
#endif
