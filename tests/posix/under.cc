#include "tests/posix/under.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

namespace under {

void Fail(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "FAILED (%d) %s\n", ::getpid(), text);
  // No destructors: other threads may be anywhere.
  ::_exit(9);
}

pid_t Start(const std::string& shim, const std::vector<std::string>& args,
            const std::vector<std::string>& settings,
            const std::string& program) {
  Work();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  CHECK_THAT(pid >= 0);
  if (pid == 0) Become(shim, args, settings, program);
  return pid;
}

void Become(const std::string& shim, const std::vector<std::string>& args,
            const std::vector<std::string>& settings,
            const std::string& program) {
  const std::string stats = Work() + "/stats.%p";
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* first = std::getenv("SANITIZER_PRELOAD");
  const char* last = std::getenv("SANITIZER_BEHIND");
  const std::string preload =
      (first != nullptr ? first + std::string(":") : "") + shim +
      (last != nullptr ? std::string(":") + last : "");
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  ::setenv("RCSOCK_STATS", stats.c_str(), 1);
  for (const std::string& setting : settings) {
    ::putenv(::strdup(setting.c_str()));
  }
  std::vector<char*> argv = {const_cast<char*>("under")};
  for (const std::string& arg : args) {
    argv.push_back(const_cast<char*>(arg.c_str()));
  }
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  Fail("exec: errno %d", errno);
}

void Finish(pid_t pid, int seconds, const std::string& what) {
  const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  CHECK_THAT(handle >= 0);
  const bool ended = Readable(handle, seconds * 1000);
  ::close(handle);
  if (!ended) {
    if (std::getenv("UNDER_STAY") != nullptr) {
      std::fprintf(stderr, "%s hangs: pid %d\n", what.c_str(), pid);
      ::pause();
    }
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (!ended) Fail("%s: hangs", what.c_str());
  if (WIFSIGNALED(status)) {
    Fail("%s: signal %d", what.c_str(), WTERMSIG(status));
  }
  if (WEXITSTATUS(status) != 0) {
    Fail("%s: exit %d", what.c_str(), WEXITSTATUS(status));
  }
}

const std::string& Work() {
  static const auto* path = [] {
    const char* base = std::getenv("TEST_TMPDIR");
    std::string name =
        std::string(base != nullptr ? base : "/tmp") + "/rcsock-under.XXXXXX";
    CHECK_THAT(::mkdtemp(name.data()) != nullptr);
    // Empty by then, if all went well.
    std::atexit([] { ::rmdir(Work().c_str()); });
    return new std::string(name);
  }();
  return *path;
}

long Stats::Get(const char* section, const char* key) const {
  std::size_t at = 0;
  if (*section != '\0') {
    at = text.find("\"" + std::string(section) + "\": {");
    if (at == std::string::npos) Fail("no %s in %s", section, text.c_str());
  }
  const std::string name = "\"" + std::string(key) + "\": ";
  at = text.find(name, at);
  if (at == std::string::npos) Fail("no %s in %s", key, text.c_str());
  return std::atol(text.c_str() + at + name.size());
}

Stats ReadStats(pid_t pid) {
  Stats stats;
  const std::string path = Work() + "/stats." + std::to_string(pid);
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  stats.text = all.str();
  if (stats.text.empty()) Fail("no statistics in %s", path.c_str());
  ::unlink(path.c_str());
  std::size_t at = stats.text.find("\"reasons\": {");
  CHECK_THAT(at != std::string::npos);
  at += 12;  // behind the brace
  while (stats.text[at] == '"') {
    const std::size_t end = stats.text.find('"', at + 1);
    const std::string key = stats.text.substr(at + 1, end - at - 1);
    stats.reasons[key] = std::atol(stats.text.c_str() + end + 3);
    at = stats.text.find_first_of(",}", end);
    if (stats.text[at] == ',') at += 2;
  }
  return stats;
}

int Listen(int* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = posix_test::Loopback(0);
  socklen_t length = sizeof address;
  CHECK_THAT(::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  CHECK_THAT(::listen(fd, 512) == 0);
  CHECK_THAT(
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

int Connect(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = posix_test::Loopback(port);
  CHECK_THAT(::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                       sizeof address) == 0);
  return fd;
}

int Accept(int listener) {
  if (!Readable(listener, 10'000)) Fail("nobody connects");
  const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  CHECK_THAT(fd >= 0);
  return fd;
}

bool Readable(int fd, int ms) {
  const std::uint64_t end = NowMs() + static_cast<std::uint64_t>(ms);
  for (;;) {
    pollfd one{fd, POLLIN, 0};
    const std::uint64_t now = NowMs();
    const int n = ::poll(&one, 1, now < end ? static_cast<int>(end - now) : 0);
    if (n > 0) return true;
    if (n == 0 && NowMs() >= end) return false;
  }
}

}  // namespace under
