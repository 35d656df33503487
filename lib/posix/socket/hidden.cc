#include "lib/posix/socket/hidden.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <memory>

#include "lib/base/backoff.h"
#include "lib/base/clock.h"
#include "lib/base/latch.h"
#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/close.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

using rendezvous::Conductor;

constinit base::Latch hidden_latch;

namespace {

// Two numbers of one eventfd.  The conductor of this process watches `watched`,
// which its children close.  They write to `ask`.
constinit std::atomic<int> watched{-1};
constinit std::atomic<int> ask{-1};
constinit std::atomic<int> parents_ask{-1};
// This process is the child of a fork, between HiddenForkUnlock and
// CloseUnusedAsk.
constinit bool counted = false;
// Hidden streams, and threads that wait for an owner.
constinit std::atomic<int> hidden_streams{0};
constinit std::atomic<int> waiting{0};

// The streams of this process that its children wait for.  From the first step
// of its leave until the peer has answered, a stream moves nothing.  If all
// began at once, none would go on before the last had begun.  So few are under
// way at once, and each that has left lets the next begin.
//
// The conductor calls Look and Next, any thread calls Left.
class AskedStreams {
 public:
  // A child that waits has rung.  Takes one more step of the streams that have
  // begun, and lets others begin.
  void Look() {
    under_way_.store(0);
    ForEachSock([this](Sock* sock) {
      if (IsAsked(sock) && sock->lane_state().Leaving()) Step(sock);
    });
    // A peer that is stopped does not keep its place.
    if (base::NowNs() - last_ns_ > kLateNs) under_way_.store(0);
    next_ = 0;
    Next();
  }
  void Next() {
    const int top = fd_high.load(std::memory_order_relaxed);
    for (; next_ <= top; ++next_) {
      const File* const file = Entry(next_);
      if (file == nullptr || file->Hidden()) continue;
      Sock* const sock = LookupSock(next_);
      if (sock == nullptr || sock->fd() != next_ || sock->fds.load() == 0 ||
          !IsAsked(sock) || sock->lane_state().Leaving()) {
        continue;
      }
      // Stored before the look: Left counts, and then looks at more_.  So one
      // of the two sees the other.
      more_.store(true);
      if (under_way_.load() >= kMostAtOnce) return;
      more_.store(false);
      last_ns_ = base::NowNs();
      Step(sock);
    }
    more_.store(false);
  }
  // The kernel has a stream that a child has waited for.
  void Left() {
    under_way_.fetch_sub(1);
    Conductor* const conductor =
        more_.load() ? Conductor::IfRunning() : nullptr;
    // Without memory the next ring of the child does it.
    if (conductor != nullptr) conductor->Post([this] { Next(); });
  }
  // In the child of a fork.
  void OnForkChild() {
    under_way_.store(0);
    more_.store(false);
  }

 private:
  static constexpr int kMostAtOnce = 4;
  static constexpr std::uint64_t kLateNs = 2'000'000;

  static bool IsAsked(Sock* sock) {
    const Holding* const all = sock->holders().Find();
    return all != nullptr && all->claim.Asked();
  }
  // Left takes the count back.
  void Step(Sock* sock) {
    under_way_.fetch_add(1);
    sock->claim().LeaveIfAsked();
  }

  int next_ = 0;               // the number to go on at
  std::uint64_t last_ns_ = 0;  // when a stream last began
  std::atomic<int> under_way_{0};
  std::atomic<bool> more_{false};  // others wait until one has left
};
constinit AskedStreams asked_streams;

class AskWatcher final : public rendezvous::AnchorWatcher {
 public:
  void OnAnchor(std::uint32_t) override {
    std::uint64_t count;
    (void)!::syscall(SYS_read, watched.load(), &count, sizeof count);
    asked_streams.Look();
  }
};

bool MakeAsk() {
  if (ask.load() >= 0) return true;
  const int made = base::OpenHighForParent(
      [] { return ::syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (made < 0) return false;
  const int copy = base::CopyHigh(made);
  int none = -1;
  if (copy < 0 || !ask.compare_exchange_strong(none, copy)) {
    base::CloseRaw(made);
    if (copy >= 0) base::CloseRaw(copy);
    return none >= 0;
  }
  watched.store(made);
  return true;
}

// Calls each(sock) for every hidden stream, and keeps it meanwhile.
template <class Each>
void ForEachHidden(Each&& each) {
  if (hidden_streams.load() == 0) return;
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    File* const file = Entry(fd);
    if (file == nullptr || file->kind != FileKind::kHiddenSock) continue;
    auto* const sock = static_cast<Sock*>(file);
    if (sock->fd() != fd || !sock->TryRef()) continue;
    if (Entry(fd) == sock) each(sock);
    sock->Unref();
  }
}

// Nothing is left to ask for.
void CloseAskIfDone() {
  if (hidden_streams.load() != 0 || waiting.load() != 0) return;
  if (const int number = parents_ask.exchange(-1); number >= 0) {
    base::CloseRaw(number);
  }
}

bool AnySetKept() {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    File* const file = Entry(fd);
    if (file != nullptr && file->kind == FileKind::kHiddenSet &&
        KeptByExec(fd)) {
      return true;
    }
  }
  return false;
}

}  // namespace

