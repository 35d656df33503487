// One end of a case: makes the calls that the driver asks for.  Knows sockets
// and nothing of rcsock, but for Step "fail".
#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/differential/protocol.h"
#include "tests/posix/common.h"

namespace differential {
namespace {

using posix_test::NowMs;

struct Slot {
  int fd = -1;
  int connection = -1;
};
Slot slots[kSlots];
int sets[kSets] = {-1, -1};
std::uint64_t tx_at[kConnections];
int listener = -1;
int file = -1;
bool accepts = false;
std::atomic<int> sigpipes{0};
std::atomic<int> signals{0};
std::atomic<int> urgents{0};

std::string Print(const char* format, ...)
    __attribute__((format(printf, 1, 2)));
std::string Print(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string Outcome(long n) {
  if (n >= 0) return Print("%ld", n);
  const char* name = ::strerrorname_np(errno);
  return name != nullptr ? name : "?";
}

std::string Hash(const char* from, long n) {
  std::uint32_t hash = 2166136261u;
  for (long i = 0; i < n; ++i) {
    hash = (hash ^ static_cast<unsigned char>(from[i])) * 16777619u;
  }
  return n > 0 ? Print(" bytes %08x", hash) : "";
}

[[noreturn]] void Die(const char* why) {
  std::fprintf(stderr, "agent: %s: %s\n", why, std::strerror(errno));
  ::_exit(3);
}

// What this end sends on a connection, in its order.
std::vector<char> Bytes(int connection, std::size_t length) {
  std::vector<char> bytes(length + 1);
  for (std::size_t i = 0; i < length; ++i) {
    bytes[i] = static_cast<char>(
        posix_test::ByteAt(static_cast<std::uint64_t>(connection * 2 + accepts),
                           tx_at[connection] + i));
  }
  return bytes;
}

// --- Calls in threads of their own -----------------------------------------

struct Pending {
  pthread_t thread;
  std::function<std::string()> call;
  int connection;  // -1: a set
  bool takes;      // bytes, so that others would see a race
  std::atomic<int> tid{0};
  std::atomic<bool> done{false};
  std::string result;
};
Pending* threads[kThreads] = {};

bool Asleep(int tid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[512];
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  const char* after = std::strrchr(text, ')');
  return after != nullptr && after[1] == ' ' && after[2] == 'S';
}

void* RunPending(void* argument) {
  auto* self = static_cast<Pending*>(argument);
  self->tid.store(static_cast<int>(::syscall(SYS_gettid)));
  self->result = self->call();
  self->done.store(true);
  return nullptr;
}

void Brief() {
  timespec brief{0, 100'000};
  ::nanosleep(&brief, nullptr);
}

bool IsPending(int i) {
  return threads[i] != nullptr && !threads[i]->done.load();
}

bool IsPending() {
  for (int i = 0; i < kThreads; ++i) {
    if (IsPending(i)) return true;
  }
  return false;
}

// Returns once the thread sleeps in its call, or has come back.
void StartPending(int i, Pending* one) {
  threads[i] = one;
  if (::pthread_create(&one->thread, nullptr, RunPending, one) != 0) {
    Die("thread");
  }
  int quiet = 0;
  while (!one->done.load() && quiet < 3) {
    Brief();
    const int tid = one->tid.load();
    quiet = tid != 0 && Asleep(tid) ? quiet + 1 : 0;
  }
}

void JoinPending(int i) {
  if (threads[i] == nullptr) return;
  ::pthread_join(threads[i]->thread, nullptr);
  delete threads[i];
  threads[i] = nullptr;
}

// Two that wait for the same thing, of whom one takes it, are a race over TCP
// as well.
bool Races(const Pending& one, const Pending& other) {
  const bool waits = one.connection < 0 || other.connection < 0;
  if (one.takes || other.takes) {
    return waits || one.connection == other.connection;
  }
  return waits && one.connection == other.connection;
}

// In a thread that has nothing to do.
std::string StartPending(int connection, bool takes,
                         std::function<std::string()> call) {
  auto* one = new Pending();
  one->connection = connection;
  one->takes = takes;
  one->call = std::move(call);
  int free = -1;
  for (int i = kThreads - 1; i >= 0; --i) {
    if (!IsPending(i)) {
      free = i;
    } else if (Races(*one, *threads[i])) {
      delete one;
      return "skip";
    }
  }
  if (free < 0) {
    delete one;
    return "skip";
  }
  JoinPending(free);
  StartPending(free, one);
  return "started";
}

// The same call once more.
void PendingAgain(int i) {
  if (threads[i] == nullptr || IsPending(i)) return;
  auto* one = new Pending();
  one->connection = threads[i]->connection;
  one->takes = threads[i]->takes;
  one->call = threads[i]->call;
  JoinPending(i);
  StartPending(i, one);
}

// --- Steps -----------------------------------------------------------------

std::string DoSend(const Slot& slot, const Op& op, long* value) {
  const std::size_t length = Length(op.a);
  const int connection = slot.connection < 0 ? 0 : slot.connection;
  std::vector<char> bytes = Bytes(connection, length);
  const int flags = ((op.c & 1) != 0 ? MSG_DONTWAIT : 0) |
                    ((op.c & 2) != 0 ? MSG_NOSIGNAL : 0);
  iovec two[3] = {{bytes.data(), length / 3},
                  {nullptr, 0},
                  {bytes.data() + length / 3, length - length / 3}};
  msghdr message{};
  message.msg_iov = two;
  message.msg_iovlen = 3;
  mmsghdr several[1] = {{message, 0}};
  const int before = sigpipes.load();
  ssize_t n = -1;
  errno = 0;
  switch (op.b % 6) {
    case 0:
      n = ::send(slot.fd, bytes.data(), length, flags);
      break;
    case 1:
      n = ::write(slot.fd, bytes.data(), length);
      break;
    case 2:
      n = ::writev(slot.fd, two, 3);
      break;
    case 3:
      n = ::sendmsg(slot.fd, &message, flags);
      break;
    case 4:
      n = ::sendto(slot.fd, bytes.data(), length, flags, nullptr, 0);
      break;
    case 5:
      n = ::sendmmsg(slot.fd, several, 1, flags);
      if (n == 1) n = several[0].msg_len;
      break;
  }
  *value = n > 0 ? n : 0;
  if (n > 0) tx_at[connection] += static_cast<std::uint64_t>(n);
  const std::string outcome = Outcome(n);
  return outcome + Print(" sigpipe %d", sigpipes.load() - before);
}

bool WouldBlock(int fd) {
  if ((::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) return false;
  pollfd one{fd, POLLIN | POLLRDHUP, 0};
  return ::poll(&one, 1, 0) == 0;
}

std::string DoRecv(int fd, std::size_t length, int way, int which, bool wait,
                   long* value) {
  std::vector<char> bytes(length + 8);
  const int flags =
      (wait ? 0 : MSG_DONTWAIT) | ((which & 1) != 0 ? MSG_PEEK : 0) |
      ((which & 2) != 0 ? MSG_WAITALL : 0) | ((which & 4) != 0 ? MSG_TRUNC : 0);
  iovec two[3] = {{bytes.data(), length / 3},
                  {nullptr, 0},
                  {bytes.data() + length / 3, length - length / 3}};
  msghdr message{};
  message.msg_iov = two;
  message.msg_iovlen = 3;
  mmsghdr several[1] = {{message, 0}};
  ssize_t n = -1;
  std::string more;
  errno = 0;
  switch (way % 6) {
    case 0:
      n = ::recv(fd, bytes.data(), length, flags);
      break;
    case 1:
    case 2:
      if (!wait && WouldBlock(fd)) return "would block";
      n = way % 6 == 1 ? ::read(fd, bytes.data(), length) : ::readv(fd, two, 3);
      break;
    case 3:
      message.msg_flags = 77;
      n = ::recvmsg(fd, &message, flags);
      if (n >= 0) {
        more = Print(" flags %x", static_cast<unsigned>(message.msg_flags));
      }
      break;
    case 4: {
      sockaddr_storage from;
      socklen_t size = sizeof from;
      n = ::recvfrom(fd, bytes.data(), length, flags,
                     reinterpret_cast<sockaddr*>(&from), &size);
      if (n >= 0) more = Print(" name %u", size);
      break;
    }
    case 5:
      n = ::recvmmsg(fd, several, 1, flags, nullptr);
      if (n == 1) n = several[0].msg_len;
      break;
  }
  if (value != nullptr) *value = n > 0 && (which & 1) == 0 ? n : 0;
  const std::string outcome = Outcome(n);
  // (With MSG_TRUNC nothing is copied.)
  return outcome + ((which & 4) != 0 ? "" : Hash(bytes.data(), n)) + more;
}

std::uint32_t Events(std::uint8_t index) {
  constexpr std::uint32_t kBase[] = {EPOLLIN,
                                     EPOLLIN | EPOLLOUT,
                                     EPOLLOUT,
                                     EPOLLIN | EPOLLRDHUP,
                                     EPOLLRDHUP | EPOLLPRI,
                                     0};
  constexpr std::uint32_t kMode[] = {0, EPOLLET, EPOLLONESHOT,
                                     EPOLLET | EPOLLONESHOT};
  return kBase[index % 6] | kMode[index / 6 % 4];
}

// One wait need not report all that is ready, if it reports something; so what
// several report is put together.
std::string DoWait(int set, int timeout) {
  std::map<std::uint32_t, std::uint32_t> seen;
  for (int i = 0; i < 24; ++i) {
    epoll_event events[8];
    const int n = ::epoll_wait(set, events, 8, i == 0 ? timeout : 0);
    if (n < 0) return Outcome(n);
    if (n == 0) break;
    for (int k = 0; k < n; ++k) seen[events[k].data.u32] |= events[k].events;
    if (i == 12) Brief();
  }
  std::string text = Print("%zu", seen.size());
  for (const auto& [slot, events] : seen) {
    text += Print(" %u%s:%x", slot % 16, slot >= 16 ? "e" : "", events);
  }
  return text;
}

std::string DoOption(int fd, const Op& op) {
  int value = op.b & 1;
  int level = SOL_SOCKET;
  int name = 0;
  // (Whether a call blocks is settled when it begins, but under rcsock only
  // while its stream does not move.)
  if (op.a % 7 < 2 && IsPending()) return "skip";
  switch (op.a % 7) {
    case 0: {
      const int flags = ::fcntl(fd, F_GETFL);
      const int n = ::fcntl(
          fd, F_SETFL, value != 0 ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
      return Outcome(n);
    }
    case 1:
      return Outcome(::ioctl(fd, FIONBIO, &value));
    case 2: {
      constexpr int kMarks[] = {1, 8, 100, 5000};
      name = SO_RCVLOWAT;
      value = kMarks[op.b % 4];
      break;
    }
    case 3: {
      linger option{op.b % 3 != 0, op.b % 3 == 1 ? 0 : 1};
      return Outcome(
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option));
    }
    case 4:
      name = SO_OOBINLINE;
      break;
    case 5:
      name = SO_KEEPALIVE;
      break;
    case 6:
      level = IPPROTO_TCP;
      name = TCP_QUICKACK;
      break;
  }
  const std::string outcome =
      Outcome(::setsockopt(fd, level, name, &value, sizeof value));
  if (name == TCP_QUICKACK) return outcome;
  int got = 0;
  socklen_t size = sizeof got;
  ::getsockopt(fd, level, name, &got, &size);
  return outcome + Print(" now %d", got);
}

std::string DoSelect(int fd, timeval* time) {
  if (fd < 0 || fd >= FD_SETSIZE) return "skip";
  fd_set in, out, except;
  FD_ZERO(&in);
  FD_ZERO(&out);
  FD_ZERO(&except);
  FD_SET(fd, &in);
  FD_SET(fd, &except);
  if (time != nullptr) FD_SET(fd, &out);
  const int n = ::select(fd + 1, &in, &out, &except, time);
  if (n < 0) return Outcome(n);
  return Print("%d in %d out %d except %d", n, FD_ISSET(fd, &in),
               FD_ISSET(fd, &out), FD_ISSET(fd, &except));
}

std::string DoFork(Slot* slot, const Op& op, long* value) {
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) Die("pipe");
  const pid_t child = ::fork();
  if (child < 0) return Outcome(child);
  if (child == 0) {
    long n = 0;
    std::string said = "nothing";
    switch (op.b % 6) {
      case 0:
        break;
      case 1: {
        Op send = op;
        send.b = 0;
        send.c = 2;
        said = DoSend(*slot, send, &n);
        break;
      }
      case 2:
        said = DoRecv(slot->fd, Length(op.a), 0, 0, false, &n);
        n = -n;
        break;
      case 3:
        said = Outcome(::close(slot->fd));
        break;
      case 4:
        said = Outcome(::shutdown(slot->fd, SHUT_WR));
        break;
      case 5:
        ::exit(0);
    }
    (void)!::write(pipe_fds[1], &n, sizeof n);
    (void)!::write(pipe_fds[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(pipe_fds[1]);
  std::string all;
  const std::uint64_t end = NowMs() + 10'000;
  for (;;) {
    pollfd one{pipe_fds[0], POLLIN, 0};
    const std::uint64_t now = NowMs();
    if (now >= end || ::poll(&one, 1, static_cast<int>(end - now)) == 0) {
      ::kill(child, SIGKILL);
      all = "        the child hangs";
      break;
    }
    char piece[256];
    const ssize_t n = ::read(pipe_fds[0], piece, sizeof piece);
    if (n <= 0) break;
    all.append(piece, static_cast<std::size_t>(n));
  }
  ::close(pipe_fds[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (all.size() < sizeof *value) all.resize(sizeof *value);
  std::memcpy(value, all.data(), sizeof *value);
  if (*value > 0) tx_at[slot->connection] += static_cast<std::uint64_t>(*value);
  return Print("child %x: ", static_cast<unsigned>(status)) +
         all.substr(sizeof *value);
}

std::string DoSplice(int fd, std::size_t length, long* value) {
  if (WouldBlock(fd)) return "would block";
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) Die("pipe");
  const ssize_t n =
      ::splice(fd, nullptr, pipe_fds[1], nullptr, length, SPLICE_F_NONBLOCK);
  std::string text = Outcome(n);
  if (n > 0) {
    std::vector<char> bytes(static_cast<std::size_t>(n));
    const ssize_t m = ::read(pipe_fds[0], bytes.data(), bytes.size());
    text += Hash(bytes.data(), m);
    *value = n;
  }
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  return text;
}

std::string DoUrgent(const Slot& slot, const Op& op, long* value) {
  char byte = 'u';
  switch (op.a % 3) {
    case 0: {
      const ssize_t n = ::send(slot.fd, &byte, 1, MSG_OOB | MSG_NOSIGNAL);
      *value = n > 0;
      return Outcome(n);
    }
    case 1: {
      const ssize_t n = ::recv(slot.fd, &byte, 1, MSG_OOB | MSG_DONTWAIT);
      return Outcome(n) + (n == 1 ? Hash(&byte, 1) : "");
    }
    default: {
      int at = 0;
      const int n = ::ioctl(slot.fd, SIOCATMARK, &at);
      return Outcome(n) + Print(" at %d", at);
    }
  }
}

// The sockets by which two processes share memory end, as when one has died.
// They have numbers that no program gets, and that its own calls may not touch.
std::string FailLanes() {
  DIR* all = ::opendir("/proc/self/fd");
  if (all == nullptr) return "done";
  while (const dirent* one = ::readdir(all)) {
    const int fd = std::atoi(one->d_name);
    if (fd <= kControl) continue;
    int domain = 0;
    socklen_t size = sizeof domain;
    if (::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) ==
            0 &&
        domain == AF_UNIX) {
      ::syscall(SYS_shutdown, fd, SHUT_RDWR);
    }
  }
  ::closedir(all);
  return "done";
}

// --- Both ends at once -----------------------------------------------------

bool Move(int fd, bool send, char* bytes, std::size_t length) {
  const std::uint64_t end = NowMs() + 20'000;
  std::size_t at = 0;
  int tries = 0;
  // TCP wakes nobody for less than SO_RCVLOWAT, whatever is asked for.
  int mark = 1;
  socklen_t size = sizeof mark;
  ::getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, &size);
  const int flags = mark > 1 ? MSG_DONTWAIT : 0;
  while (at < length) {
    const ssize_t n = send ? ::send(fd, bytes + at, length - at, MSG_NOSIGNAL)
                           : ::recv(fd, bytes + at, length - at, flags);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
      tries = 0;
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (NowMs() > end) return false;
    if (++tries > 50) {
      Brief();
    } else {
      ::sched_yield();
    }
  }
  return true;
}

bool RoundTrips(int fd, bool first, int count) {
  char message[8] = "warming";
  for (int i = 0; i < count; ++i) {
    if (first && !Move(fd, true, message, sizeof message)) return false;
    if (!Move(fd, false, message, sizeof message)) return false;
    if (!first && !Move(fd, true, message, sizeof message)) return false;
  }
  return true;
}

std::uint64_t TcpBytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  return info.tcpi_bytes_received + info.tcpi_bytes_acked;
}

// Until the bytes no longer use TCP, if `lane`.
std::string Warm(int fd, bool lane) {
  char message[8] = "warming";
  if (accepts) {
    do {
      if (!Move(fd, false, message, sizeof message) ||
          !Move(fd, true, message, sizeof message)) {
        return "the connection ended";
      }
    } while (message[0] != 'g');
    return "warm";
  }
  const std::uint64_t end = NowMs() + 10'000;
  int still = 0;
  std::uint64_t before = 0;
  while (lane ? still < 2 : still < 1) {
    if (!RoundTrips(fd, true, 10)) return "the connection ended";
    const std::uint64_t now = TcpBytes(fd);
    still = now == before || !lane ? still + 1 : 0;
    before = now;
    if (NowMs() > end) return "still on TCP";
  }
  message[0] = 'g';
  Move(fd, true, message, sizeof message);
  Move(fd, false, message, sizeof message);
  return "warm";
}

std::string DoBulk(const Slot& slot, bool sends, std::uint8_t index) {
  const std::size_t length = 200'000u << (index % 4);
  std::vector<char> bytes(length);
  if (sends) bytes = Bytes(slot.connection, length);
  if (!Move(slot.fd, sends, bytes.data(), length)) return "ended early";
  if (sends) tx_at[slot.connection] += length;
  return sends ? "sent"
               : "came" + Hash(bytes.data(), static_cast<long>(length));
}

// --- The loop --------------------------------------------------------------

int SlotOf(int connection) {
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i].fd >= 0 && slots[i].connection == connection) return i;
  }
  return -1;
}

std::string Async(const Slot& slot, const Op& op) {
  const int set = op.a % kSets;
  if (op.kind == Kind::kAsyncWait) {
    return StartPending(-1 - set, false,
                        [set = sets[set]] { return DoWait(set, -1); });
  }
  const int fd = slot.fd;
  const int connection = slot.connection < 0 ? 0 : slot.connection;
  if (op.kind == Kind::kAsyncRecv) {
    // (read and readv know no MSG_PEEK.)
    const bool peeks = (op.c & 1) != 0 && op.b % 6 != 1 && op.b % 6 != 2;
    // (Nothing: TCP's waits end by whatever wakes them.)
    return StartPending(connection, !peeks, [fd, op] {
      return DoRecv(fd, std::max<std::size_t>(1, Length(op.a)), op.b, op.c,
                    true, nullptr);
    });
  }
  if (op.kind == Kind::kAsyncPoll) {
    return StartPending(connection, false, [fd, op]() -> std::string {
      pollfd one{fd, static_cast<short>(Events(op.a % 6)), 0};
      const int n = ::poll(&one, 1, -1);
      return Outcome(n) + Print(" %x", static_cast<unsigned>(one.revents));
    });
  }
  return StartPending(connection, false,
                      [fd] { return DoSelect(fd, nullptr); });
}

// Whom SIGURG is for; what has come is told by Look from then on.
std::string DoOwner(int fd, const Op& op) {
  if (op.a % 3 == 2) {
    const int owner = ::fcntl(fd, F_GETOWN);
    return owner == ::getpid() ? "this process" : Outcome(owner);
  }
  urgents.store(0);
  return Outcome(::fcntl(fd, F_SETOWN, op.a % 3 == 0 ? ::getpid() : 0));
}

std::string Step(const Op& op, long* value) {
  Slot& slot = slots[op.slot % kSlots];
  switch (op.kind) {
    case Kind::kSend:
      return DoSend(slot, op, value);
    case Kind::kRecv:
      return DoRecv(slot.fd, Length(op.a), op.b, op.c, false, value);
    case Kind::kShutdown:
      return Outcome(::shutdown(slot.fd, op.a % 3));
    case Kind::kClose: {
      if (IsPending()) return "skip";
      const int n = ::close(slot.fd);
      slot = Slot{};
      return Outcome(n);
    }
    case Kind::kDup: {
      if (slot.fd < 0) return "skip";
      for (Slot& to : slots) {
        if (to.fd >= 0) continue;
        to = {op.a % 2 == 0 ? ::dup(slot.fd)
                            : ::fcntl(slot.fd, F_DUPFD_CLOEXEC, 50),
              slot.connection};
        return to.fd >= 0 ? "done" : "failed";
      }
      return "skip";
    }
    case Kind::kEpollCtl: {
      epoll_event event{};
      event.events = Events(op.c);
      // Edges are marked as such: there may be more of them.
      event.data.u32 = op.slot % kSlots;
      if ((event.events & (EPOLLET | EPOLLONESHOT)) == EPOLLET) {
        event.data.u32 += 16;
      }
      constexpr int kOps[] = {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD,
                              EPOLL_CTL_DEL};
      return Outcome(
          ::epoll_ctl(sets[op.a % kSets], kOps[op.b % 4], slot.fd, &event));
    }
    case Kind::kEpollWait:
      return DoWait(sets[op.a % kSets], 0);
    case Kind::kOption:
      return DoOption(slot.fd, op);
    case Kind::kError: {
      int error = 0;
      socklen_t size = sizeof error;
      const int n = ::getsockopt(slot.fd, SOL_SOCKET, SO_ERROR, &error, &size);
      const std::string outcome = Outcome(n);
      const char* name = ::strerrorname_np(error);
      return outcome + " " + (name != nullptr ? name : "?");
    }
    case Kind::kSelect: {
      timeval none{0, 0};
      return DoSelect(slot.fd, &none);
    }
    case Kind::kFork:
      return slot.fd < 0 ? "skip" : DoFork(&slot, op, value);
    case Kind::kSendfile: {
      if (slot.fd < 0) return "skip";
      off_t offset = 10 * op.b;
      const int before = sigpipes.load();
      const ssize_t n = ::sendfile(slot.fd, file, &offset, Length(op.a));
      *value = n > 0 ? n : 0;
      const std::string outcome = Outcome(n);
      return outcome + Print(" offset %ld sigpipe %d",
                             static_cast<long>(offset),
                             sigpipes.load() - before);
    }
    case Kind::kSplice:
      return DoSplice(slot.fd, Length(op.a), value);
    case Kind::kPrint:
      if (slot.fd < 0) return "skip";
      *value = std::max(0, ::dprintf(slot.fd, "print"));
      return Print("%ld", *value);
    case Kind::kUrgent:
      return DoUrgent(slot, op, value);
    case Kind::kChat:
      return RoundTrips(slot.fd, true, 5 + op.a) ? "done" : "ended early";
    case Kind::kBulk:
      return DoBulk(slot, true, op.a);
    case Kind::kFail:
      return FailLanes();
    case Kind::kAsyncRecv:
    case Kind::kAsyncPoll:
    case Kind::kAsyncSelect:
    case Kind::kAsyncWait:
      return Async(slot, op);
    case Kind::kOwner:
      return DoOwner(slot.fd, op);
    case Kind::kSignal: {
      const int to = IsPending(op.b % kThreads) ? op.b % kThreads : 0;
      if (!IsPending(to)) return "skip";
      const int before = signals.load();
      ::pthread_kill(threads[to]->thread, op.a % 2 == 0 ? SIGUSR1 : SIGUSR2);
      while (signals.load() == before) Brief();
      return "sent";
    }
    case Kind::kCount:
      break;
  }
  return "skip";
}

std::string Partner(const Op& op) {
  const int connection = op.slot;  // the driver has looked it up
  const int at = SlotOf(connection);
  if (at < 0) return "skip";
  if (op.kind == Kind::kChat) {
    return RoundTrips(slots[at].fd, false, 5 + op.a) ? "done" : "ended early";
  }
  return DoBulk(slots[at], false, op.a);
}

void Look(Reply* reply) {
  for (int i = 0; i < kSlots; ++i) {
    SlotLook& look = reply->slots[i];
    look = {-1, 0, 0};
    if (slots[i].fd < 0) continue;
    look.connection = slots[i].connection;
    pollfd one{slots[i].fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    ::poll(&one, 1, 0);
    look.revents = one.revents;
    if (::ioctl(slots[i].fd, FIONREAD, &look.readable) != 0) {
      look.readable = -errno;
    }
  }
  reply->urgent = urgents.load() != 0;
  for (int i = 0; i < kThreads; ++i) {
    Reply::Thread& thread = reply->threads[i];
    thread = {};
    if (threads[i] == nullptr) continue;
    thread.state = IsPending(i) ? 1 : 2;
    if (thread.state == 1) {
      reply->busy = reply->busy || !Asleep(threads[i]->tid.load());
    } else {
      std::snprintf(thread.ended, sizeof thread.ended, "%s",
                    threads[i]->result.c_str());
    }
  }
}

void Begin(const Request& request) {
  if (request.number == 0) {
    for (int& set : sets) set = ::epoll_create1(EPOLL_CLOEXEC);
    for (std::uint64_t& at : tx_at) at = 0;
    urgents.store(0);
  }
  int fd = -1;
  if (accepts) {
    fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) Die("accept");
  } else {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = posix_test::Loopback(request.port);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
        0) {
      Die("connect");
    }
  }
  // Else a small message may wait for the acknowledgement of the one before.
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  slots[request.number] = {fd, request.number};
}

std::string End() {
  std::string text = "ended";
  for (Slot& slot : slots) {
    if (slot.fd >= 0) ::shutdown(slot.fd, SHUT_RDWR);
  }
  const std::uint64_t end = NowMs() + 10'000;
  for (int i = 0; i < kThreads; ++i) {
    while (IsPending(i)) {
      ::pthread_kill(threads[i]->thread, SIGUSR1);
      Brief();
      if (NowMs() > end) return "a thread does not come back";
    }
    JoinPending(i);
  }
  for (Slot& slot : slots) {
    if (slot.fd >= 0) ::close(slot.fd);
    slot = Slot{};
  }
  for (int& set : sets) {
    ::close(set);
    set = -1;
  }
  return text;
}

int Listen() {
  accepts = true;
  listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = posix_test::Loopback(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 16) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) !=
          0) {
    Die("listen");
  }
  return ntohs(address.sin_port);
}

