// The loop: what the driver asks for, step by step.
#include "tests/differential/agent.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "tests/posix/common.h"

namespace differential {

using posix_test::NowMs;

Slot slots[kSlots];
int sets[kSets] = {-1, -1};
std::uint64_t tx_at[kConnections];
bool accepts = false;
std::atomic<int> sigpipes{0};
std::atomic<int> signals{0};

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

std::vector<char> Bytes(int connection, std::size_t length) {
  std::vector<char> bytes(length + 1);
  for (std::size_t i = 0; i < length; ++i) {
    bytes[i] = static_cast<char>(
        posix_test::ByteAt(static_cast<std::uint64_t>(connection * 2 + accepts),
                           tx_at[connection] + i));
  }
  return bytes;
}

void Brief() {
  timespec brief{0, 100'000};
  ::nanosleep(&brief, nullptr);
}

namespace {

int listener = -1;
int file = -1;
std::atomic<int> urgents{0};

int SlotOf(int connection) {
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i].fd >= 0 && slots[i].connection == connection) return i;
  }
  return -1;
}

std::string Async(const Slot& slot, const Op& op) {
  const int set = op.a % kSets;
  if (op.kind == Kind::kAsyncWait) {
    return StartPending(-1 - set, false, [set = sets[set], way = op.b] {
      return DoWait(set, -1, way);
    });
  }
  const int fd = slot.fd;
  const int connection = slot.connection < 0 ? 0 : slot.connection;
  if (op.kind == Kind::kAsyncRecv) {
    // (read, readv and preadv2 know no MSG_PEEK.)
    const bool peeks =
        (op.c & 1) != 0 && op.b % 7 != 1 && op.b % 7 != 2 && op.b % 7 != 6;
    // (Nothing: TCP's waits end by whatever wakes them.)
    return StartPending(connection, !peeks, [fd, op] {
      return DoRecv(fd, std::max<std::size_t>(1, Length(op.a)), op.b, op.c,
                    true, nullptr);
    });
  }
  if (op.kind == Kind::kAsyncSeveral) {
    Op some = op;
    if (Length(op.a) == 0) some.a = 0;
    return StartPending(connection, (op.c & 1) == 0, [fd, some] {
      return DoRecvSeveral(fd, some, true, nullptr);
    });
  }
  if (op.kind == Kind::kAsyncPoll) {
    return StartPending(connection, false, [fd, op]() -> std::string {
      pollfd one{fd, static_cast<short>(Events(op.a % 6)), 0};
      const int n = op.b % 2 == 0 ? ::poll(&one, 1, -1)
                                  : ::ppoll(&one, 1, nullptr, nullptr);
      return Outcome(n) + Print(" %x", static_cast<unsigned>(one.revents));
    });
  }
  return StartPending(connection, false,
                      [fd, op] { return DoSelect(fd, nullptr, op.b); });
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

std::string Step(const Op& op, int port, long* value) {
  Slot& slot = slots[op.slot % kSlots];
  switch (op.kind) {
    case Kind::kSend:
    case Kind::kMore:
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
      // (Of several such, who is woken is the kernel's to choose: so there is
      // one of them.)
      if (op.b >= 8 && op.slot % kSlots == 0 && op.a % kSets == 0) {
        event.events |= EPOLLEXCLUSIVE;
      }
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
      return DoWait(sets[op.a % kSets], 0, op.b);
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
      return DoSelect(slot.fd, &none, op.b);
    }
    case Kind::kFork:
      return slot.fd < 0 ? "skip" : DoFork(&slot, op, value);
    case Kind::kSendfile: {
      if (slot.fd < 0) return "skip";
      off_t offset = 10 * op.b;
      const int before = sigpipes.load();
      ssize_t n;
      do {
        n = ::sendfile(slot.fd, file, &offset, Length(op.a));
      } while (n < 0 && Again(slot.fd));
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
    case Kind::kAsyncSeveral:
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
    case Kind::kCork:
      return DoCork(slot.fd, op.b % 2 == 0);
    case Kind::kSendSeveral:
      return DoSendSeveral(slot, op, value);
    case Kind::kRecvSeveral:
      return DoRecvSeveral(slot.fd, op, false, value);
    case Kind::kTimed:
      return DoTimed(slot.fd, op, value);
    case Kind::kSpliceTo:
      return DoSpliceTo(slot, Length(op.a), value);
    case Kind::kInq:
      return DoInq(slot.fd, op, value);
    case Kind::kPeekOffset:
      return DoPeekOffset(slot.fd, op);
    case Kind::kDupOnto:
      return DoDupOnto(slot, &slots[op.a % kSlots], op.b);
    case Kind::kNames:
      return DoNames(slot.fd, port, op.a);
    case Kind::kBad:
      return DoBad(slot.fd, op);
    case Kind::kMasked:
      return DoMasked(slot.fd, op);
    case Kind::kUnconnect:
      return DoUnconnect(slot.fd);
    case Kind::kConnect:
    case Kind::kAccept:  // Open
    case Kind::kCount:
      break;
  }
  return "skip";
}

// Else a small message may wait for the acknowledgement of the one before.
void NoDelay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string Open(const Request& request) {
  for (Slot& slot : slots) {
    if (slot.fd >= 0) continue;
    int fd = -1;
    const std::string text = request.op.kind == Kind::kConnect
                                 ? DoConnect(request.port, request.op.a, &fd)
                                 : DoAccept(listener, request.op.a, &fd);
    if (fd < 0) return text;
    NoDelay(fd);
    slot = {fd, request.number};
    return text;
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
    look = {-1, 0, 0, 0};
    if (slots[i].fd < 0) continue;
    look.connection = slots[i].connection;
    pollfd one{slots[i].fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    ::poll(&one, 1, 0);
    look.revents = one.revents;
    if (::ioctl(slots[i].fd, FIONREAD, &look.readable) != 0) {
      look.readable = -errno;
    }
    tcp_info info{};
    socklen_t size = sizeof info;
    ::getsockopt(slots[i].fd, IPPROTO_TCP, TCP_INFO, &info, &size);
    // (When a FIN is acknowledged is TCP's to choose.)
    look.state = info.tcpi_state;
    if (look.state == TCP_FIN_WAIT1) look.state = TCP_FIN_WAIT2;
  }
  reply->urgent = urgents.load() != 0;
  if (accepts) {
    pollfd one{listener, POLLIN, 0};
    reply->backlog = ::poll(&one, 1, 0) != 0;
  }
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
    failed = false;
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
  NoDelay(fd);
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
  pollfd one{listener, POLLIN, 0};
  while (accepts && ::poll(&one, 1, 0) == 1) {
    ::close(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
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
      failed = request.failed;
      long value = 0;
      const bool opens =
          request.op.kind == Kind::kConnect || request.op.kind == Kind::kAccept;
      text = opens ? Open(request) : Step(request.op, request.port, &value);
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
