// usage: start LIBRARY [--runs N] [--calls N] [--faults N] [COMMAND [ARG...]]
//
// What a process pays for a preloaded library that never has a connection: the
// command (/bin/true) with LD_PRELOAD and without, in turn.  System calls and
// page faults are counts, which no other load on the machine changes.  With
// --calls or --faults it fails where the library takes more of them.

#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct Start {
  long calls = 0;
  long faults = 0;
  double us = 0;
};

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(125);
}

[[noreturn]] void Become(const std::vector<std::string>& command,
                         const std::string& library, bool traced) {
  // (Nothing of ours is to differ: neither what is inherited, nor the length of
  // the environment but for the variable.)
  std::vector<char*> arguments;
  for (const std::string& one : command) {
    arguments.push_back(const_cast<char*>(one.c_str()));
  }
  arguments.push_back(nullptr);
  std::string variable = "LD_PRELOAD=" + library;
  char* environment[] = {library.empty() ? nullptr : variable.data(), nullptr};
  if (traced && ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
    Die("ptrace");
  }
  ::execve(arguments[0], arguments.data(), environment);
  Die(arguments[0]);
}

void Check(int status) {
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::fputs("the command failed\n", stderr);
    std::exit(125);
  }
}

long Calls(const std::vector<std::string>& command,
           const std::string& library) {
  const pid_t child = ::fork();
  if (child < 0) Die("fork");
  if (child == 0) Become(command, library, true);
  int status = 0;
  // It stops as it has become the command.
  if (::waitpid(child, &status, 0) != child) Die("waitpid");
  if (!WIFSTOPPED(status)) Check(status);
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  long stops = 0;
  long signal = 0;
  for (;;) {
    if (::ptrace(PTRACE_SYSCALL, child, nullptr, signal) != 0) Die("ptrace");
    if (::waitpid(child, &status, 0) != child) Die("waitpid");
    if (!WIFSTOPPED(status)) break;
    const bool call = WSTOPSIG(status) == (SIGTRAP | 0x80);
    signal = call ? 0 : WSTOPSIG(status);
    if (call) ++stops;
  }
  Check(status);
  return (stops + 1) / 2;  // the last one does not return
}

Start Once(const std::vector<std::string>& command,
           const std::string& library) {
  Start result;
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = ::vfork();
  if (child < 0) Die("vfork");
  if (child == 0) Become(command, library, false);
  int status = 0;
  rusage usage{};
  if (::wait4(child, &status, 0, &usage) != child) Die("wait4");
  result.us = std::chrono::duration<double, std::micro>(
                  std::chrono::steady_clock::now() - begin)
                  .count();
  result.faults = usage.ru_minflt;
  Check(status);
  return result;
}

template <class T>
T Median(std::vector<T> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What a preloaded library costs a process at its start and end"};
  std::string library;
  std::vector<std::string> command;
  int runs = 500;
  long most_calls = 1'000'000;
  long most_faults = 1'000'000;
  app.add_option("library", library)->required();
  app.add_option("--runs", runs)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--calls", most_calls, "system calls more, at most");
  app.add_option("--faults", most_faults, "page faults more, at most");
  app.add_option("command", command);
  app.prefix_command();
  CLI11_PARSE(app, argc, argv);
  if (command.empty()) command = {"/bin/true"};

  const std::string libraries[] = {"", library};
  Start medians[2];
  std::vector<double> us[2];
  std::vector<long> faults[2];
  for (int run = 0; run < runs; ++run) {
    for (int which = 0; which < 2; ++which) {
      const Start one = Once(command, libraries[which]);
      us[which].push_back(one.us);
      faults[which].push_back(one.faults);
    }
  }
  for (int which = 0; which < 2; ++which) {
    medians[which] = {Calls(command, libraries[which]), Median(faults[which]),
                      Median(us[which])};
    std::printf("%-8s %4ld system calls %5ld page faults %8.0f us\n",
                which == 0 ? "plain" : "with it", medians[which].calls,
                medians[which].faults, medians[which].us);
  }
  const long calls = medians[1].calls - medians[0].calls;
  const long more = medians[1].faults - medians[0].faults;
  if (calls > most_calls || more > most_faults) {
    std::printf("%ld calls and %ld faults more, not %ld and %ld\n", calls, more,
                most_calls, most_faults);
    return 1;
  }
  return 0;
}
