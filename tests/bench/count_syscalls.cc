// usage: count_syscalls FILE COMMAND [ARG...]
//
// Runs the command and writes to FILE, as JSON, how many system calls of each
// kind all of its threads made between its first and its last getppid: the
// programs of this directory call that around what they measure, and nothing
// else does.  Made for where strace is not to be had, such as a guest.

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(125);
}

std::string Name(long number) {
  static const std::map<long, const char*> names = {
      {SYS_read, "read"},
      {SYS_write, "write"},
      {SYS_ioctl, "ioctl"},
      {SYS_poll, "poll"},
      {SYS_ppoll, "ppoll"},
      {SYS_select, "select"},
      {SYS_sendto, "sendto"},
      {SYS_recvfrom, "recvfrom"},
      {SYS_sendmsg, "sendmsg"},
      {SYS_recvmsg, "recvmsg"},
      {SYS_futex, "futex"},
      {SYS_epoll_wait, "epoll_wait"},
      {SYS_epoll_pwait, "epoll_pwait"},
      {SYS_epoll_ctl, "epoll_ctl"},
      {SYS_sched_yield, "sched_yield"},
      {SYS_clock_gettime, "clock_gettime"},
      {SYS_clock_nanosleep, "clock_nanosleep"},
      {SYS_timerfd_settime, "timerfd_settime"},
      {SYS_membarrier, "membarrier"},
  };
  const auto found = names.find(number);
  return found != names.end() ? found->second
                              : "syscall_" + std::to_string(number);
}

// What came since the last mark is added when the next one comes.
class Counter {
 public:
  void Enter(long number) {
    if (number == SYS_getppid) {
      for (const auto& [name, n] : since_) counts_[name] += n;
      since_.clear();
      ++marks_;
    } else if (marks_ > 0) {
      ++since_[number];
    }
  }

  void Write(const char* path) const {
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr) Die(path);
    long total = 0;
    for (const auto& [name, n] : counts_) total += n;
    std::fprintf(file, "{\"marks\":%d,\"total\":%ld,\"calls\":{", marks_,
                 total);
    const char* comma = "";
    for (const auto& [number, n] : counts_) {
      std::fprintf(file, "%s\"%s\":%ld", comma, Name(number).c_str(), n);
      comma = ",";
    }
    std::fputs("}}\n", file);
    if (std::fclose(file) != 0) Die(path);
  }

 private:
  int marks_ = 0;
  std::map<long, long> counts_;
  std::map<long, long> since_;
};

pid_t Start(char** command) {
  const pid_t child = ::fork();
  if (child < 0) Die("fork");
  if (child > 0) return child;
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) Die("ptrace");
  ::raise(SIGSTOP);
  ::execvp(command[0], command);
  Die(command[0]);
}

// The signal to hand on to the thread that stopped.
int OnStop(pid_t thread, int status, std::map<pid_t, bool>* inside,
           Counter* counter) {
  const int signal = WSTOPSIG(status);
  if (signal == (SIGTRAP | 0x80)) {
    bool& in = (*inside)[thread];
    in = !in;
    user_regs_struct registers;
    if (in && ::ptrace(PTRACE_GETREGS, thread, nullptr, &registers) == 0) {
      counter->Enter(static_cast<long>(registers.orig_rax));
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

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: count_syscalls FILE COMMAND [ARG...]\n", stderr);
    return 125;
  }
  const pid_t child = Start(argv + 2);
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
    Die("waitpid");
  }
  const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE |
                       PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
  if (::ptrace(PTRACE_SETOPTIONS, child, nullptr,
               reinterpret_cast<void*>(options)) != 0) {
    Die("ptrace");
  }
  std::map<pid_t, bool> inside = {{child, false}};
  Counter counter;
  int result = 125;
  ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  for (;;) {
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0 && errno == EINTR) continue;
    if (thread < 0) break;  // all gone
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
  counter.Write(argv[1]);
  return result;
}
