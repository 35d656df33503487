#include "lib/posix/thread/signals.h"

#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/base/no_sigpipe.h"
#include "lib/base/real.h"
#include "lib/base/start_data.h"
#include "lib/lane/lane.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix {

thread_local constinit ThreadSignals tls_signals
    __attribute__((tls_model("initial-exec")));
RCSOCK_START_DATA constinit SignalUsers signal_users;

namespace {

void HideDefault(int number) {
  const auto hide = signal_users.hide_default.load(std::memory_order_relaxed);
  if (hide != nullptr) hide(number);
}
void ShowDefault(int number, struct sigaction* action) {
  const auto show = signal_users.show_default.load(std::memory_order_relaxed);
  if (show != nullptr) show(number, action);
}

constexpr int kSignals = 65;

// What the program installed.  Handlers read it.  A slot is written before the
// kernel can deliver to it, and its fields are single words.
struct Installed {
  std::atomic<void*> handler{nullptr};  // null: not wrapped
  std::atomic<int> flags{0};
};
Installed installed[kSignals];
base::Latch latch;

constexpr std::uint64_t Bit(int number) {
  return std::uint64_t{1} << (number - 1);
}

// The signals of siginterrupt(): handlers that signal() installs later
// interrupt calls, too.
constinit std::atomic<std::uint64_t> interrupting{0};

constexpr std::uint64_t kFaults = Bit(SIGSEGV) | Bit(SIGBUS) | Bit(SIGFPE) |
                                  Bit(SIGILL) | Bit(SIGTRAP) | Bit(SIGSYS);

// All signals but two groups.  Blocked faults end the program. libc uses 32 and
// 33 itself, for cancellation and setuid.
constexpr std::uint64_t kPutOff = ~(kFaults | Bit(SIGABRT) | Bit(32) | Bit(33));

// Faults belong to the instruction that made them, and are never put off.
bool Synchronous(int number, const siginfo_t* info) {
  return (Bit(number) & kFaults) != 0 ? info->si_code > 0 : number == SIGABRT;
}

void QueueAgain(int number, siginfo_t info) {
  const long pid = ::syscall(SYS_getpid);
  const long tid = ::syscall(SYS_gettid);
  // The kernel refuses to forge some codes.  Signals with these go by a plain
  // tgkill.
  if (::syscall(SYS_rt_tgsigqueueinfo, pid, tid, number, &info) != 0) {
    ::syscall(SYS_tgkill, pid, tid, number);
  }
}

// Puts a signal off.  Returns false if there is no room.  Other handlers may
// interrupt this anywhere.  Of several that come at once, the handler with the
// lowest frame runs last.
bool Defer(int number, const siginfo_t* info, void* context) {
  ThreadSignals& self = tls_signals;
  // The mask that the interrupted code goes on with: the kernel's word, 8
  // bytes.
  auto* const word = reinterpret_cast<unsigned char*>(
      &static_cast<ucontext_t*>(context)->uc_sigmask);
  std::uint64_t mask;
  std::memcpy(&mask, word, sizeof mask);
  const bool blocked = (~mask & kPutOff) == 0;
  // If all signals are blocked, only those still come that are faults
  // elsewhere, and that a process has sent here.  The kernel, too, keeps one of
  // each of these.
  for (std::uint32_t i = 0; blocked && i < self.pending; ++i) {
    if (self.deferred[i].number == number) return true;
  }
  // A handler frame above has this mask and more.  The critical section's own
  // mask is their intersection.
  self.mask = self.mask & base::WithoutNoSigpipe(mask);
  const std::uint32_t at =
      __atomic_fetch_add(&self.pending, 1u, __ATOMIC_RELAXED);
  const bool room = at < ThreadSignals::kMostDeferred;
  if (room) {
    self.deferred[at] = {number, *info};
  } else {
    __atomic_fetch_sub(&self.pending, 1u, __ATOMIC_RELAXED);
  }
  if (at + 2 < ThreadSignals::kMostDeferred && !self.blocking) return true;
  if (blocked) return room;
  self.blocking = true;
  base::ForgetMask();
  mask |= kPutOff;
  std::memcpy(word, &mask, sizeof mask);
  if (!room) {
    if ((Bit(number) & kPutOff) == 0) return false;
    const int saved = errno;
    ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, 8);
    QueueAgain(number, *info);
    errno = saved;
  }
  return true;
}

