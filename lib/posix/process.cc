#include "lib/posix/process.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "lib/base/alone.h"
#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/critical.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/rdma/memory.h"
#include "lib/posix/clone.h"
#include "lib/posix/handover.h"
#include "lib/posix/inside.h"
#include "lib/posix/last_thread.h"
#include "lib/posix/shell.h"
#include "lib/posix/signals.h"
#include "lib/posix/table.h"
#include "lib/posix/thread_bells.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

using rendezvous::Conductor;

Stats stats;

namespace {

std::atomic<long> own_pid{0};
std::atomic<Face> own_face{Face::kPreload};
std::atomic<base::Reason> process_pinned{base::Reason::kNone};

// With the latches of a fork held it waits for nobody.
template <class Each>
void ForEachSock(Each&& each, bool latched = false) {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    Sock* sock = nullptr;
    if (!latched) {
      sock = LookupSock(fd);
    } else if (File* file = Named(fd);
               file != nullptr && file->kind == FileKind::kSock) {
      sock = static_cast<Sock*>(file);
    }
    // (fds: another thread is closing it.)
    if (sock != nullptr && sock->fd() == fd && sock->fds.load() > 0) each(sock);
  }
}

// All are asked first and waited for after, so that the round trips overlap.
template <class Ask, class Await>
void AskThenAwait(Ask&& ask, Await&& await) {
  ForEachSock(ask);
  const std::uint64_t deadline = Sock::LeaveDeadline();
  ForEachSock([&](Sock* sock) { await(sock, deadline); });
}

// What WriteStats puts together.  Not on the stack, which a thread, a handler
// or a child of clone() may have little of.
struct Report {
  char path[512];
  char program[128];
  char text[4096];
};
constinit base::Latch report_latch;
constinit Report report;  // report_latch's

// Forks that have begun, of all threads, and of this one: a handler may fork
// while fork() waits for a peer.
constinit std::atomic<int> forks_under_way{0};
constinit thread_local int tls_forks_under_way = 0;
constinit thread_local bool tls_forking = false;    // since ForkPrepare
constinit thread_local std::uint32_t tls_fork = 0;  // its number

void BeginFork() {
  // Those that handlers have jumped out of are over.
  if (tls_forks_under_way != 0 && !InHandler()) {
    forks_under_way.fetch_sub(tls_forks_under_way);
    tls_forks_under_way = 0;
  }
  ++tls_forks_under_way;
  forks_under_way.fetch_add(1);
  // TryAdopt sets the mode of a stream, fences, and asks whether a fork is
  // under way; what follows here asks for the modes.  One of the two sees the
  // other.
  base::FullFence();
}

void EndFork() {
  if (tls_forks_under_way == 0) return;
  --tls_forks_under_way;
  forks_under_way.fetch_sub(1);
}

void ForkPrepare() {
  if (InBorrowedMemory()) return;
  // Both processes will hold the connections: none may stay on a lane, nor take
  // one from now on.
  BeginFork();
  ForEachSock([](Sock* sock) { sock->Hold(); });
  // (Peers may take their time.  Streams that other threads make meanwhile get
  // no lane.)
  AskThenAwait(
      [](Sock* sock) {
        if (sock->Engaged()) sock->StepToPlain(base::Reason::kPinnedFork);
      },
      [](Sock* sock, std::uint64_t deadline) {
        if (sock->Engaged()) {
          sock->ToPlain(base::Reason::kPinnedFork, deadline);
        }
      });
  ForEachSock([](Sock* sock) { sock->MarkFork(); });
  // No handler while these are held: it could fork too, and wait for itself, or
  // jump away with the conductor's step.
  EnterCritical();
  // (Until here a handler may have forked, all of it.)
  tls_forking = true;
  Conductor::ForkPrepare();
  SignalsForkLock();
  InterestsForkLock();
  SockForkLock();
  ShellForkLock();
  // Nothing comes into the table any more, so here each stream that the child
  // will have is counted, once.  (What those have moved that are new since
  // MarkFork, the parent tells when it leaves them: ForkChild takes it as
  // told.)
  static constinit std::uint32_t forks = 0;
  tls_fork = ++forks;
  ForEachSock([](Sock* sock) { sock->ShareByFork(tls_fork); }, true);
}

