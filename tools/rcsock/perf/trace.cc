#include "tools/rcsock/perf/trace.h"

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "tools/rcsock/perf/mark.h"

namespace rcsock::perf {
namespace {

constexpr int kNoTrace = 125;

std::string Name(long number) {
  static const std::map<long, const char*> names = {
      {SYS_accept4, "accept4"},
      {SYS_bind, "bind"},
      {SYS_clock_gettime, "clock_gettime"},
      {SYS_clock_nanosleep, "clock_nanosleep"},
      {SYS_close, "close"},
      {SYS_connect, "connect"},
      {SYS_epoll_ctl, "epoll_ctl"},
      {SYS_epoll_pwait, "epoll_pwait"},
      {SYS_epoll_pwait2, "epoll_pwait2"},
      {SYS_epoll_wait, "epoll_wait"},
      {SYS_fcntl, "fcntl"},
      {SYS_futex, "futex"},
      {SYS_getresuid, "getresuid"},
      {SYS_getrusage, "getrusage"},
      {SYS_getsockopt, "getsockopt"},
      {SYS_ioctl, "ioctl"},
      {SYS_membarrier, "membarrier"},
      {SYS_poll, "poll"},
      {SYS_ppoll, "ppoll"},
      {SYS_read, "read"},
      {SYS_recvfrom, "recvfrom"},
      {SYS_recvmsg, "recvmsg"},
      {SYS_sched_yield, "sched_yield"},
      {SYS_select, "select"},
      {SYS_sendmsg, "sendmsg"},
      {SYS_sendto, "sendto"},
      {SYS_setsockopt, "setsockopt"},
      {SYS_shutdown, "shutdown"},
      {SYS_socket, "socket"},
      {SYS_timerfd_settime, "timerfd_settime"},
      {SYS_write, "write"},
  };
  const auto found = names.find(number);
  return found != names.end() ? found->second
                              : "syscall_" + std::to_string(number);
}

// Counts calls.  A mark adds the calls since the mark before.
class Counter {
 public:
  explicit Counter(SyscallCounts* counts) : counts_(*counts) {}

  void Enter(long number, long argument) {
    if (number == SYS_getppid && argument == kMark) {
      for (const auto& [call, n] : since_) {
        counts_.calls[Name(call)] += n;
        counts_.total += n;
      }
      since_.clear();
      ++counts_.marks;
    } else if (counts_.marks > 0) {
      ++since_[number];
    }
  }

 private:
  SyscallCounts& counts_;
  std::map<long, long> since_;
};

// Returns the signal to hand on to the thread that stopped.
int OnStop(pid_t thread, int status, std::map<pid_t, bool>* inside,
           Counter* counter) {
  const int signal = WSTOPSIG(status);
  if (signal == (SIGTRAP | 0x80)) {
    bool& in = (*inside)[thread];
    in = !in;
    user_regs_struct registers;
    if (in && ::ptrace(PTRACE_GETREGS, thread, nullptr, &registers) == 0) {
      counter->Enter(static_cast<long>(registers.orig_rax),
                     static_cast<long>(registers.rdi));
    }
    return 0;
  }
  if (status >> 16 != 0) {
    // exec leaves its own call half seen.
    return 0;
  }
  const bool born = inside->emplace(thread, false).second;
  return signal == SIGSTOP && born ? 0 : signal;
}

}  // namespace

int CountSyscalls(const std::function<void()>& start, SyscallCounts* counts,
                  std::string* error) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      ::_exit(errno & 0x7f);
    }
    ::raise(SIGSTOP);
    start();
    ::_exit(kNoTrace);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    *error = std::strerror(errno);
    return kNoTrace;
  }
  if (!WIFSTOPPED(status)) {
    *error = std::string("ptrace: ") +
             std::strerror(WIFEXITED(status) ? WEXITSTATUS(status) : EPERM);
    return kNoTrace;
  }
  const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE |
                       PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
  if (::ptrace(PTRACE_SETOPTIONS, child, nullptr,
               reinterpret_cast<void*>(options)) != 0) {
    *error = std::string("ptrace: ") + std::strerror(errno);
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return kNoTrace;
  }
  std::map<pid_t, bool> inside = {{child, false}};
  Counter counter(counts);
  int result = kNoTrace;
  ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  for (;;) {
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0 && errno == EINTR) continue;
    if (thread < 0) break;  // no thread is left
    if (!WIFSTOPPED(status)) {
      inside.erase(thread);
      if (thread == child) {
        result =
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      continue;
    }
    const long signal = OnStop(thread, status, &inside, &counter);
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, reinterpret_cast<void*>(signal));
  }
  return result;
}

}  // namespace rcsock::perf