// rcsock itself obeys SA_RESETHAND: the kernel would remove the wrapper when a
// signal is merely put off.  Returns the handler to run, or null if another
// thread has taken it.
void* TakeOnce(int number, int* flags);
// With the latch held.
void HideHandler(int number);

// A pointer of the program's for which the kernel would report EFAULT.  As in
// the kernel, the program's handlers do not run for it.  A handler that
// unprotects pages on a fault must do so before a call, with rcsock or without
// it.
bool Guarded(int number) { return number == SIGSEGV || number == SIGBUS; }
bool Fixed(int number, const siginfo_t* info, void* context) {
  return Guarded(number) && info->si_code > 0 && base::FixFault(context);
}

bool Nobodys(int number, const siginfo_t* info) {
  return number == SIGPIPE && base::RaisedInPost(*info);
}

void Wrapper(int number, siginfo_t* info, void* context) {
  if (Fixed(number, info, context) || Nobodys(number, info)) return;
  ThreadSignals& self = tls_signals;
  if (self.depth != 0 && !Synchronous(number, info) &&
      Defer(number, info, context)) {
    return;
  }
  int flags = installed[number].flags.load(std::memory_order_relaxed);
  void* handler = installed[number].handler.load(std::memory_order_relaxed);
  // The addresses of a handler's own stack do not tell which frame is inside
  // which.
  const bool elsewhere = (flags & SA_ONSTACK) != 0;
  std::atomic<int>* const counted = self.counted;
  const std::uint32_t forks = self.forks;
  if (elsewhere) self.counted = nullptr;
  if (flags & SA_RESETHAND) handler = TakeOnce(number, &flags);
  self.any = self.any + 1;
  if ((flags & SA_RESTART) == 0) self.interrupts = self.interrupts + 1;
  if (auto* word = self.word) word->fetch_add(1, std::memory_order_relaxed);
  if (auto* lane = self.lane) lane->WakeLocal();
  // Within a critical section the signal is a fault, and interrupts no sleep.
  if (self.in_place != nullptr && self.depth == 0)
    signal_users.take_back_memory.load(std::memory_order_relaxed)();
  CountedWait wait;
  if (self.wait.set != nullptr && self.depth == 0) {
    const int saved = errno;
    wait = signal_users.take_back_wait.load(std::memory_order_relaxed)();
    errno = saved;
  }
  const void* const outer = self.handler;
  const bool registered = std::exchange(self.registered, false);
  self.handler = __builtin_frame_address(0);
  // All handlers get three arguments, also those without SA_SIGINFO.  The
  // kernel passes them, and programs use them.  And if another handler has just
  // been installed, `flags` may belong to that handler.
  if (handler != nullptr) {
    const base::OutsidePost outside_post;
    reinterpret_cast<void (*)(int, siginfo_t*, void*)>(handler)(number, info,
                                                                context);
  }
  self.handler = outer;
  self.registered = registered;
  if (elsewhere) {
    self.counted =
        counted == nullptr || self.forks == forks ? counted : &parents_sleepers;
  }
  if (wait.set != nullptr) {
    const int saved = errno;
    signal_users.recount_wait.load(std::memory_order_relaxed)(wait);
    errno = saved;
  }
}

// A thread in a critical section is alone with the handlers, and does not take
// the latch.
void* TakeOnce(int number, int* flags) RC_NO_LOCK_CHECK {
  const int saved = errno;
  ThreadSignals& self = tls_signals;
  // A fault inside a critical section may come with the latch held.  Then only
  // this thread installs handlers at that moment.
  const bool alone = self.depth != 0;
  Critical critical;
  if (!alone) latch.lock();
  Installed& slot = installed[number];
  *flags = slot.flags.load(std::memory_order_relaxed);
  void* handler = slot.handler.load(std::memory_order_relaxed);
  if (handler != nullptr && (*flags & SA_RESETHAND)) {
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    real::sigaction(number, &fallback, nullptr);
    slot.handler.store(nullptr, std::memory_order_relaxed);
    slot.flags.store(0, std::memory_order_relaxed);
    HideDefault(number);
    HideHandler(number);
  }
  if (!alone) latch.unlock();
  errno = saved;
  return handler;
}