void ForkParent() {
  if (!tls_forking) return;
  tls_forking = false;
  ShellForkUnlock();
  SockForkUnlock(false);
  InterestsForkUnlock();
  Conductor::ForkParent();
  EndFork();
  SignalsForkUnlock(false);
  LeaveCritical();
}

void ForkChild() {
  own_pid.store(::syscall(SYS_getpid), std::memory_order_relaxed);
  KnowFirstThread();
  const bool locked = tls_forking;
  tls_forking = false;
  report_latch.Reset();
  if (locked) EndFork();
  // (Of this thread there may be one that a handler has interrupted to fork.)
  forks_under_way.store(tls_forks_under_way, std::memory_order_relaxed);
  if (locked) ShellForkUnlock();
  ShellForkChild();
  SockForkUnlock(true);
  InterestsForkUnlock();
  if (ProcessPinned() != base::Reason::kSandboxed) base::InitBarriers();
  CallsForkChild();
  stats.Clear();
  InterestsForkChild();
  ForEachSock([](Sock* sock) { sock->ForkChild(); });
  Conductor::ForkChild(tls_signals.asleep != 0);
  if (!locked) return;
  SignalsForkUnlock(true);
  LeaveCritical();
}

void Append(char* text, std::size_t capacity, std::size_t* at,
            const char* format, ...) __attribute__((format(printf, 4, 5)));
void Append(char* text, std::size_t capacity, std::size_t* at,
            const char* format, ...) {
  if (*at >= capacity) return;
  va_list arguments;
  va_start(arguments, format);
  const int n = std::vsnprintf(text + *at, capacity - *at, format, arguments);
  va_end(arguments);
  if (n > 0) *at += static_cast<std::size_t>(n);
}

unsigned long long Get(const std::atomic<std::uint64_t>& value) {
  return value.load(std::memory_order_relaxed);
}

// Written by hand and not by a library: this runs inside a program that is
// ending, perhaps in _exit after a fork, where the heap may be unusable.
void WriteStats(const Stats& from) {
  const char* pattern = base::GetConfig().stats;
  if (*pattern == '\0') return;
  // (A handler that ends the process runs before or after, never within.)
  const Critical critical;
  const std::scoped_lock hold(report_latch);
  auto& [path, program, text] = report;
  std::size_t length = 0;
  const long pid = ::syscall(SYS_getpid);
  for (const char* at = pattern; *at != '\0' && length < sizeof path - 24;
       ++at) {
    if (at[0] == '%' && at[1] == 'p') {
      length += static_cast<std::size_t>(
          std::snprintf(path + length, sizeof path - length, "%ld", pid));
      ++at;
    } else {
      path[length++] = *at;
    }
  }
  path[length] = '\0';

  std::size_t n = 0;
  std::strcpy(program, "?");
  const long file = ::syscall(SYS_openat, AT_FDCWD, "/proc/self/comm",
                              O_RDONLY | O_CLOEXEC, 0);
  if (file >= 0) {
    const long r = ::syscall(SYS_read, file, program, sizeof program - 1);
    ::syscall(SYS_close, file);
    if (r > 0) program[r - 1] = '\0';
  }
  for (char* c = program; *c != '\0'; ++c) {
    if (*c == '"' || *c == '\\' || static_cast<unsigned char>(*c) < 32)
      *c = '?';
  }
  Append(text, sizeof text, &n,
         "{\"pid\": %ld, \"program\": \"%s\", \"streams\": %llu, "
         "\"promoted\": %llu, \"lanes\": {",
         pid, program, Get(from.streams), Get(from.promoted));
  const struct {
    const char* name;
    const LaneCounts& counts;
  } lanes[] = {{"tcp", from.tcp}, {"shm", from.shm}, {"rdma", from.rdma}};
  for (const auto& lane : lanes) {
    Append(text, sizeof text, &n,
           "%s\"%s\": {\"streams\": %llu, \"tx_bytes\": %llu, "
           "\"rx_bytes\": %llu}",
           &lane == lanes ? "" : ", ", lane.name, Get(lane.counts.streams),
           Get(lane.counts.tx_bytes), Get(lane.counts.rx_bytes));
  }
  Append(text, sizeof text, &n,
         "}, \"demotions\": %llu, \"failovers\": %llu, "
         "\"lost_bytes\": %llu, \"evicted\": "
         "{\"budget\": %llu, \"memory\": %llu, \"idle_rings\": %llu}, "
         "\"pinned\": {\"bytes\": %llu, \"peak\": %llu}, \"reasons\": {",
         Get(from.demotions), Get(from.failovers), Get(from.lost_bytes),
         Get(from.evicted_budget), Get(from.evicted_memory),
         Get(from.evicted_idle),
         static_cast<unsigned long long>(lane::rdma::Memory::Total()),
         static_cast<unsigned long long>(lane::rdma::Memory::Peak()));
  bool first = true;
  for (int r = 0; r < static_cast<int>(base::Reason::kCount); ++r) {
    const unsigned long long count = Get(from.reasons[r]);
    if (count == 0) continue;
    Append(text, sizeof text, &n, "%s\"%s\": %llu", first ? "" : ", ",
           base::kReasonKeys[r], count);
    first = false;
  }
  Append(text, sizeof text, &n, "}}\n");
  if (n > sizeof text - 1) n = sizeof text - 1;
  // Beyond this limit write sends SIGXFSZ, which would end the program.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < n) {
    base::Log("can't write statistics to %s: the file size limit", path);
    return;
  }
  const long out = ::syscall(SYS_openat, AT_FDCWD, path,
                             O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0) {
    base::Log("can't write statistics to %s: %s", path,
              ::strerrordesc_np(errno));
    return;
  }
  ::syscall(SYS_write, out, text, n);
  ::syscall(SYS_close, out);
}