// The conductor may be another one than at the last fork.
static bool Listen(Conductor* conductor) {
  const int number = watched.load();
  if (number < 0) return false;
  conductor->Unwatch(number);
  return conductor->Watch(number, std::make_shared<AskWatcher>(), EPOLLIN);
}

bool PrepareToHide() {
  Conductor* conductor = Conductor::IfRunning();
  // A handler that forks has interrupted a sleep, which a stream must not keep
  // on its lane for a child that returns to it.
  if (conductor == nullptr || OwnFace() != Face::kPreload ||
      ProcessPinned() != base::Reason::kNone || tls_signals.asleep != 0 ||
      InHandler() || known_rings.load() != 0 || !MakeAsk()) {
    return false;
  }
  return Listen(conductor);
}

void ListenForAsks() {
  if (Conductor* conductor = Conductor::IfRunning()) Listen(conductor);
}

bool CountedByParent() { return counted; }

int ParentsAsk() { return parents_ask.load(); }

void HiddenForkLock() { hidden_latch.LockForFork(); }

void HiddenForkUnlock(bool child) {
  if (child) {
    parents_ask.store(ask.exchange(-1));
    watched.store(-1);
    asked_streams.OnForkChild();
    counted = true;
  }
  hidden_latch.UnlockAfterFork(child);
}

void CountHidden(int more) {
  if (hidden_streams.fetch_add(more) + more == 0) CloseAskIfDone();
}

void CloseUnusedAsk() {
  counted = false;
  CloseAskIfDone();
}

void AskedStreamLeft() { asked_streams.Left(); }

void RingOwner(int number) {
  const std::uint64_t one = 1;
  (void)!::syscall(SYS_write, number, &one, sizeof one);
}

// A stopped owner may go on, so this waits long for an owner that lives.
static Owner Await(Holding* all, int number) {
  constexpr std::uint64_t kMostNs = 10'000'000'000;
  constexpr std::uint64_t kMostUnseenNs = 2'000'000'000;
  const std::uint64_t start = base::NowNs();
  base::UniqueFd owner;
  bool seen = true;
  for (int i = 0;; ++i) {
    const std::uint32_t now = all->claim.Ask();
    if (now == Claim::kKernels) return Owner::kGave;
    if (now == Claim::kLost) return Owner::kLost;
    // Each ring has the owner take one more step.
    RingOwner(number);
    const timespec brief{0, i < 20 ? 1'000'000 : 10'000'000};
    base::CheckMaySleep();
    base::FutexWait(&all->claim.word, Claim::kAsked, &brief, true);
    if (i == 20) {
      // Another PID namespace may hide the owner.
      owner.reset(base::OpenHigh(
          [&] { return ::syscall(SYS_pidfd_open, all->owner.load(), 0); }));
      seen = owner.ok() || errno != ESRCH;
    }
    pollfd ended{owner.get(), POLLIN, 0};
    const timespec none{0, 0};
    if (owner.ok() && ::syscall(SYS_ppoll, &ended, 1, &none, nullptr, 8) == 1) {
      return all->claim.Ask() == Claim::kKernels ? Owner::kGave : Owner::kDead;
    }
    const std::uint64_t waited = base::NowNs() - start;
    if (waited >= (seen ? kMostNs : kMostUnseenNs)) {
      return seen ? Owner::kLate : Owner::kDead;
    }
  }
}

Owner AwaitOwner(Holding* all, int number) {
  waiting.fetch_add(1);
  const Owner owner = Await(all, number);
  if (waiting.fetch_sub(1) == 1) CloseAskIfDone();
  return owner;
}

File* Reveal(int fd) {
  const int saved = errno;
  for (base::Backoff backoff;; backoff.Wait()) {
    File* const file = Entry(fd);
    if (file == nullptr || !file->Hidden()) break;
    if (file->kind == FileKind::kHiddenSet) {
      RevealAll();
      continue;
    }
    auto* const sock = static_cast<Sock*>(file);
    if (!sock->TryRef()) continue;
    // If the entry is another, a thread closes the number, which soon names
    // nothing.
    if (Entry(fd) == sock) sock->copy().Reveal();
    sock->Unref();
  }
  errno = saved;
  return Lookup(fd);
}

void RevealAll() {
  const int saved = errno;
  // All are asked before the first is awaited, so its owner has several leave
  // at once.
  ForEachHidden([](Sock* sock) { sock->copy().AskOwner(); });
  ForEachHidden([](Sock* sock) { sock->copy().Reveal(); });
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    File* const file = Entry(fd);
    if (file != nullptr && file->kind == FileKind::kHiddenSet) {
      SetKind(file, FileKind::kEpoll);
    }
  }
  errno = saved;
}

void RevealForExec(bool spawn) {
  if (AnySetKept()) RevealAll();
  ForEachHidden([&](Sock* sock) {
    if (KeptByExec(sock) || (spawn && sock->in_spawn_actions.load())) {
      sock->copy().Reveal();
    } else if (!spawn) {
      sock->copy().Leave();
    }
  });
}

void HideAfterExec() {
  ForEachHidden([](Sock* sock) { sock->copy().Return(); });
}

// A use may still come: stdio writes what it has behind the handlers of exit.
// UnusedCopy::Reveal then counts the copy again.
void LeaveHiddenAtExit() {
  ForEachHidden([](Sock* sock) { sock->copy().Leave(); });
}

}  // namespace rcsock::posix