bool IsDefault(const struct sigaction& action) {
  // SIG_DFL is null, which is no handler with SA_SIGINFO either.
  return (action.sa_flags & SA_SIGINFO) != 0 ? action.sa_sigaction == nullptr
                                             : action.sa_handler == SIG_DFL;
}

bool IsWrapper(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &Wrapper;
}

// Stands in for the default action of SIGSEGV and SIGBUS.  A signal that it
// does not fix meets the default action, as seen from outside.  A fault faults
// again in the place where it came, and dumps its core.  A sent signal is sent
// again.  This writes nothing in memory, which may be a parent's (vfork).
void DefaultFault(int number, siginfo_t* info, void* context) {
  if (Fixed(number, info, context)) return;
  const int saved = errno;
  struct sigaction fallback {};
  fallback.sa_handler = SIG_DFL;
  real::sigaction(number, &fallback, nullptr);
  // Blocked here: it comes when this has returned.
  const bool sent = info->si_code <= 0 ||
                    (number == SIGBUS && info->si_code == BUS_MCEERR_AO);
  if (sent) QueueAgain(number, *info);
  errno = saved;
}

// Stands in for the default action of SIGPIPE.  Some of these signals are
// rcsock's.
void DefaultPipe(int number, siginfo_t* info, void*) {
  if (Nobodys(number, info)) return;
  const int saved = errno;
  struct sigaction fallback {};
  fallback.sa_handler = SIG_DFL;
  real::sigaction(number, &fallback, nullptr);
  QueueAgain(number, *info);
  errno = saved;
}

bool IsHidden(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         (action.sa_sigaction == &DefaultFault ||
          action.sa_sigaction == &DefaultPipe);
}

// Both are guarded by the latch.
bool guarding = false;
enum class Pipes : std::uint8_t { kUnasked, kHandled, kUnknown };
constinit std::atomic<Pipes> pipes{Pipes::kUnasked};
// The default actions as the program has set them, with flags and mask.
struct sigaction defaults[3];
struct sigaction& DefaultOf(int number) {
  return defaults[number == SIGBUS ? 1 : number == SIGPIPE ? 2 : 0];
}

// Replaces the default action, where that is in force.  If a program ignores a
// fault, or has an unknown handler, rcsock leaves that as it is, and the
// program ends by the fault.
void GuardDefault(int number) {
  struct sigaction now {};
  if (real::sigaction(number, nullptr, &now) != 0 ||
      now.sa_handler != SIG_DFL) {
    return;
  }
  struct sigaction ours {};
  ours.sa_sigaction = number == SIGPIPE ? &DefaultPipe : &DefaultFault;
  // The handler runs on the other stack, if there is any, since this stack may
  // be at its end.  If there is none, the kernel ends the program, as by
  // default.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  // No handler may see it half done.
  ::sigfillset(&ours.sa_mask);
  // Stored first: a program that asks for its handler gets this.
  DefaultOf(number) = now;
  real::sigaction(number, &ours, nullptr);
}

void HideHandler(int number) {
  const bool hides =
      number == SIGPIPE
          ? pipes.load(std::memory_order_relaxed) == Pipes::kHandled
          : guarding && Guarded(number);
  if (hides) GuardDefault(number);
}

#if RCSOCK_GUARDS
// If the program ignores SIGPIPE, it ignores rcsock's, too.  An unknown handler
// would run.
bool HandleSigpipe() {
  const Pipes known = pipes.load(std::memory_order_acquire);
  if (known != Pipes::kUnasked) return known == Pipes::kHandled;
  if (InBorrowedMemory()) return false;
  Critical critical;
  latch.lock();
  struct sigaction now {};
  if (pipes.load(std::memory_order_relaxed) == Pipes::kUnasked &&
      real::sigaction(SIGPIPE, nullptr, &now) == 0) {
    const bool ours =
        IsWrapper(now) || IsDefault(now) ||
        ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN);
    if (ours) GuardDefault(SIGPIPE);
    pipes.store(ours ? Pipes::kHandled : Pipes::kUnknown,
                std::memory_order_release);
  }
  latch.unlock();
  return pipes.load(std::memory_order_relaxed) == Pipes::kHandled;
}
#endif

}  // namespace