// True for the first only: streams leave their lanes, and no other comes after.
bool FirstSandboxed() {
  return process_pinned.exchange(base::Reason::kSandboxed) !=
         base::Reason::kSandboxed;
}

// A filter that nobody has told us of refuses membarrier, so a sender may miss
// that somebody here sleeps: the conductor, which never sleeps on a lane, takes
// all streams to TCP, and that ends every sleep.
void BarriersLost() {
  if (!FirstSandboxed()) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  base::Log("a filter refuses membarrier: all streams go to TCP");
  conductor->Post([] {
    ForEachSock(
        [](Sock* sock) { sock->LeaveForGood(base::Reason::kSandboxed); });
  });
}

}  // namespace

void Stats::Clear() {
  for (auto* value :
       {&streams, &promoted, &demotions, &failovers, &evicted_budget,
        &evicted_memory, &evicted_idle, &lost_bytes, &tcp.streams,
        &tcp.tx_bytes, &tcp.rx_bytes, &shm.streams, &shm.tx_bytes,
        &shm.rx_bytes, &rdma.streams, &rdma.tx_bytes, &rdma.rx_bytes}) {
    value->store(0, std::memory_order_relaxed);
  }
  for (auto& reason : reasons) reason.store(0, std::memory_order_relaxed);
}

void Stats::CopyFrom(const Stats& other) {
  const auto copy = [](std::atomic<std::uint64_t>& to,
                       const std::atomic<std::uint64_t>& from) {
    to.store(from.load(std::memory_order_relaxed), std::memory_order_relaxed);
  };
  copy(streams, other.streams);
  copy(promoted, other.promoted);
  copy(demotions, other.demotions);
  copy(failovers, other.failovers);
  copy(evicted_budget, other.evicted_budget);
  copy(evicted_memory, other.evicted_memory);
  copy(evicted_idle, other.evicted_idle);
  copy(lost_bytes, other.lost_bytes);
  for (auto lane : {&Stats::tcp, &Stats::shm, &Stats::rdma}) {
    copy((this->*lane).streams, (other.*lane).streams);
    copy((this->*lane).tx_bytes, (other.*lane).tx_bytes);
    copy((this->*lane).rx_bytes, (other.*lane).rx_bytes);
  }
  for (int r = 0; r < static_cast<int>(base::Reason::kCount); ++r) {
    copy(reasons[r], other.reasons[r]);
  }
}

std::unique_ptr<Stats> CountAll() {
  std::unique_ptr<Stats> all(new (std::nothrow) Stats);
  if (all == nullptr) return all;
  all->CopyFrom(stats);
  ForEachSock([&](Sock* sock) { sock->Fold(all.get()); });
  return all;
}

bool Forking() { return forks_under_way.load(std::memory_order_seq_cst) != 0; }

long OwnPid() { return own_pid.load(std::memory_order_relaxed); }

void BeforeBareFork() { ForkPrepare(); }

void AfterBareFork(long child) {
  const int saved = errno;
  if (child == 0) {
    ForkChild();
  } else {
    ForkParent();
    if (child < 0) ForkFailed();
  }
  errno = saved;
}