void Serve(const Request& request, Reply* reply) {
  std::string text;
  switch (request.ask) {
    case Ask::kListen:
      reply->value = Listen();
      break;
    case Ask::kBegin:
      Begin(request);
      break;
    case Ask::kWarm:
      text = Warm(slots[request.number].fd,
                  request.port == static_cast<int>(Warmth::kLane));
      break;
    case Ask::kStep: {
      long value = 0;
      text = Step(request.op, &value);
      reply->value = value;
      break;
    }
    case Ask::kPartner:
      text = Partner(request.op);
      break;
    case Ask::kAgain:
      PendingAgain(request.number);
      break;
    case Ask::kLook:
      Look(reply);
      break;
    case Ask::kEnd:
      text = End();
      break;
  }
  std::snprintf(reply->text, sizeof reply->text, "%s", text.c_str());
}

}  // namespace
}  // namespace differential

int main() {
  using namespace differential;
  struct sigaction action {};
  action.sa_handler = [](int) { sigpipes.fetch_add(1); };
  ::sigaction(SIGPIPE, &action, nullptr);
  action.sa_handler = [](int) { signals.fetch_add(1); };
  ::sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
  action.sa_handler = [](int) { urgents.fetch_add(1); };
  ::sigaction(SIGURG, &action, nullptr);
  file = ::memfd_create("bytes", MFD_CLOEXEC);
  std::vector<char> bytes(30'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(posix_test::ByteAt(99, i));
  }
  if (::write(file, bytes.data(), bytes.size()) !=
      static_cast<ssize_t>(bytes.size())) {
    Die("memfd");
  }
  ::fcntl(kControl, F_SETFD, FD_CLOEXEC);
  Request request;
  while (::recv(kControl, &request, sizeof request, 0) == sizeof request) {
    Reply reply{};
    Serve(request, &reply);
    if (::send(kControl, &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply) {
      break;
    }
  }
  return 0;
}