bool PutOff(int number, const siginfo_t* info, void* context) {
  return tls_signals.depth != 0 && Defer(number, info, context);
}

[[gnu::cold]] void InitSignals() {
#if RCSOCK_GUARDS
  base::handle_sigpipe.store(&HandleSigpipe, std::memory_order_release);
#endif
}

bool InHandler() {
  const auto* const frame = static_cast<const char*>(tls_signals.handler);
  if (frame == nullptr) return false;
  // A handler that has jumped away has left this pointer.  Code that a running
  // handler calls is further down the stack, and not far.
  constexpr std::ptrdiff_t kFar = 1 << 20;
  const std::ptrdiff_t below =
      frame - static_cast<const char*>(__builtin_frame_address(0));
  if (below > 0 && below < kFar) return true;
  tls_signals.handler = nullptr;
  return false;
}

void UndoSleep(const void* here) {
  ThreadSignals& self = tls_signals;
  if (self.depth != 1 || reinterpret_cast<std::uintptr_t>(here) <
                             reinterpret_cast<std::uintptr_t>(self.frame)) {
    return;
  }
  std::atomic<int>* const count = self.counted;
  self.counted = nullptr;
  self.frame = nullptr;
  self.asleep = 0;
  self.word = nullptr;
  self.lane = nullptr;
  count->fetch_sub(1, std::memory_order_seq_cst);
}

void SignalsForkLock() {
  tls_signals.depth = tls_signals.depth + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  latch.LockForFork();
}

void SignalsForkUnlock(bool child) {
  latch.UnlockAfterFork(child);
  if (child) {
    tls_signals.pending = 0;  // they are the parent's
    if (tls_signals.blocking) {
      tls_signals.blocking = false;
      const std::uint64_t mask = tls_signals.mask;
      ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, 8);
    }
    tls_signals.mask = ~std::uint64_t{0};
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  tls_signals.depth = tls_signals.depth - 1;
  if (tls_signals.pending != 0 && tls_signals.depth == 0) DeliverDeferred();
}

void SignalsForkChild() {
  ThreadSignals& self = tls_signals;
  self.forks = self.forks + 1;
  if (self.counted != nullptr) self.counted = &parents_sleepers;
}

void DeliverDeferred() {
  const int saved = errno;
  ThreadSignals& self = tls_signals;
  // Signals are blocked while the list is read, so that a handler cannot add to
  // it.
  std::uint64_t all = ~std::uint64_t{0};
  std::uint64_t before = 0;
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8);
  const std::uint32_t count = self.pending;
  ThreadSignals::Deferred list[ThreadSignals::kMostDeferred];
  for (std::uint32_t i = 0; i < count; ++i) list[i] = self.deferred[i];
  self.pending = 0;
  if (self.blocking) before = self.mask;
  self.blocking = false;
  self.mask = ~std::uint64_t{0};
  for (std::uint32_t i = 0; i < count; ++i) {
    QueueAgain(list[i].number, list[i].info);
  }
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, 8);
  errno = saved;
}

void EnterCritical() {
  tls_signals.depth = tls_signals.depth + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void LeaveCritical() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  tls_signals.depth = tls_signals.depth - 1;
  if (tls_signals.pending != 0 && tls_signals.depth == 0) DeliverDeferred();
}

constinit std::atomic<bool> faults_guarded{RCSOCK_GUARDS == 0};

void GuardFaults() {
#if RCSOCK_GUARDS
  if (faults_guarded.load(std::memory_order_acquire)) return;
  Critical critical;
  latch.lock();
  if (!guarding) {
    guarding = true;
    GuardDefault(SIGSEGV);
    GuardDefault(SIGBUS);
    faults_guarded.store(true, std::memory_order_release);
  }
  latch.unlock();
#endif
}

// A child of vfork shares the memory that would record this, but has handlers
// of its own.
void GuardFaultsEarly() {
  if (OwnFace() != Face::kPreload || InBorrowedMemory()) return;
  const int saved = errno;
  GuardFaults();
  errno = saved;
}