bool ClonesAsFork(unsigned long flags) {
  return (flags & (CLONE_VM | CLONE_FILES | CLONE_SETTLS | CLONE_VFORK)) == 0;
}

int CloneAsFork(int (*start)(void*), void* stack, int flags, void* argument,
                void* const (&more)[3]) {
  struct Child {
    int (*start)(void*);
    void* argument;
  } with{start, argument};
  // In the child, where it ends with what `start` returns.  (By libc that would
  // be the end of one thread, and the conductor is another.)
  const auto begin = [](void* child) -> int {
    const Child mine = *static_cast<Child*>(child);
    ForkChild();
    const int status = mine.start(mine.argument);
    AtExit();
    real::_exit(status);
    return status;
  };
  ForkPrepare();
  const int child =
      RCSOCK_REAL(clone)(begin, stack, flags, &with, more[0], more[1], more[2]);
  AfterBareFork(child);
  return child;
}

void ForkFailed() {
  if (InBorrowedMemory()) return;  // nor was anything counted
  ForEachSock([](Sock* sock) { sock->UnshareByFork(tls_fork); });
}

Face OwnFace() { return own_face.load(std::memory_order_relaxed); }

void InitProcess(Face face) {
  own_face.store(face, std::memory_order_relaxed);
  if (face == Face::kBehind) {
    real::UseFirstDefinitions();
    return;
  }
  if (own_pid.load(std::memory_order_relaxed) != 0) return;
  own_pid.store(::syscall(SYS_getpid), std::memory_order_relaxed);
  static constexpr base::CriticalHooks kCritical{&EnterCritical,
                                                 &LeaveCritical};
  base::critical_hooks.store(&kCritical, std::memory_order_release);
  base::LoadConfig();
  base::barriers_lost = &BarriersLost;
  base::InitBarriers();
  InitCalls();
  InitThreadBells();
  ::pthread_atfork(&ForkPrepare, &ForkParent, &ForkChild);
  KnowFirstThread();
  // (The first to come is the last to run: the program's own may still use
  // their connections.  quick_exit's _exit is not to be seen.)
  ::at_quick_exit(&AtExit);
  TakeInherited();
  // (Programs that are linked with the library make their threads past it.)
  if (face == Face::kPreload) base::BeginAlone();
}

bool InBorrowedMemory() {
  const long pid = own_pid.load(std::memory_order_relaxed);
  return pid != 0 && pid != ::syscall(SYS_getpid);
}

void PinProcess(base::Reason reason) {
  // seq_cst: whoever makes a stream eligible looks at this after.
  auto none = base::Reason::kNone;
  process_pinned.compare_exchange_strong(none, reason);
  const auto listens = [](Sock* sock) {
    return sock->listening.load(std::memory_order_relaxed);
  };
  AskThenAwait(
      [&](Sock* sock) {
        if (!listens(sock)) sock->LeaveForGood(reason);
      },
      [&](Sock* sock, std::uint64_t deadline) {
        if (!listens(sock)) sock->Pin(reason, deadline);
      });
}

bool BeyondLimit(std::uint64_t count) {
  rlimit limit{};
  return ProcessPinned() != base::Reason::kSandboxed &&
         ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && count > limit.rlim_cur;
}

base::Reason ProcessPinned() {
  return process_pinned.load(std::memory_order_relaxed);
}

void PinBySocket(std::uint64_t inode, base::Reason reason) {
  ForEachSock([&](Sock* sock) {
    if (SocketInode(sock->fd()) == inode) sock->Pin(reason);
  });
}

bool KeptByExec(Sock* sock) {
  const auto kept = [](int fd) {
    const long flags = ::syscall(SYS_fcntl, fd, F_GETFD);
    return flags >= 0 && (flags & FD_CLOEXEC) == 0;
  };
  if (kept(sock->fd())) return true;
  if (sock->fds.load(std::memory_order_relaxed) == 1) return false;
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    if (Named(fd) == sock && kept(fd)) return true;
  }
  return false;
}

void CountLost(Sock* sock, std::size_t bytes, Stats* in) {
  base::Log("fd %d: %zu bytes read ahead are lost to a program without rcsock",
            sock->fd(), bytes);
  in->lost_bytes.fetch_add(bytes, std::memory_order_relaxed);
  in->reasons[static_cast<int>(base::Reason::kUnreadExec)].fetch_add(
      1, std::memory_order_relaxed);
}

