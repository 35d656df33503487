#include "lib/posix/lifecycle/fork.h"

#include <sched.h>

#include <cerrno>
#include <cstdint>

#include "lib/base/alone.h"
#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/iomux/interests.h"
#include "lib/posix/lifecycle/above.h"
#include "lib/posix/lifecycle/clone.h"
#include "lib/posix/lifecycle/last_thread.h"
#include "lib/posix/lifecycle/last_words.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/lifecycle/raw_code.h"
#include "lib/posix/lifecycle/shell.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_fork.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/call_marks.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

using rendezvous::Conductor;

namespace {

constinit thread_local bool tls_forking = false;    // since ForkPrepare
constinit thread_local std::uint32_t tls_fork = 0;  // its number

void Lock() {
  // No handler runs while these latches are held.  A handler could fork, too,
  // and wait for itself, or jump away with the conductor's step.
  EnterCritical();
  // Until here a handler may have made a whole fork.
  tls_forking = true;
  Above::Get().ForkLock();
  Conductor::ForkPrepare();
  raw_code::ForkLock();
  SignalsForkLock();
  InterestsForkLock();
  SockForkLock();
  ShellForkLock();
  HiddenForkLock();
}

void Unlock(bool ends) {
  tls_forking = false;
  HiddenForkUnlock(false);
  ShellForkUnlock(false);
  SockForkUnlock(false);
  InterestsForkUnlock(false);
  Conductor::ForkParent();
  Above::Get().ForkUnlock(false);
  if (ends) EndFork();
  SignalsForkUnlock(false);
  raw_code::ForkUnlock(false);
  LeaveCritical();
}

}  // namespace

void ForkPrepare() {
  if (InBorrowedMemory()) return;
  // Both processes will hold the connections.  So from now on no connection may
  // take a lane.  None may stay on a lane, unless it is hidden from the child.
  BeginFork();
  ForEachSock([](Sock* sock) { sock->holders().Make(); });
  const bool hides = PrepareToHide();
  const auto leaves = [hides](Sock* sock) {
    return Route(sock).Engaged() && !(hides && sock->claim().MayHide(false));
  };
  // While this thread waits for the peer of one stream, the peer of another
  // stream may ask that the first stream leave its lane.  Behind a silent peer
  // no further try helps.
  constexpr int kMostTries = 3;
  constexpr std::uint64_t kMostTriesNs = 500'000'000;
  const std::uint64_t start = base::NowNs();
  for (int tries = 1;; ++tries) {
    // Peers may take their time.  Streams that other threads make meanwhile get
    // no lane.
    AskThenAwait(
        [&](Sock* sock) {
          if (leaves(sock)) sock->way_back().Step(base::Reason::kPinnedFork);
        },
        [&](Sock* sock, std::uint64_t deadline) {
          if (leaves(sock))
            sock->way_back().ToPlain(base::Reason::kPinnedFork, deadline);
        });
    ForEachSock([](Sock* sock) { sock->holders().Mark(); });
    Lock();
    bool late = false;
    ForEachSock([&](Sock* sock) {
      late |= sock->mode() == Mode::kEngine &&
              !(hides && sock->claim().MayHide(true));
    });
    if (!late || tries == kMostTries || base::NowNs() - start >= kMostTriesNs) {
      break;
    }
    Unlock(false);
  }
  // No stream comes into the table any more, so each stream that the child will
  // have is counted here, once.  Streams that came after Holders::Mark have not
  // added to the Holding what they moved.  The parent adds it when it leaves
  // them, and ForkChild takes it as added.
  static constinit std::uint32_t forks = 0;
  tls_fork = ++forks;
  ForEachSock([&](Sock* sock) { sock->holders().ShareByFork(tls_fork, hides); },
              Which::kHidden);
  base::LowNumberForkLock();
}

void ForkParent() {
  if (!tls_forking) return;
  base::LowNumberForkUnlock(false);
  Unlock(true);
}

void ForkChild() {
  KnowOwnPid();
  // Process 1 is the first process of a PID namespace.
  if (OwnPid() == 1) EndLastWords();
  KnowFirstThread();
  const bool locked = tls_forking;
  tls_forking = false;
  base::LowNumberForkUnlock(true);
  base::LogForkChild();
  StatsForkChild();
  if (locked) EndFork();
  ForksForkChild();
  if (locked) HiddenForkUnlock(true);
  if (locked) ShellForkUnlock(true);
  ShellForkChild();
  SockForkUnlock(true);
  InterestsForkUnlock(true);
  if (ProcessPinned() != base::Reason::kSandboxed) base::InitBarriers();
  CallsForkChild();
  base::LoneForkChild();
  if (locked) Above::Get().ForkUnlock(true);
  Above::Get().ForkChild();
  stats.Clear();
  InterestsForkChild();
  SignalsForkChild();
  ForEachSock([](Sock* sock) { AfterFork(sock).Begin(); }, Which::kHidden);
  Conductor::ForkChild(tls_signals.asleep != 0);
  ForEachSock([](Sock* sock) { sock->left().OnForkChild(); }, Which::kHidden);
  Above::Get().ForkChildLast();
  CloseUnusedAsk();
  if (!locked) return;
  SignalsForkUnlock(true);
  raw_code::ForkUnlock(true);
  LeaveCritical();
}

std::uint32_t LastFork() { return tls_fork; }

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
  // Runs in the child, which ends with what `start` returns.  libc would end
  // only this thread, and the conductor is another.
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
  if (InBorrowedMemory()) return;  // ForkPrepare has counted nothing
  ForEachSock([](Sock* sock) { sock->holders().UnshareByFork(tls_fork); },
              Which::kHidden);
}

}  // namespace rcsock::posix