void EndSigpipeHandler() {
  base::handle_sigpipe.store(nullptr, std::memory_order_relaxed);
  Critical critical;
  latch.lock();
  struct sigaction now {};
  if (pipes.exchange(Pipes::kUnknown) == Pipes::kHandled &&
      real::sigaction(SIGPIPE, nullptr, &now) == 0 && IsHidden(now)) {
    real::sigaction(SIGPIPE, &DefaultOf(SIGPIPE), nullptr);
  }
  latch.unlock();
}

int HookedSigaction(int number, const struct sigaction* action,
                    struct sigaction* old) {
  if (number <= 0 || number >= kSignals) {
    return real::sigaction(number, action, old);
  }
  Critical critical;
  latch.lock();
  Installed& slot = installed[number];
  void* old_handler = slot.handler.load(std::memory_order_relaxed);
  const int old_flags = slot.flags.load(std::memory_order_relaxed);
  const struct sigaction old_default = DefaultOf(number);
  struct sigaction before {};
  int result;
  if (action == nullptr) {
    result = real::sigaction(number, nullptr, &before);
  } else {
    struct sigaction copy = *action;
    const bool wrap =
        (copy.sa_flags & SA_SIGINFO) != 0
            ? copy.sa_sigaction != nullptr
            : copy.sa_handler != SIG_DFL && copy.sa_handler != SIG_IGN;
    if (wrap) {
      // SA_SIGINFO handlers and plain handlers share one field.
      slot.flags.store(copy.sa_flags, std::memory_order_relaxed);
      slot.handler.store(reinterpret_cast<void*>(copy.sa_sigaction),
                         std::memory_order_relaxed);
      copy.sa_sigaction = &Wrapper;
      copy.sa_flags |= SA_SIGINFO;
      copy.sa_flags &= ~static_cast<int>(SA_RESETHAND);
    }
    result = real::sigaction(number, &copy, &before);
    if (result != 0 && wrap) {
      slot.flags.store(old_flags, std::memory_order_relaxed);
      slot.handler.store(old_handler, std::memory_order_relaxed);
    }
    if (result == 0) HideHandler(number);
  }
  if (result == 0) ShowDefault(number, &before);
  if (result == 0 && action != nullptr && IsDefault(*action)) {
    HideDefault(number);
  }
  if (result == 0 && old != nullptr) {
    *old = before;
    if (IsWrapper(before)) {
      old->sa_sigaction =
          reinterpret_cast<void (*)(int, siginfo_t*, void*)>(old_handler);
      if ((old_flags & SA_SIGINFO) == 0) old->sa_flags &= ~SA_SIGINFO;
      old->sa_flags |= old_flags & static_cast<int>(SA_RESETHAND);
    } else if (IsHidden(before)) {
      *old = old_default;
    }
  }
  latch.unlock();
  return result;
}

sighandler_t HookedSignal(int number, sighandler_t handler, int flags) {
  if (handler == SIG_ERR || number <= 0 || number >= kSignals) {
    errno = EINVAL;
    return SIG_ERR;
  }
  struct sigaction action {};
  struct sigaction old {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  if ((flags & SA_RESTART) != 0) ::sigaddset(&action.sa_mask, number);
  action.sa_flags = flags;
  if ((interrupting.load(std::memory_order_relaxed) & Bit(number)) != 0) {
    action.sa_flags &= ~SA_RESTART;
  }
  if (HookedSigaction(number, &action, &old) != 0) return SIG_ERR;
  return old.sa_handler;
}

int HookedSiginterrupt(int number, bool interrupt) {
  struct sigaction action {};
  if (HookedSigaction(number, nullptr, &action) != 0) return -1;
  if (interrupt) {
    interrupting.fetch_or(Bit(number), std::memory_order_relaxed);
    action.sa_flags &= ~SA_RESTART;
  } else {
    interrupting.fetch_and(~Bit(number), std::memory_order_relaxed);
    action.sa_flags |= SA_RESTART;
  }
  return HookedSigaction(number, &action, nullptr);
}

}  // namespace rcsock::posix
