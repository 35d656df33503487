#include "lib/base/no_sigpipe.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "lib/base/start_data.h"

namespace rcsock::base {

RCSOCK_START_DATA constinit std::atomic<bool (*)()> handle_sigpipe{nullptr};

thread_local constinit SigpipeState tls_sigpipe;

namespace {

// The pid of a mark: no process has it. A user id would not do: the kernel
// translates it.
constexpr pid_t kMarkPid = -1;

bool Pending() {
  std::uint64_t pending = 0;
  ::syscall(SYS_rt_sigpending, &pending, sizeof pending);
  return (pending & kSigpipeBit) != 0;
}

// Queues the signal for this thread, not for the process.
void Queue(siginfo_t info) {
  ::syscall(SYS_rt_tgsigqueueinfo, ::syscall(SYS_getpid), ::syscall(SYS_gettid),
            SIGPIPE, &info);
}

// Queues a mark. The next SIGPIPE that is taken is then the thread's own, or
// the mark if the thread had none. A thread cannot tell its own pending signals
// from its process's. But of a thread's own SIGPIPEs the kernel keeps only the
// first, and hands it out before the process's. The mark's code is the
// kernel's, which RLIMIT_SIGPENDING does not stop.
void QueueMark() {
  siginfo_t mark{};
  mark.si_signo = SIGPIPE;
  mark.si_code = SI_KERNEL;
  mark.si_pid = kMarkPid;
  Queue(mark);
}

bool IsMark(const siginfo_t& info) {
  return info.si_code == SI_KERNEL && info.si_pid == kMarkPid;
}

// For a write the kernel raises SIGPIPE as if the process itself called kill().
bool IsOfWrite(const siginfo_t& info) {
  return info.si_code == SI_USER && info.si_pid == ::syscall(SYS_getpid);
}

}  // namespace

bool RaisedInPost(const siginfo_t& info) {
  return tls_sigpipe.posting && IsOfWrite(info);
}

void NoSigpipe::Block() {
  SigpipeState& self = tls_sigpipe;
  const std::uint64_t set = kSigpipeBit;
  const auto result =
      ::syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set,
                const_cast<std::uint64_t*>(&self.mask_before), sizeof set);
  blocks_ = result == 0 && (self.mask_before & kSigpipeBit) == 0;
}

void NoSigpipe::Begin() {
  const int saved = errno;
  Block();
  if (!blocks_ && Pending()) {
    marked_ = true;
    QueueMark();
  }
  errno = saved;
}

void NoSigpipe::EndBlocked() {
  const int saved = errno;
  Block();
  End();
  errno = saved;
}

void NoSigpipe::End() {
  const int saved = errno;
  const std::uint64_t set = kSigpipeBit;
  if (marked_ || Pending()) {
    if (!marked_) QueueMark();
    const timespec now{0, 0};
    siginfo_t info{};
    if (::syscall(SYS_rt_sigtimedwait, &set, &info, &now, sizeof set) ==
            SIGPIPE &&
        !IsMark(info) && (marked_ || !IsOfWrite(info))) {
      Queue(info);
    }
  }
  if (blocks_) {
    const auto handle = handle_sigpipe.load(std::memory_order_acquire);
    // Stored before the call: a handler that runs as the call ends knows
    // better.
    tls_sigpipe.open = handle != nullptr && handle();
    ::syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &set, nullptr, sizeof set);
  }
  tls_sigpipe.mask_before = kNoMaskBefore;
  errno = saved;
}

}  // namespace rcsock::base
