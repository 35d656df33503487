#ifndef RCSOCK_TESTS_GPU_PEER_H_
#define RCSOCK_TESTS_GPU_PEER_H_

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace gpu_test {

// Another process of the test's program, with a driver and lanes of its own. A
// process that has neither starts it: no driver works behind fork.
class Peer {
 public:
  // Called first in main. Never returns in the process that starts the peers.
  static void Prepare() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      std::exit(1);
    }
    if (::fork() != 0) {
      ::close(ends[1]);
      channel_ = ends[0];
      return;
    }
    ::close(ends[0]);
    Ask ask;
    while (::read(ends[1], &ask, sizeof ask) == sizeof ask) {
      const pid_t pid = ::fork();
      if (pid == 0) Run(ask);
      (void)!::write(ends[1], &pid, sizeof pid);
      int status = -1;
      ::waitpid(pid, &status, 0);
      (void)!::write(ends[1], &status, sizeof status);
    }
    ::_exit(0);
  }

  // Starts a process with the arguments `peer`, `what` and `port`.
  Peer(const char* what, std::uint16_t port, bool pass = true) {
    Ask ask{};
    std::snprintf(ask.what, sizeof ask.what, "%s", what);
    ask.port = port;
    ask.pass = pass;
    (void)!::write(channel_, &ask, sizeof ask);
    (void)!::read(channel_, &pid_, sizeof pid_);
  }
  ~Peer() { Wait(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  pid_t pid() const { return pid_; }
  // Returns its exit status, or -1 if a signal has ended it.
  int Wait() {
    if (!over_) (void)!::read(channel_, &status_, sizeof status_);
    over_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

 private:
  struct Ask {
    char what[32];
    std::uint16_t port;
    bool pass;
  };
  [[noreturn]] static void Run(const Ask& ask) {
    ::setenv("RCSOCK_GPU_PASS", ask.pass ? "on" : "off", 1);
    const std::string port = std::to_string(ask.port);
    ::execl("/proc/self/exe", "pass_test", "peer", ask.what, port.c_str(),
            nullptr);
    ::_exit(127);
  }

  static inline int channel_ = -1;
  pid_t pid_ = -1;
  int status_ = -1;
  bool over_ = false;
};

}  // namespace gpu_test

#endif  // RCSOCK_TESTS_GPU_PEER_H_