void BeforeExec(bool followed) {
  if (tls_signals.depth != 0) return;  // as AtExit
  Stats total;
  total.CopyFrom(stats);
  Sock::LeaveRemoteLanes(base::NowNs() + 5'000'000'000);
  const auto ask = [](Sock* sock) {
    if (sock->Engaged() && KeptByExec(sock)) sock->AskForExec();
  };
  AskThenAwait(ask, [&](Sock* sock, std::uint64_t deadline) {
    const bool closes = !KeptByExec(sock);
    if (closes) {
      if (sock->mode() == Mode::kEngine) sock->FlushAtExit(deadline);
    } else if (sock->Engaged() && !sock->PinForExec(deadline)) {
      // (One that only looks for its peer is pinned too: adopted on the way,
      // what it reads would go with us.)
      base::Log("fd %d: its peer did not answer before exec", sock->fd());
    }
    // (Not in `stats`: an exec that fails loses nothing.)
    if (!closes && !followed) {
      if (const std::size_t n = sock->UnreadBytes()) {
        CountLost(sock, n, &total);
      }
    }
    sock->Fold(&total);
    // What stays open goes on being held, by the new program.
    if (closes) sock->LeaveForExec();
  });
  Sock::FlushClosed(base::NowNs() + 1'000'000'000, false);
  WriteStats(total);
}

void AfterExec() {
  if (InBorrowedMemory()) return;
  ForEachSock([](Sock* sock) {
    sock->Unpin();
    sock->TakeResetBack();
  });
  Sock::TakeResetsBack();
}

void EnterSandbox() {
  if (OwnFace() == Face::kBehind || InBorrowedMemory()) return;
  if (!FirstSandboxed()) return;
  const int saved = errno;
  AskThenAwait(
      [](Sock* sock) {
        if (sock->Engaged()) sock->StepToPlain(base::Reason::kSandboxed);
      },
      [](Sock* sock, std::uint64_t deadline) {
        sock->PinHere(base::Reason::kSandboxed, deadline);
      });
  base::ForgetBarriers();
  // Nothing can be opened later; what comes after this is not counted.
  Stats total;
  total.CopyFrom(stats);
  ForEachSock([&](Sock* sock) { sock->Fold(&total); });
  WriteStats(total);
  errno = saved;
}

void BeforePrctl(int option, unsigned long mode, unsigned long filter) {
  if (option != PR_SET_SECCOMP) return;
  if (mode == SECCOMP_MODE_STRICT ||
      (mode == SECCOMP_MODE_FILTER && filter != 0)) {
    EnterSandbox();
  }
}

void AtExit() {
  if (OwnFace() == Face::kBehind) return;
  if (InBorrowedMemory()) return;
  // The handler of a fault inside one of our own calls ends the process: the
  // latches may be this thread's.
  if (tls_signals.depth != 0) return;
  if (ProcessPinned() == base::Reason::kSandboxed) {
    // Words of memory alone: no call that a filter may refuse.
    ForEachSock([](Sock* sock) { sock->LetGo(); });
    return;
  }
  const int saved = errno;
  const std::uint64_t deadline = base::NowNs() + 5'000'000'000;
  Sock::LeaveRemoteLanes(deadline);
  ForEachSock([&](Sock* sock) {
    if (sock->mode() == Mode::kEngine) sock->FlushAtExit(deadline, true);
    sock->ResetAtExit();
    sock->Account();
  });
  Sock::FlushClosed(deadline, true);
  WriteStats(stats);
  errno = saved;
}

int BeforeParting(int flags, int parts) {
  if ((flags & parts) == 0 || InBorrowedMemory()) return flags;
  if (base::Alone()) return flags & ~parts;
  const int saved = errno;
  PinProcess(base::Reason::kPinnedSyscall);
  errno = saved;
  return flags;
}

void CloseFollowed(unsigned first, unsigned last) {
  const int top = fd_high.load(std::memory_order_relaxed);
  if (first > static_cast<unsigned>(kMaxFds)) return;
  const bool borrowed = InBorrowedMemory();
  for (int number = static_cast<int>(first);
       number <= top && static_cast<unsigned>(number) <= last; ++number) {
    if (Entry(number) == nullptr) continue;
    if (borrowed) {
      Lend(number);
    } else if (Lookup(number) != nullptr) {
      CloseFd(number);
    }
  }
}

}  // namespace rcsock::posix
