// usage: count_instructions [--all|--alone] PROGRAM [ARGUMENT...]
//
// Prints how many instructions PROGRAM's first thread executes, by stepping
// through them: a count that needs no counters.  System calls count as one.
//
// PROGRAM executes a breakpoint (int3) before what it repeats, one behind each
// repetition, and one more at the end.  What is printed is the median of the
// repetitions: what happens once in a while, by time, falls out.
// --all: the sum, from each odd breakpoint to the next one.
// --alone: from the first breakpoint on, the other threads stand still.  A
// stepped thread is slow, and to a thread that looks at it by time it is away.
#include <dirent.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace {

// Fewer instructions than this are the end of the program's loop.
constexpr unsigned long kEmpty = 16;

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

// The other threads of the child, which stand still while this lives.
class Others {
 public:
  explicit Others(pid_t child) {
    DIR* const tasks =
        opendir(("/proc/" + std::to_string(child) + "/task").c_str());
    if (tasks == nullptr) return;
    while (const dirent* task = readdir(tasks)) {
      const pid_t thread = std::atoi(task->d_name);
      int status = 0;
      if (thread > 0 && thread != child &&
          ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 &&
          ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 &&
          waitpid(thread, &status, __WALL) == thread) {
        held_.push_back(thread);
      }
    }
    closedir(tasks);
  }
  ~Others() {
    for (const pid_t thread : held_) {
      ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    }
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

 private:
  std::vector<pid_t> held_;
};

int Ended(const char* program) {
  std::fprintf(stderr, "%s: ended amid its breakpoints\n", program);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc > 1 && std::strcmp(argv[1], "--all") == 0;
  const bool alone = argc > 1 && std::strcmp(argv[1], "--alone") == 0;
  if (all || alone) {
    ++argv;
    --argc;
  }
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: count_instructions [--all|--alone] PROGRAM "
                 "[ARGUMENT...]\n");
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
  unsigned long passed = 0;
  unsigned long sum = 0;
  if (all) {
    while (Run(child, false, &passed)) {
      if (!Run(child, true, &sum)) return Ended(argv[1]);
    }
    if (sum == 0) return Ended(argv[1]);
    std::printf("%lu\n", sum);
    return 0;
  }
  std::vector<unsigned long> counts;
  if (!Run(child, false, &passed)) return Ended(argv[1]);
  {
    std::optional<Others> others;
    if (alone) others.emplace(child);
    for (;;) {
      unsigned long count = 0;
      if (!Run(child, true, &count)) return Ended(argv[1]);
      if (count < kEmpty) break;
      counts.push_back(count);
    }
  }
  if (counts.empty()) return Ended(argv[1]);
  const auto middle = counts.begin() + counts.size() / 2;
  std::nth_element(counts.begin(), middle, counts.end());
  std::printf("%lu\n", *middle);
  ptrace(PTRACE_CONT, child, nullptr, nullptr);
  return waitpid(child, &status, 0) == child && WIFEXITED(status)
             ? WEXITSTATUS(status)
             : 1;
}
