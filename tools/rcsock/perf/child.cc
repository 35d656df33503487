#include "tools/rcsock/perf/child.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/trace.h"
#include "tools/rcsock/run.h"

extern char** environ;

namespace rcsock::perf {
namespace {

std::array<Fd, 2> Pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) FailErrno("pipe");
  return {Fd(fds[0]), Fd(fds[1])};
}

std::vector<std::string> Environment(const Spec& spec, const Fd& stats) {
  std::vector<std::string> result;
  std::string preload;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.rfind("LD_PRELOAD=", 0) == 0) {
      preload = text.substr(sizeof "LD_PRELOAD=" - 1);
    } else if (text.rfind("RCSOCK_LANES=", 0) != 0 &&
               text.rfind("RCSOCK_STATS=", 0) != 0 &&
               text.rfind("RCSOCK_INHERIT=", 0) != 0) {
      result.push_back(text);
    }
  }
  std::string library;
  if (UnderRcsock(spec.transport)) {
    library = tools::FindLibrary();
    if (library.empty()) {
      Fail("{} needs the library to preload", Name(spec.transport));
    }
    result.push_back(std::string("RCSOCK_LANES=") + Name(spec.transport));
    // The child writes into this process's memfd: no file to name, none to
    // leave behind.
    result.push_back(
        fmt::format("RCSOCK_STATS=/proc/{}/fd/{}", ::getpid(), stats.get()));
  }
  preload = tools::PreloadList(library, preload);
  if (!preload.empty()) result.push_back("LD_PRELOAD=" + preload);
  return result;
}

void WriteLine(int fd, const nlohmann::json& json) {
  const std::string line = json.dump() + "\n";
  if (::write(fd, line.data(), line.size()) < 0) return;
}

// Runs in the child of fork: becomes the worker, or has one started under
// ptrace.
[[noreturn]] void Become(const Spec& spec, char* const* environment) {
  char name[] = "rcsock";
  char command[] = "perf-worker";
  char* const argv[] = {name, command, nullptr};
  const auto start = [&] {
    ::execve("/proc/self/exe", argv, environment);
    ::_exit(127);
  };
  if (!spec.traced) {
    start();
    ::_exit(127);
  }
  SyscallCounts counts;
  std::string error;
  const int status = CountSyscalls(start, &counts, &error);
  if (!error.empty()) {
    WriteLine(STDOUT_FILENO, {{"type", "error"},
                              {"message",
                               "system calls can't be counted "
                               "here: " +
                                   error}});
  } else {
    WriteLine(STDOUT_FILENO, {{"type", "syscalls"},
                              {"total", counts.total},
                              {"calls", counts.calls}});
  }
  ::_exit(status);
}

}  // namespace

Child::Child(const Spec& spec) {
  stats_ = Fd(static_cast<int>(
      ::syscall(SYS_memfd_create, "rcsock-perf", MFD_CLOEXEC)));
  if (!stats_) FailErrno("memfd_create");
  std::vector<std::string> environment = Environment(spec, stats_);
  std::vector<char*> entries;
  for (std::string& entry : environment) entries.push_back(entry.data());
  entries.push_back(nullptr);
  auto [in_read, in_write] = Pipe();
  auto [out_read, out_write] = Pipe();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) FailErrno("fork");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(in_read.get(), STDIN_FILENO);
    ::dup2(out_write.get(), STDOUT_FILENO);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    // Ctrl-C is for the process that started this child.  That process then
    // ends it.
    ::setpgid(0, 0);
    Become(spec, entries.data());
  }
  in_ = std::move(in_write);
  out_ = std::move(out_read);
  SetNonBlocking(out_.get());
}

Child::~Child() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  Wait();
}

void Child::Tell(const nlohmann::json& line) {
  // The end of a child shows on its stdout.
  WriteLine(in_.get(), line);
}

bool Child::Fill() {
  char bytes[65536];
  for (;;) {
    const ssize_t n = ::read(out_.get(), bytes, sizeof bytes);
    if (n > 0) {
      buffer_.append(bytes, static_cast<std::size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && errno == EAGAIN;
  }
}

std::optional<nlohmann::json> Child::Take() {
  const std::size_t end = buffer_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  nlohmann::json line = nlohmann::json::parse(
      buffer_.begin(), buffer_.begin() + static_cast<long>(end), nullptr,
      false);
  buffer_.erase(0, end + 1);
  if (!line.is_object()) Fail("the measuring process wrote nonsense");
  return line;
}

void Child::Wait() {
  while (pid_ > 0 && ::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

std::string Child::Ended() {
  Wait();
  if (WIFSIGNALED(status_)) {
    return fmt::format("the measuring process was killed (signal {})",
                       WTERMSIG(status_));
  }
  return fmt::format("the measuring process ended too early (status {})",
                     WEXITSTATUS(status_));
}

nlohmann::json Child::Stats() {
  Wait();
  std::string text(65536, '\0');
  const ssize_t n = ::pread(stats_.get(), text.data(), text.size(), 0);
  if (n <= 0) return nullptr;
  text.resize(static_cast<std::size_t>(n));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() ? json : nlohmann::json(nullptr);
}

}  // namespace rcsock::perf
