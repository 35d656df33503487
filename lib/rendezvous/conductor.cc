#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <new>
#include <utility>

#include "lib/base/alone.h"
#include "lib/base/backoff.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/foreign_fd.h"
#include "lib/base/helper_thread.h"
#include "lib/base/internal.h"
#include "lib/base/latch.h"
#include "lib/base/pin_count.h"
#include "lib/base/unique_fd.h"
#include "lib/base/unwinder.h"
#include "lib/lane/rdma/user_memory.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/rendezvous/start_aside.h"
#include "lib/verbs/verbs.h"

namespace rcsock::rendezvous {
namespace {

// What a process has once.  Nothing here has a destructor.
constinit std::atomic<Core*> g_core{nullptr};
constinit std::atomic<bool> g_stopping{false};
constinit base::Latch g_latch;  // starting and stopping
constinit lane::shm::Bells* g_bells RC_GUARDED_BY(g_latch) = nullptr;
constinit lane::Board* g_board RC_GUARDED_BY(g_latch) = nullptr;
constinit std::uint64_t g_failed_ns RC_GUARDED_BY(g_latch) = 0;
constinit base::Reason g_failed_why RC_GUARDED_BY(g_latch) =
    base::Reason::kNone;
constinit bool g_clock_known RC_GUARDED_BY(g_latch) = false;

constinit thread_local Core* tls_core = nullptr;    // on its own threads
constinit thread_local Core* tls_forked = nullptr;  // held since ForkPrepare

// A process without room for a thread or descriptors does not try again for
// each of its streams.
constexpr std::uint64_t kRetryNs = 1'000'000'000;

void* ThreadMain(void* argument) {
  ::pthread_setname_np(::pthread_self(), "rcsock");
  static_cast<Core*>(argument)->Run();
  return nullptr;
}

// Starts the thread and waits until it works.  Returns kNone, or why it does
// not.
base::Reason Start(Core* core) {
  base::EndLone();
  if (base::StartThread(&core->thread, &ThreadMain, core, kConductorStack) !=
      0) {
    return base::Reason::kNoThread;
  }
  while (core->state.load(std::memory_order_acquire) == Core::kStarting) {
    base::FutexWait(&core->state, Core::kStarting, nullptr, false);
  }
  if (core->state.load(std::memory_order_acquire) == Core::kRunning) {
    return base::Reason::kNone;
  }
  ::pthread_join(core->thread, nullptr);
  return core->why;
}

Conductor* Running(Core* core) {
  return core->state.load(std::memory_order_acquire) == Core::kRunning
             ? core->conductor()
             : nullptr;
}

}  // namespace

Conductor::Conductor() : core_(new Core(this)) {}

Conductor* Conductor::Get(base::Reason* why) {
  *why = base::Reason::kNoThread;
  if (Core* core = g_core.load(std::memory_order_acquire)) return Running(core);
  // Does not wait for a Stop: a Stop waits for the conductor, which may wait
  // for a latch of this caller.
  if (g_stopping.load(std::memory_order_acquire)) return nullptr;
  const std::uint64_t now = base::NowNs();
  {
    base::LatchGuard lock(g_latch);
    if (g_failed_ns != 0 && now - g_failed_ns < kRetryNs) {
      *why = g_failed_why;
      return nullptr;
    }
  }
  // Without the latch: a constructor that dlopen() runs may come here, and this
  // call waits for dlopen().
  const bool ready = base::ReadyToThrow();
  base::LatchGuard lock(g_latch);
  if (Core* core = g_core.load(std::memory_order_acquire)) return Running(core);
  if (!ready) {
    g_failed_ns = now;
    g_failed_why = *why;
    return nullptr;
  }
  base::InternalScope internal;
  base::Reason failed = base::Reason::kNone;
  try {
    if (g_bells == nullptr) {
      errno = 0;
      g_bells = lane::shm::Bells::Create(base::GetConfig().max_ring).release();
      if (g_bells == nullptr) {
        failed = ErrnoReason(errno == 0 ? ENOMEM : errno);
      }
    }
    if (failed == base::Reason::kNone) {
      if (g_board == nullptr) g_board = new lane::Board(g_bells);
      auto* conductor = new Conductor;  // leaked: see Core
      conductor->core_->bells = g_bells;
      conductor->core_->board = g_board;
      failed = Start(conductor->core_);
      if (failed == base::Reason::kNone) {
        // A thread that finds a conductor may spin, which needs the clock.
        if (!g_clock_known) base::InitClock();
        g_clock_known = true;
        g_core.store(conductor->core_, std::memory_order_release);
        g_failed_ns = 0;
        *why = base::Reason::kNone;
        return conductor;
      }
    }
  } catch (...) {
    failed = base::Reason::kNoMemory;
  }
  g_failed_ns = now;
  g_failed_why = failed;
  *why = failed;
  return nullptr;
}

[[gnu::hot]] Conductor* Conductor::IfRunning() {
  Core* core = g_core.load(std::memory_order_acquire);
  return core == nullptr ? nullptr : Running(core);
}

base::Reason Conductor::FailedLately() {
  if (Core* core = g_core.load(std::memory_order_acquire)) {
    return Running(core) != nullptr ? base::Reason::kNone
                                    : base::Reason::kNoThread;
  }
  if (g_stopping.load(std::memory_order_acquire)) {
    return base::Reason::kNoThread;
  }
  if (!g_latch.try_lock()) return base::Reason::kNone;
  const bool lately =
      g_failed_ns != 0 && base::NowNs() - g_failed_ns < kRetryNs;
  const base::Reason why = lately ? g_failed_why : base::Reason::kNone;
  g_latch.unlock();
  return why;
}

void Conductor::Enter(Core* core) { tls_core = core; }

void Conductor::Stop() {
  if (tls_core != nullptr) return;  // it cannot join itself
  base::LatchGuard lock(g_latch);
  Core* core = g_core.load(std::memory_order_acquire);
  if (core == nullptr) return;
  g_stopping.store(true, std::memory_order_release);
  core->RequestStop();
  ::pthread_join(core->thread, nullptr);
  base::AwaitCloses();
  g_core.store(nullptr, std::memory_order_release);
  g_stopping.store(false, std::memory_order_release);
}

int Conductor::Threads() {
  const Core* const core = g_core.load(std::memory_order_acquire);
  return core == nullptr ? 0 : core->shifts.Threads();
}

void Conductor::PromptOnly() {
  if (Core* const core = g_core.load(std::memory_order_acquire)) {
    core->shifts.PromptOnly();
    core->PostTask([] {});  // a thread that sleeps ends its shift behind a turn
  }
}

void Conductor::AwaitPromptOnly() {
  constexpr std::uint64_t kMostNs = 100'000'000;
  Core* const core = g_core.load(std::memory_order_acquire);
  if (core == nullptr || tls_core != nullptr) return;
  PromptOnly();
  const std::uint64_t until = base::NowNs() + kMostNs;
  for (base::Backoff backoff; core->shifts.PatientHas(); backoff.Wait()) {
    if (base::NowNs() > until) return;
  }
}

void Conductor::LeaveRdma() {
  if (Conductor* conductor = IfRunning()) conductor->core_->LeaveRdma();
}

void Conductor::ForkPrepare() {
  AwaitStartAside();
  Core* core =
      tls_core != nullptr ? nullptr : g_core.load(std::memory_order_acquire);
  if (core != nullptr) {
    core->step.LockForFork();
    tls_forked = core;
  }
  lane::rdma::UserMemory::ForkPrepare();
  base::ForeignFdForkLock();
}

void Conductor::ForkParent() {
  base::ForeignFdForkUnlock(false);
  lane::rdma::UserMemory::ForkParent();
  if (Core* core = std::exchange(tls_forked, nullptr))
    core->step.UnlockAfterFork(false);
}

void Conductor::ForkChild(bool asleep) {
  base::ForeignFdForkUnlock(true);
  if (Core* core = std::exchange(tls_forked, nullptr)) core->Abandon(asleep);
  lane::rdma::UserMemory::ForkChild();
  // Another thread may have been starting or stopping the conductor.
  g_latch.Reset();
  g_stopping.store(false, std::memory_order_relaxed);
  g_core.store(nullptr, std::memory_order_release);
  {
    base::LatchGuard lock(g_latch);
    g_bells = nullptr;
    g_board = nullptr;
    g_failed_ns = 0;
  }
  StartAsideForkChild();
  base::PinCount::ForkChild();
  verbs::ForkChild();
  // A handler that forks in a sleep goes back to that sleep, which uses one of
  // these descriptors.
  if (!asleep) base::CloseParentFds();
  // A fork from the conductor's own callbacks makes this an ordinary thread.
  tls_core = nullptr;
}

void Conductor::Seek(const std::shared_ptr<Seeker>& seeker, When when) {
  try {
    core_->Seek(seeker, when);
  } catch (...) {
    seeker->SeekFailed(base::Reason::kNoMemory, false);
  }
}
void Conductor::Cancel(Seeker* seeker) { core_->Cancel(seeker); }
void Conductor::Adopted(Seeker* seeker) { core_->Adopted(seeker); }
void Conductor::Look(Seeker* seeker) { core_->Look(seeker); }
void Conductor::ReturnLane(const std::shared_ptr<Seeker>& /*seeker*/,
                           std::unique_ptr<lane::Lane> lane) {
  core_->ReturnLane(std::move(lane));
}

bool Conductor::Watch(int fd, std::shared_ptr<AnchorWatcher> watcher,
                      std::uint32_t events) {
  return core_->anchors.Watch(fd, std::move(watcher), events);
}
void Conductor::Rewatch(int fd, std::uint32_t events) {
  core_->anchors.Rewatch(fd, events);
}
void Conductor::Unwatch(int fd) { core_->anchors.Unwatch(fd); }

bool Conductor::Post(std::function<void()> task) {
  return core_->PostTask(std::move(task));
}
std::uint64_t Conductor::After(std::uint32_t ms, std::function<void()> task) {
  try {
    return core_->After(ms, std::move(task));
  } catch (...) {
    return 0;  // no memory: no handle, and no call
  }
}
void Conductor::CancelTimer(std::uint64_t handle) {
  core_->CancelTimer(handle);
}
void Conductor::SetCompletionHandler(
    std::function<void(const lane::Completion&)> handler) {
  try {
    core_->SetHandler(std::move(handler));
  } catch (...) {
    // There is no memory: the old handler stays.
  }
}

void Conductor::SetInspector(int (*inspector)()) {
  core_->SetInspector(inspector);
}

lane::shm::Bells* Conductor::bells() { return core_->bells; }
lane::Board* Conductor::board() { return core_->board; }
void Conductor::SourceWanted(lane::Source* source, int delta) {
  core_->sources.Want(source, delta);
}
std::vector<std::shared_ptr<lane::shm::Link>> Conductor::Links() {
  try {
    return core_->Links();
  } catch (...) {
    return {};  // no memory
  }
}
[[gnu::hot]] bool Conductor::OnThread() const { return tls_core == core_; }
void Conductor::AnnounceBell(int k) { core_->AnnounceBell(k); }

bool RdmaPossible() {
  static constinit std::atomic<std::uint64_t> looked{0};  // 0: never
  static constinit std::atomic<bool> found{false};
  const std::uint64_t now = base::NowNs();
  const std::uint64_t last = looked.load(std::memory_order_relaxed);
  if (last == 0 || now - last > kRetryNs) {
    base::InternalScope internal;
    found.store(verbs::AnyDevice(), std::memory_order_relaxed);
    looked.store(now, std::memory_order_relaxed);
  }
  return found.load(std::memory_order_relaxed);
}

}  // namespace rcsock::rendezvous
