// usage: count_instructions [--all] PROGRAM [ARGUMENT...]
//
// Prints how many instructions PROGRAM's first thread executes between its
// first two breakpoints (int3), or with --all between each two, by stepping
// through them: a count that does not depend on what else the machine does, and
// needs no counters.  System calls count as one.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Until the program has executed int3; false: it has ended before.
// `step`: one by one.
bool Run(pid_t child, bool step, unsigned long* steps) {
  int signal = 0;
  for (;;) {
    if (ptrace(step ? PTRACE_SINGLESTEP : PTRACE_CONT, child, nullptr,
               signal) != 0) {
      return false;
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
      return false;
    }
    signal = WSTOPSIG(status);
    if (signal != SIGTRAP) continue;
    signal = 0;
    siginfo_t info{};
    if (ptrace(PTRACE_GETSIGINFO, child, nullptr, &info) != 0) return false;
    if (info.si_code == SI_KERNEL) return true;
    ++*steps;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc > 1 && std::strcmp(argv[1], "--all") == 0;
  if (all) {
    ++argv;
    --argc;
  }
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: count_instructions [--all] PROGRAM [ARGUMENT...]\n");
    return 2;
  }
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    execv(argv[1], argv + 1);
    std::perror(argv[1]);
    std::_Exit(127);
  }
  int status = 0;
  // The stop of exec.
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
    return 1;
  }
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL);
  unsigned long before = 0;
  unsigned long count = 0;
  if (!Run(child, false, &before) || !Run(child, true, &count)) {
    std::fprintf(stderr, "%s: ended without two breakpoints\n", argv[1]);
    return 1;
  }
  if (all) {
    // It has ended when there is no other breakpoint.
    while (Run(child, false, &before)) {
      if (!Run(child, true, &count)) return 1;
    }
    std::printf("%lu\n", count);
    return 0;
  }
  std::printf("%lu\n", count);
  ptrace(PTRACE_CONT, child, nullptr, nullptr);
  return waitpid(child, &status, 0) == child && WIFEXITED(status)
             ? WEXITSTATUS(status)
             : 1;
}
