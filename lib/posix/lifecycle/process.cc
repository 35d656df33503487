#include "lib/posix/lifecycle/process.h"

#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "lib/base/alone.h"
#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/critical.h"
#include "lib/base/log.h"
#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/iomux/interests.h"
#include "lib/posix/iomux/thread_bells.h"
#include "lib/posix/lifecycle/above.h"
#include "lib/posix/lifecycle/fork.h"
#include "lib/posix/lifecycle/handover.h"
#include "lib/posix/lifecycle/last_thread.h"
#include "lib/posix/lifecycle/last_words.h"
#include "lib/posix/lifecycle/raw_code.h"
#include "lib/posix/lifecycle/search.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/call_marks.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/rendezvous/start_aside.h"

namespace rcsock::posix {

using rendezvous::Conductor;

namespace {

// A filter that rcsock has not seen refuses membarrier, so a sender may miss
// that a thread here sleeps.  The conductor, which never sleeps on a lane,
// takes all streams to TCP.  That ends every sleep.
void BarriersLost() {
  if (!MarkSandboxed()) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  base::Log("a filter refuses membarrier: all streams go to TCP");
  conductor->Post([] {
    RevealAll();
    ForEachSock(
        [](Sock* sock) { sock->way_back().PinSoon(base::Reason::kSandboxed); });
  });
}

// Waits as long as a fork waits for peers, and a little more.
void AwaitOtherForks() { AwaitForks(LeaveDeadline() + 400'000'000); }

}  // namespace

[[gnu::cold]] void InitProcess(Face face) {
  SetOwnFace(face);
  if (face == Face::kBehind) {
    real::UseFirstDefinitions();
    return;
  }
  if (OwnPid() != 0) return;
  KnowOwnPid();
  static constexpr base::CriticalHooks kCritical{&EnterCritical, &LeaveCritical,
                                                 &InHandler};
  base::critical_hooks.store(&kCritical, std::memory_order_release);
  base::LoadConfig();
  base::barriers_lost = &BarriersLost;
  base::InitBarriers();
  InitCalls();
  InitThreadBells();
  // Registrations first: a stream that searches may come onto a lane.
  Interests::Install();
  AllowSearches();
  ::pthread_atfork(&ForkPrepare, &ForkParent, &ForkChild);
  base::StartClock();
  KnowFirstThread();
  // The first handler to come is the last to run: the program's own handlers
  // may still use their connections.  No hook sees the _exit of quick_exit.
  ::at_quick_exit(&AtExit);
  TakeInherited();
  // A program that is linked with the library makes its threads without a hook.
  if (face == Face::kPreload) {
    real::LookEarly();
    base::BeginAlone();
    InitLastWords(&PutOff);
    InitSignals();
  }
}

void PinProcess(base::Reason reason) {
  MarkPinned(reason);
  RevealAll();
  const auto listens = [](Sock* sock) {
    return sock->listening.load(std::memory_order_relaxed);
  };
  AskThenAwait(
      [&](Sock* sock) {
        if (!listens(sock)) sock->way_back().PinSoon(reason);
      },
      [&](Sock* sock, std::uint64_t deadline) {
        if (!listens(sock)) sock->way_back().Pin(reason, deadline);
      });
}

void PinProcessFromConductor(base::Reason reason) {
  MarkPinned(reason);
  RevealAll();
  ForEachSock([&](Sock* sock) {
    if (!sock->listening.load(std::memory_order_relaxed)) {
      sock->way_back().PinSoon(reason);
    }
  });
}

bool BeyondLimit(std::uint64_t count) {
  rlimit limit{};
  return ProcessPinned() != base::Reason::kSandboxed &&
         ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && count > limit.rlim_cur;
}

void PinBySocket(std::uint64_t inode, base::Reason reason) {
  RevealAll();
  ForEachSock([&](Sock* sock) {
    if (SocketInode(sock->fd()) == inode) sock->way_back().Pin(reason);
  });
}

void BeforeExec(bool followed) {
  if (tls_signals.depth != 0) return;  // as AtExit
  AwaitOtherForks();
  Stats total;
  total.CopyFrom(stats);
  RemoteLanes::LeaveAll(base::NowNs() + 5'000'000'000);
  ClosedStreams::BeginToEnd();
  // Once the kernel has the stream, the kernel resets as its close would.
  const auto leaves = [](Sock* sock) {
    return KeptByExec(sock) || sock->across_exec().Resets() ||
           sock->claim().SharesLane();
  };
  const auto ask = [&](Sock* sock) {
    if (Route(sock).Engaged() && leaves(sock)) sock->across_exec().Ask();
  };
  AskThenAwait(ask, [&](Sock* sock, std::uint64_t deadline) {
    const bool closes = !KeptByExec(sock);
    if (closes && !sock->across_exec().Resets() &&
        !sock->claim().SharesLane()) {
      if (sock->mode() == Mode::kEngine)
        sock->across_exec().Flush(deadline, false);
    } else if (Route(sock).Engaged() && !sock->across_exec().Pin(deadline)) {
      // A stream that only looks for its peer is pinned, too.  If the stream
      // were adopted meanwhile, the bytes that it reads would end with this
      // process.
      base::Log("fd %d: its peer did not answer before exec", sock->fd());
      sock->claim().Lose();
    }
    // The lost bytes are counted in `total`, and not in `stats`: an exec that
    // fails loses nothing.
    if (!closes && !followed) {
      if (const std::size_t n = sock->read_ahead().Bytes()) {
        CountLost(sock, n, &total);
      }
    }
    sock->tally().Fold(&total);
    // The new program holds what stays open.
    if (closes) sock->across_exec().Leave();
  });
  ClosedStreams::Flush(base::NowNs() + 1'000'000'000, false);
  WriteStats(total);
  Conductor::LeaveRdma();
}

void AfterExec() {
  if (InBorrowedMemory()) return;
  HideAfterExec();
  ForEachSock([](Sock* sock) {
    sock->across_exec().Failed();
    sock->across_exec().TakeResetBack();
  });
  ClosedStreams::TakeResetsBack();
}

void EnterSandbox() {
  if (OwnFace() == Face::kBehind || InBorrowedMemory()) return;
  if (!MarkSandboxed()) return;
  const int saved = errno;
  // The filter may not know what this calls.
  GuardFaultsEarly();
  RevealAll();
  Above::Get().BeforeSandbox();
  AskThenAwait(
      [](Sock* sock) {
        if (Route(sock).Engaged())
          sock->way_back().Step(base::Reason::kSandboxed);
      },
      [](Sock* sock, std::uint64_t deadline) {
        sock->way_back().PinHere(base::Reason::kSandboxed, deadline);
      });
  // A filter for all threads (TSYNC) may kill for what a start calls, and for
  // what the look at the program's code calls that follows.  So it may for what
  // the conductor asks the kernel about its patient thread.
  rendezvous::AwaitStartAside();
  rendezvous::Conductor::AwaitPromptOnly();
  raw_code::AwaitTurn();
  base::ForgetBarriers();
  // No file can be opened later.  What comes after this is not counted.
  Stats total;
  total.CopyFrom(stats);
  ForEachSock([&](Sock* sock) { sock->tally().Fold(&total); });
  WriteStats(total);
  base::EndLog();
  EndLastWords();
  EndSigpipeHandler();
  errno = saved;
}

void BeforePrctl(int option, unsigned long mode, unsigned long filter) {
  if (option != PR_SET_SECCOMP) return;
  if (mode == SECCOMP_MODE_STRICT ||
      (mode == SECCOMP_MODE_FILTER && filter != 0)) {
    EnterSandbox();
  }
}

[[gnu::cold]] void AtExit() {
  if (OwnFace() == Face::kBehind) return;
  // Nothing has ever been followed, and no statistics are wanted.
  if (fd_high.load(std::memory_order_relaxed) < 0 &&
      *base::GetConfig().stats == '\0') {
    return;
  }
  if (InBorrowedMemory()) return;
  // If depth is not 0, the handler of a fault inside one of rcsock's own calls
  // ends the process.  This thread may hold latches.
  if (tls_signals.depth != 0) return;
  LeaveHiddenAtExit();
  if (ProcessPinned() == base::Reason::kSandboxed) {
    // LetGo touches memory alone, and makes no call that a filter may refuse.
    ForEachSock([](Sock* sock) { sock->holders().LetGo(); });
    return;
  }
  const int saved = errno;
  EndForks();
  AwaitOtherForks();
  const std::uint64_t deadline = base::NowNs() + 5'000'000'000;
  RemoteLanes::LeaveAll(deadline);
  // Children go on with their copies.
  AskThenAwait(
      [](Sock* sock) {
        if (sock->claim().SharesLane())
          sock->way_back().Step(base::Reason::kPinnedFork);
      },
      [](Sock* sock, std::uint64_t until) {
        if (!sock->claim().LeaveToCopies(until)) sock->claim().Lose();
      });
  ClosedStreams::BeginToEnd();
  ForEachSock([&](Sock* sock) {
    sock->across_exec().SeekNoMore();
    if (sock->mode() == Mode::kEngine)
      sock->across_exec().Flush(deadline, true);
    sock->across_exec().ResetAtExit();
    sock->noted().Leave(sock->fd());
    sock->tally().Account();
  });
  ClosedStreams::Flush(deadline, true);
  WriteStats(stats);
  Conductor::LeaveRdma();
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
    if (Entry(number) == nullptr || base::IsInternalFd(number)) continue;
    if (borrowed) {
      Lend(number);
    } else if (LookupToClose(number) != nullptr) {
      CloseAny(number);
    }
  }
}

}  // namespace rcsock::posix
